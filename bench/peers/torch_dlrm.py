#!/usr/bin/env python3
"""A DLRM, measured: the hybrid of PyTorch's tutorials over RPC, or one process.

    python torch_dlrm.py hybrid --columns 26 --rows 100000 --dim 16 --batch 512 --servers 2 --steps 100
    python torch_dlrm.py one ...
    python torch_dlrm.py fbgemm ...

`hybrid`: two trainers with the dense layers under DDP over Gloo, and servers with the tables, each with its share of the
columns, which a trainer asks all at once; a master starts the trainers. Over TensorPipe, one thread a process.
`one`: the same model in one process with --threads. `fbgemm`: as `one`, with FBGEMM's table-batched embeddings (pip
install fbgemm-gpu-cpu), which updates rows in its backward.

Tables have sparse gradients, the optimizer is SGD, ids are drawn evenly. Prints the steps of all trainers together,
without the first 20 of each: `N steps/s`.
"""
import argparse
import os
import time

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
from torch import nn, optim
from torch.distributed.nn import RemoteModule
from torch.distributed.optim import DistributedOptimizer
from torch.distributed.rpc import RRef, TensorPipeRpcBackendOptions
from torch.nn.parallel import DistributedDataParallel as DDP

from common import free_port

TRAINERS, MASTER = 2, 2
WARM_UP, BATCHES = 20, 50
NUMBERS, LR = 13, 0.05


class Tables(nn.Module):
    """A table for each of some columns: [batch, columns] to [batch, columns, dim]."""

    def __init__(self, columns, rows, dim):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, dim, sparse=True) for _ in range(columns))

    def forward(self, ids):
        return torch.stack([table(ids[:, column]) for column, table in enumerate(self.tables)], 1)


class BatchedTables(nn.Module):
    """The same by FBGEMM, whose backward updates the rows."""

    def __init__(self, columns, rows, dim):
        super().__init__()
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen)
        tables = [(rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU)] * columns
        self.tables = SplitTableBatchedEmbeddingBagsCodegen(
            tables, optimizer=EmbOptimType.EXACT_SGD, learning_rate=LR, pooling_mode=PoolingMode.SUM)
        self.shape = columns, dim

    def forward(self, ids):
        # One index a bag, column after column.
        return self.tables(ids.t().flatten(), torch.arange(ids.numel() + 1)).view(-1, *self.shape)


class Dense(nn.Module):
    """The layers below and above the dot products, as in bench/dlrm.py."""

    def __init__(self, columns, dim):
        super().__init__()
        pairs = (columns + 1) * columns // 2
        self.bottom = nn.Sequential(nn.Linear(NUMBERS, 64), nn.ReLU(), nn.Linear(64, dim), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(dim + pairs, 64), nn.ReLU(), nn.Linear(64, 1))
        self.register_buffer("below", torch.tril_indices(columns + 1, columns + 1, -1), persistent=False)

    def forward(self, dense, vectors):
        bottom = self.bottom(dense)
        vectors = torch.cat([bottom.unsqueeze(1), vectors], 1)
        dots = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.below[0], self.below[1]]
        return self.top(torch.cat([bottom, dots], 1))


def batches(args):
    return [(torch.rand(args.batch, NUMBERS), torch.randint(args.rows, (args.batch, args.columns)),
             torch.randint(2, (args.batch, 1)).float()) for _ in range(BATCHES)]


def timed(steps, step):
    for nth in range(steps):
        if nth == WARM_UP:
            begun = time.perf_counter()
        step(nth % BATCHES)
    return (steps - WARM_UP) / (time.perf_counter() - begun)


def run_trainer(modules, rank, args):
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dense = DDP(Dense(args.columns, args.dim))
    parameters = [parameter for module in modules for parameter in module.remote_parameters()]
    parameters += [RRef(parameter) for parameter in dense.parameters()]
    optimizer = DistributedOptimizer(optim.SGD, parameters, lr=LR)
    criterion, data = nn.BCEWithLogitsLoss(), batches(args)
    shares = share(args)

    def step(nth):
        numbers, ids, click = data[nth]
        with dist_autograd.context() as context:
            asked = [module.forward_async(part) for module, part in zip(modules, ids.split(shares, 1))]
            vectors = torch.cat([future.wait() for future in asked], 1)
            dist_autograd.backward(context, [criterion(dense(numbers, vectors), click)])
            optimizer.step(context)

    return timed(args.steps, step)


def share(args):
    """How many columns each server has."""
    return [args.columns // args.servers + (nth < args.columns % args.servers) for nth in range(args.servers)]


def run_worker(rank, args, port, rpc_port):
    torch.set_num_threads(1)
    options = TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{rpc_port}")
    name = "master" if rank == MASTER else f"trainer{rank}" if rank < TRAINERS else f"ps{rank - TRAINERS - 1}"
    if rank < TRAINERS:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=rank, world_size=TRAINERS)
    rpc.init_rpc(name, rank=rank, world_size=TRAINERS + 1 + args.servers, rpc_backend_options=options)
    if rank == MASTER:
        modules = [RemoteModule(f"ps{nth}", Tables, args=(columns, args.rows, args.dim))
                   for nth, columns in enumerate(share(args))]
        futures = [rpc.rpc_async(f"trainer{trainer}", run_trainer, args=(modules, trainer, args), timeout=0)
                   for trainer in range(TRAINERS)]
        print(f"{sum(future.wait() for future in futures):.1f} steps/s", flush=True)
    rpc.shutdown()


def one_process(args):
    torch.set_num_threads(args.threads)
    kind = BatchedTables if args.how == "fbgemm" else Tables
    tables, dense = kind(args.columns, args.rows, args.dim), Dense(args.columns, args.dim)
    updated = [*dense.parameters()] + ([] if args.how == "fbgemm" else [*tables.parameters()])
    optimizer = optim.SGD(updated, lr=LR)
    criterion, data = nn.BCEWithLogitsLoss(), batches(args)

    def step(nth):
        numbers, ids, click = data[nth]
        optimizer.zero_grad()
        criterion(dense(numbers, tables(ids)), click).backward()
        optimizer.step()

    print(f"{timed(args.steps, step):.1f} steps/s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("how", choices=["hybrid", "one", "fbgemm"])
    for name, default in (("columns", 26), ("rows", 100_000), ("dim", 16), ("batch", 512), ("servers", 2),
                          ("threads", 1), ("steps", 100)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    if args.steps <= WARM_UP or not 1 <= args.servers <= args.columns:
        parser.error(f"--steps must be more than {WARM_UP}, and --servers from 1 to the number of columns")
    if args.how != "hybrid":
        return one_process(args)
    mp.spawn(run_worker, args=(args, free_port(), free_port()), nprocs=TRAINERS + 1 + args.servers, join=True)


if __name__ == "__main__":
    main()
