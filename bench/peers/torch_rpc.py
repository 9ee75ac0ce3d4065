#!/usr/bin/env python3
"""Calls between two ranks over torch.distributed.rpc, measured as `pstrain bench rpc` measures its own.

    python torch_rpc.py --transport default|tcp --sizes 4K,100K,1M

`default` lets TensorPipe choose: on one machine shared memory, and copies from memory to memory. `tcp` is what it uses
between machines. Prints JSON: medians of calls there and back, in microseconds, and calls per second.
"""
import argparse
import json
import statistics
import time

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
from torch.distributed.rpc import TensorPipeRpcBackendOptions

from common import free_port

CALLEE = "callee"
WARM_UP, SMALL_CALLS = 200, 2000
IN_FLIGHT = 1, 8, 64
BESIDE_BYTES = 64 << 20
TRANSPORTS = {"default": {}, "tcp": {"_transports": ["uv"], "_channels": ["basic"]}}


def echo(value):
    return value


def elements(tensor):
    return tensor.numel()


def microseconds(call):
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


def median_us(call, repeats, warm_up):
    for _ in range(warm_up):
        call()
    return statistics.median(microseconds(call) for _ in range(repeats))


def small_call():
    return rpc.rpc_sync(CALLEE, echo, args=(1,))


def rate(in_flight):
    def together():
        for future in [rpc.rpc_async(CALLEE, echo, args=(1,)) for _ in range(in_flight)]:
            future.wait()

    for _ in range(WARM_UP // in_flight):
        together()
    rounds = max(4 * SMALL_CALLS // in_flight, 20)
    start = time.perf_counter()
    for _ in range(rounds):
        together()
    return {"in_flight": in_flight, "calls_per_s": rounds * in_flight / (time.perf_counter() - start)}


def tensor(size):
    """There, and its number of elements back."""
    sent = torch.ones(size // 4)
    repeats = min(max(1_000_000_000 // size, 7), 500)
    took = median_us(lambda: rpc.rpc_sync(CALLEE, elements, args=(sent,), timeout=120), repeats, warm_up=3)
    return {"bytes": size, "median_us": took}


def small_beside_large():
    """Small calls, one after the other, for as long as a large tensor takes."""
    sent, taken = torch.ones(BESIDE_BYTES // 4), []
    for _ in range(5):
        large = rpc.rpc_async(CALLEE, elements, args=(sent,), timeout=120)
        while not large.done():
            taken.append(microseconds(small_call))
    return {"median_us": statistics.median(taken)}


def run_rank(rank, args, port):
    torch.set_num_threads(1)
    options = TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", **TRANSPORTS[args.transport])
    rpc.init_rpc(("caller", CALLEE)[rank], rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        print(json.dumps({
            "small": {"median_us": median_us(small_call, SMALL_CALLS, WARM_UP)},
            "rates": [rate(in_flight) for in_flight in IN_FLIGHT],
            "tensors": [tensor(size) for size in args.sizes],
            "small_beside_large": small_beside_large(),
        }), flush=True)
    rpc.shutdown()


def sizes(text):
    units = {"K": 1 << 10, "M": 1 << 20}
    return [int(size.rstrip("KM")) * units.get(size[-1], 1) for size in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transport", default="default", choices=TRANSPORTS)
    parser.add_argument("--sizes", type=sizes, default=sizes("4K,100K,1M,16M,64M,256M"), help="bytes of the tensors")
    args = parser.parse_args()
    mp.spawn(run_rank, args=(args, free_port()), nprocs=2)


if __name__ == "__main__":
    main()
