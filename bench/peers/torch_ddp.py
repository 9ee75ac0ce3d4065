#!/usr/bin/env python3
"""DistributedDataParallel over Gloo on MNIST, measured.

    python torch_ddp.py --world-size 2 --model conv --batch 64 --steps 100 --data DIR_WITH_MNIST

The models are those of jobs/ddp_mnist.toml (`conv`) and 784-128-10 (`mlp`), with its SGD; one thread a rank. Prints the
steps of all ranks together, without the first 20: `N steps/s`.
"""
import argparse
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.functional import nll_loss
from torch.nn.parallel import DistributedDataParallel as DDP

from common import MODELS, batches, free_port

WARM_UP = 20


def run_rank(rank, args, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=args.world_size)
    torch.manual_seed(1234)
    replica = DDP(MODELS[args.model](), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.03, momentum=0.5)
    samples = batches(args.data, args.batch, rank, args.world_size)
    for step in range(args.steps):
        if step == WARM_UP:
            dist.barrier()
            begun = time.perf_counter()
        images, classes = next(samples)
        optimizer.zero_grad()
        nll_loss(replica(images), classes).backward()
        optimizer.step()
    dist.barrier()
    if rank == 0:
        print(f"{(args.steps - WARM_UP) / (time.perf_counter() - begun):.1f} steps/s", flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--model", default="conv", choices=MODELS)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=64, help="of each rank")
    parser.add_argument("--data", required=True, help="folder with MNIST's IDX files")
    args = parser.parse_args()
    if args.steps <= WARM_UP:
        parser.error(f"--steps must be more than {WARM_UP}")
    mp.spawn(run_rank, args=(args, free_port()), nprocs=args.world_size)


if __name__ == "__main__":
    main()
