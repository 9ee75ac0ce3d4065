#!/usr/bin/env python3
"""A model of `jobs/` trained in one process of PyTorch, measured.

    python torch_model.py --model char_lm --batch 32 --steps 200

The models are those of tests/data/jobs.py, with the optimizer and the clipping of their job; all threads, and samples that are made up before a
step is measured. Prints the steps without the first tenth: `N steps/s`.
"""
import argparse
import sys
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/data"))
from jobs import CharLm, Images  # noqa: E402


def text(batch):
    bytes = torch.randint(256, (batch, 65))
    return bytes[:, :-1].contiguous(), bytes[:, 1:].contiguous()


def images(batch):
    return torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))


MODELS = {
    "char_lm": (CharLm, text, lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1), 1.0),
    "images": (Images, images, lambda parameters: torch.optim.Adam(parameters, lr=0.001), None),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, choices=MODELS)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(0)
    build, make, optimize, clip_norm = MODELS[args.model]
    model = build().train()
    optimizer = optimize(model.parameters())
    warm_up = max(args.steps // 10, 2)
    batches = [make(args.batch) for _ in range(16)]
    for step in range(args.steps + warm_up):
        if step == warm_up:
            begun = time.perf_counter()
        inputs, targets = batches[step % len(batches)]
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        if clip_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        optimizer.step()
    print(f"{args.steps / (time.perf_counter() - begun):.2f} steps/s", flush=True)


if __name__ == "__main__":
    main()
