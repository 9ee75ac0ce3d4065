#!/usr/bin/env python3
"""A parameter server over torch.distributed.rpc, measured: RRef, dist_autograd and DistributedOptimizer with SGD 0.03.

Rank 0 holds the model and computes its forward and backward; the other ranks send it batches of MNIST. A step is forward,
loss, backward and update, as in PyTorch's parameter-server tutorial.

    python torch_ps.py --world-size 2 --model conv --batch 32 --steps 200 --data DIR_WITH_MNIST

Where several trainers share a server, `--forward parameters`, the tutorial's, ends with an error about an in-place
operation: one trainer's update changes parameters that another's backward still needs. `--forward copies` computes with
a copy of the parameters that the step alone has; it is the default with more than one trainer.

Prints a line of JSON, and the steps of all trainers together, without the first 20 of each: `N steps/s`.
"""
import argparse
import copy
import json
import sys
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
from torch import optim
from torch.distributed.optim import DistributedOptimizer
from torch.distributed.rpc import RRef, TensorPipeRpcBackendOptions
from torch.nn.functional import nll_loss

from common import MODELS, batches, free_port, process_start, resident_bytes, since_boot

WARM_UP = 20


class Server:
    """The model, and how a call computes with it. Calls of several trainers run at the same time."""

    def __init__(self, args):
        torch.manual_seed(1234)
        self.model = MODELS[args.model]()
        # One without numbers for each trainer: `functional_call` lends its parameters to a module, which two calls at a
        # time must not share.
        self.shells = [copy.deepcopy(self.model).to("meta") for _ in range(1, args.world_size)]
        self.copies = args.forward == "copies"

    def forward(self, trainer, images):
        if not self.copies:
            return self.model(images)
        # Autograd goes through the copy to the parameter; an update changes the parameter, not the copy.
        own = {name: parameter.clone() for name, parameter in self.model.named_parameters()}
        return torch.func.functional_call(self.shells[trainer], own, images)

    def parameters(self):
        return [RRef(parameter) for parameter in self.model.parameters()]


def train(server, trainer, args):
    """Runs on a trainer; returns when its steps were, on the clock of `since_boot`, and its memory."""
    torch.set_num_threads(args.threads)
    optimizer = DistributedOptimizer(optim.SGD, server.rpc_sync().parameters(), lr=0.03)
    samples = batches(args.data, args.batch, trainer, args.world_size - 1)
    first = begun = None
    for step in range(args.steps):
        if step == WARM_UP:
            begun = time.perf_counter()
        images, classes = next(samples)
        with dist_autograd.context() as context:
            loss = nll_loss(server.rpc_sync().forward(trainer, images), classes)
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
        first = first or since_boot()
    rate = (args.steps - WARM_UP) / (time.perf_counter() - begun)
    return {"first": first, "last": since_boot(), "steps_per_s": rate, "rss": resident_bytes()}


def serve(args, started):
    """Runs on rank 0: starts the trainers, waits for them, prints what they measured."""
    server = RRef(Server(args))
    futures = [rpc.rpc_async(f"trainer{trainer}", train, args=(server, trainer, args), timeout=0)
               for trainer in range(args.world_size - 1)]
    told = torch.futures.wait_all(futures)
    total = sum(each["steps_per_s"] for each in told)
    print(json.dumps({
        "steps_per_s": total,
        "first_step_s": min(each["first"] for each in told) - started,
        "last_step_s": min(each["last"] for each in told) - started,
        "rss_bytes": [resident_bytes()] + [each["rss"] for each in told],
    }))
    print(f"{total:.1f} steps/s", flush=True)


def run_rank(rank, args, port, started):
    torch.set_num_threads(args.threads)
    options = TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}")
    name = "server" if rank == 0 else f"trainer{rank - 1}"
    rpc.init_rpc(name, rank=rank, world_size=args.world_size, rpc_backend_options=options)
    failed = None
    if rank == 0:
        try:
            serve(args, started)
        except RuntimeError as error:
            failed = error
    rpc.shutdown(graceful=failed is None)
    if failed:
        changed = "modified by an inplace operation" in str(failed)
        hint = "use --forward copies, or --world-size 2" if changed else "try --world-size 2"
        reason = "a trainer's update changed parameters that another's backward needed" if changed else failed
        raise SystemExit(f"error: {reason}\n  hint: {hint}")


def main():
    started = process_start()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world-size", type=int, default=2, help="the server and the trainers")
    parser.add_argument("--model", default="conv", choices=MODELS)
    parser.add_argument("--steps", type=int, default=200, help="of each trainer")
    parser.add_argument("--batch", type=int, help="32, or 64 with `--model mlp`")
    parser.add_argument("--threads", type=int, default=1, help="of each rank, for one operation")
    parser.add_argument("--forward", choices=["parameters", "copies"])
    parser.add_argument("--data", required=True, help="folder with MNIST's IDX files")
    args = parser.parse_args()
    args.batch = args.batch or (64 if args.model == "mlp" else 32)
    args.forward = args.forward or ("parameters" if args.world_size == 2 else "copies")
    if args.steps <= WARM_UP or args.world_size < 2:
        parser.error(f"--steps must be more than {WARM_UP} and --world-size at least 2")
    try:
        mp.spawn(run_rank, args=(args, free_port(), started), nprocs=args.world_size)
    except mp.ProcessExitedException:
        sys.exit(1)  # the rank has said why


if __name__ == "__main__":
    main()
