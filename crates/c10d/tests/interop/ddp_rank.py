"""One rank of a data-parallel job whose other ranks may be Rust's; see examples/ddp_rank.rs, which prints the same."""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../data"))
from model import Mlp, batch  # noqa: E402


class Model(Mlp):
    def forward(self, x, unused):
        return self.list[0].square().mean() if unused else super().forward(x)


def main(what):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = Model(1 + 50 * rank)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.001, find_unused_parameters=what == "unused")
    if what in ("fp16", "bf16"):
        ddp.register_comm_hook(None, getattr(default_hooks, f"{what}_compress_hook"))
    for step in range(5):
        x, y = batch(step, 16, rank, size)
        model.zero_grad()
        unused = what == "unused" and rank == 1
        out = ddp(x, unused)
        (out if unused else F.mse_loss(out, y)).backward()
        with torch.no_grad():
            for i, p in enumerate(model.parameters()):
                g = p.grad.double()
                print(step, i, f"{p.grad.sum(dtype=torch.float64).item():.9f}", f"{g.norm().item():.9f}")
                p -= p.grad * 0.3
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    # Past the destructors, in which libtorch's own threads end the process at times.
    os._exit(0)


main(sys.argv[1] if len(sys.argv) > 1 else "none")
