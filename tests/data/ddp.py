"""Two processes of PyTorch's DistributedDataParallel: what three steps on the digits make of networks with batch
normalisations: a small one, and a narrow resnet18.

    python3 -m venv env && env/bin/pip install torch==2.11.0 numpy safetensors
    env/bin/python tests/data/ddp.py

writes ddp.safetensors and ddp_resnet18.safetensors beside this file: the state_dicts after the steps.
"""

import gzip
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from torchscript import Normed, ResNet18

HERE = Path(__file__).parent
DIGITS = HERE.parent.parent / "assets" / "digits"
STEPS, BATCH, WORLD = 3, 8, 2


MODULES = [(Normed, "ddp"), (ResNet18, "ddp_resnet18")]


def started(kind):
    """As torchscript.py has written it."""
    module = kind()
    file = HERE / "torchscript" / f"{kind.__name__.lower()}.pt"
    module.load_state_dict(torch.jit.load(file).state_dict())
    return module


def read(name, header):
    return np.frombuffer(gzip.decompress((DIGITS / f"{name}.gz").read_bytes())[header:], np.uint8).copy()


def work(rank):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533")
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    images = torch.from_numpy(read("train-images-idx3-ubyte", 16)).reshape(-1, 1, 8, 8)
    classes = torch.from_numpy(read("train-labels-idx1-ubyte", 8)).long()
    for kind, file in MODULES:
        replica = DistributedDataParallel(started(kind))
        train(replica, images, classes, rank)
        if rank == 0:
            save_file(replica.module.state_dict(), HERE / f"{file}.safetensors")
    dist.destroy_process_group()


def train(replica, images, classes, rank):
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        own = torch.arange(rank, len(classes), WORLD)[step * BATCH : (step + 1) * BATCH]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(replica((images[own].float() / 255.0 - 0.3052) / 0.3749), classes[own])
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    mp.spawn(work, nprocs=WORLD)
