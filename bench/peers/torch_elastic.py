#!/usr/bin/env python3
"""What torchrun restarts: DistributedDataParallel over Gloo, with checkpoints of torch.save.

    torchrun --standalone --nproc-per-node 4 --max-restarts 1 torch_elastic.py --folder DIR

The model is that of the built-in job (jobs/digits_ps.toml), on made-up samples; one thread a rank. Rank 0 writes a line for each step
into DIR/steps, and model, optimizer and step into DIR/checkpoint every second, whole or not at all. All begin from there. It never ends.
"""
import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

BATCH = 32
SAVES_EVERY_S = 1


def digits_net():
    return nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Dropout2d(0.2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
                         nn.Dropout(0.4), nn.Linear(256, 10))


def save(folder, step, replica, optimizer):
    part, whole = folder / "checkpoint.part", folder / "checkpoint"
    torch.save({"step": step, "model": replica.module.state_dict(), "optimizer": optimizer.state_dict()}, part)
    os.rename(part, whole)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True)
    folder = parser.parse_args().folder
    torch.set_num_threads(1)
    # Torchrun's store outlives an attempt, and with it the addresses of ranks that are gone.
    store, rank, world_size = next(dist.rendezvous("env://"))
    attempt = dist.PrefixStore(f"attempt-{os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    dist.init_process_group("gloo", store=attempt, rank=rank, world_size=world_size)
    torch.manual_seed(1)
    net, step = digits_net(), 0
    if (folder / "checkpoint").exists():
        saved = torch.load(folder / "checkpoint")
        step = saved["step"]
        net.load_state_dict(saved["model"])
    replica = DDP(net)
    optimizer = torch.optim.Adam(replica.parameters(), lr=0.0015)
    if step:
        optimizer.load_state_dict(saved["optimizer"])
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    images, classes = torch.randn(50, BATCH, 1, 8, 8), torch.randint(10, (50, BATCH))
    last_saved = time.monotonic()
    with open(folder / "steps", "a", buffering=1) as steps:
        while True:
            optimizer.zero_grad()
            loss(replica(images[step % 50]), classes[step % 50]).backward()
            optimizer.step()
            step += 1
            if dist.get_rank():
                continue
            print(step, file=steps)
            if time.monotonic() - last_saved > SAVES_EVERY_S:
                save(folder, step, replica, optimizer)
                last_saved = time.monotonic()


if __name__ == "__main__":
    main()
