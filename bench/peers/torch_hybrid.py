#!/usr/bin/env python3
"""The hybrid of PyTorch's tutorial "Combining Distributed DataParallel with Distributed RPC Framework", measured.

Four processes over TensorPipe, as in the tutorial: a master (rank 2) makes an EmbeddingBag with sparse gradients on a
parameter server (rank 3) and starts two trainers (ranks 0 and 1), each with a dense layer under DDP over Gloo.

    python torch_hybrid.py --rows 1000000 --dim 16 --bags 64 --length 8 --classes 8 --steps 200

Prints the steps of both trainers together, without the first 20 of each: `N steps/s`.
"""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
from torch import optim
from torch.distributed.nn import RemoteModule
from torch.distributed.optim import DistributedOptimizer
from torch.distributed.rpc import RRef, TensorPipeRpcBackendOptions
from torch.nn.parallel import DistributedDataParallel as DDP

from common import free_port

TRAINERS, MASTER, SERVER = 2, 2, 3
WARM_UP = 20


class HybridModel(torch.nn.Module):
    """The sparse part is remote, the dense part is replicated."""

    def __init__(self, remote_emb_module, args):
        super().__init__()
        self.remote_emb_module = remote_emb_module
        self.fc = DDP(torch.nn.Linear(args.dim, args.classes))

    def forward(self, indices, offsets):
        return self.fc(self.remote_emb_module.forward(indices, offsets))


def run_trainer(remote_emb_module, rank, args):
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    model = HybridModel(remote_emb_module, args)
    parameters = remote_emb_module.remote_parameters() + [RRef(parameter) for parameter in model.fc.parameters()]
    kind = {"sgd": optim.SGD, "adagrad": optim.Adagrad}[args.optimizer]
    optimizer = DistributedOptimizer(kind, parameters, lr=0.05)
    criterion = torch.nn.CrossEntropyLoss()
    count = args.bags * args.length
    offsets = torch.arange(0, count, args.length)
    batches = [(torch.randint(args.rows, (count,)), torch.randint(args.classes, (args.bags,)))
               for _ in range(args.steps)]
    begun = None
    for step, (indices, target) in enumerate(batches):
        if step == WARM_UP:
            begun = time.perf_counter()
        with dist_autograd.context() as context:
            loss = criterion(model(indices, offsets), target)
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
    return (args.steps - WARM_UP) / (time.perf_counter() - begun)


def run_worker(rank, args, port, rpc_port):
    torch.set_num_threads(1)
    options = TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{rpc_port}")
    names = {MASTER: "master", SERVER: "ps"}
    name = names.get(rank, f"trainer{rank}")
    if rank < TRAINERS:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=rank, world_size=TRAINERS)
    rpc.init_rpc(name, rank=rank, world_size=TRAINERS + 2, rpc_backend_options=options)
    if rank == MASTER:
        module = RemoteModule("ps", torch.nn.EmbeddingBag, args=(args.rows, args.dim),
                              kwargs={"mode": "sum", "sparse": True})
        futures = [rpc.rpc_async(f"trainer{trainer}", run_trainer, args=(module, trainer, args), timeout=0)
                   for trainer in range(TRAINERS)]
        print(f"{sum(future.wait() for future in futures):.1f} steps/s", flush=True)
    rpc.shutdown()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 1_000_000), ("dim", 16), ("bags", 64), ("length", 8), ("classes", 8), ("steps", 200)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--optimizer", default="sgd", choices=["sgd", "adagrad"])
    args = parser.parse_args()
    mp.spawn(run_worker, args=(args, free_port(), free_port()), nprocs=TRAINERS + 2, join=True)


if __name__ == "__main__":
    main()
