#!/usr/bin/env python3
"""All-reduces of float32 between two ranks over Gloo, measured as `pstrain bench collectives` measures its own.

    python torch_all_reduce.py 4096 65536

Before each all-reduce a barrier; its time is that of the slower rank. Prints JSON: the median for each number of bytes,
in milliseconds.
"""
import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from common import free_port

WARM_UP = 5


def median_ms(size):
    tensor, times = torch.ones(size // 4), []
    for turn in range(WARM_UP + min(max(64_000_000 // size, 15), 300)):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        if turn >= WARM_UP:
            times.append((time.perf_counter() - start) * 1e3)
    slower = torch.tensor(times)
    dist.all_reduce(slower, op=dist.ReduceOp.MAX)
    return statistics.median(slower.tolist())


def run_rank(rank, port, sizes):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    medians = [median_ms(size) for size in sizes]
    if rank == 0:
        print(json.dumps(medians), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(run_rank, args=(free_port(), [int(size) for size in sys.argv[1:]]), nprocs=2)
