"""PyTorch's own PowerSGD figures for tests/it/every_backend/reducer_hooks.rs: for each parameter, after 12 steps of two ranks, its dot
product with `numbers(.., 99)` and its norm.

    python tests/data/power_sgd.py > tests/data/power_sgd.txt        (torch 2.11.0, about 20 s)
"""

import itertools
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.dirname(__file__))
from model import Mlp, numbers, step_of  # noqa: E402

CASES = [(1, 1, 1), (2, 1, 1), (4, 1, 1), (1, 0, 1), (2, 1, 0)]


class Seeds:
    """Stands for the state's generator of seeds: 7, 8, .."""

    def __init__(self):
        self.next = itertools.count(7)

    def randint(self, _):
        return next(self.next)


def run(rank, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    for approximation, warm, feedback in CASES:
        model = Mlp(1 + 50 * rank)
        ddp = DistributedDataParallel(model)
        state = PowerSGDState(
            dist.group.WORLD,
            matrix_approximation_rank=approximation,
            start_powerSGD_iter=3,
            warm_start=bool(warm),
            use_error_feedback=bool(feedback),
            orthogonalization_epsilon=1e-8,
        )
        state.rng = Seeds()
        ddp.register_comm_hook(state, powerSGD_hook)
        for step in range(12):
            step_of(model, ddp, step, 16, rank, 2)
        for i, p in enumerate(model.parameters()):
            if rank == 0:
                dot = (p * numbers(p.shape, 99)).sum(dtype=torch.float64).item()
                print(approximation, warm, feedback, i, f"{dot:.7f}", f"{p.norm().item():.7f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    print("# rank warm_start error_feedback parameter dot norm; made by power_sgd.py, torch", torch.__version__, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, args=(os.path.join(folder, "store"),), nprocs=2)
