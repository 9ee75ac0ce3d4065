#!/usr/bin/env python3
"""Samples per second of MNIST's training images through a data plug-in, beside PyTorch's DataLoader.

    bench/data.py [--data DIR] [--python PYTHON] [--rounds 5] [--steps 0]

Batches of 32, shuffled and normalised, and nothing done with them.
"""
from side_by_side import ROOT, arguments, bench, in_turns, parse, peer, settings
from report import ratio, table

JOB = ROOT / "jobs/mnist_ps.toml"


def main():
    parser = arguments(__doc__)
    parser.add_argument("--steps", type=int, default=0, help="batches; 0: all of one pass")
    args = parse(parser)
    subjects = {}
    for threads in (1, 2):
        values = settings([f"data.root={args.data}", f"data.threads={threads}"])
        subjects[f"`pstrain`, `data.threads` = {threads}"] = lambda values=values: bench(
            "data", JOB, "--steps", args.steps, *values)["samples_per_s"]
    for workers in (0, 2):
        subjects[f"PyTorch, {workers} workers"] = lambda workers=workers: peer(
            args.python, "torch_loader.py", "--data", args.data, "--workers", workers, "--steps",
            args.steps)["samples_per_s"]
    measured = in_turns(subjects, args.rounds)
    best = max(rate for name, rate in measured.items() if name.startswith("PyTorch"))
    rows = [[name, rate, ratio(rate, best)] for name, rate in measured.items()]
    print(table(["", "samples/s", "of PyTorch's best"], rows))


if __name__ == "__main__":
    main()
