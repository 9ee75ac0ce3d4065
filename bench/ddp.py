#!/usr/bin/env python3
"""Steps per second of distributed data parallel training, two ranks, batches of 64 each, against PyTorch's.

    bench/ddp.py --data DIR_WITH_MNIST [--rounds 5] [--peer-conv "python3 torch_ddp.py --model conv ..."]
                 [--peer-mlp "python3 torch_ddp.py --model mlp ..."]

One step is a step of all ranks. `conv` is the network of jobs/ddp_mnist.toml, `mlp` is 784-128-10. A peer is any
command that prints a line with `N steps/s`.
"""
import argparse
from pathlib import Path

from side_by_side import ROOT, in_turns, peer, show, spawn

JOB = ROOT / "jobs/ddp_mnist.toml"
MLP = """modules.net.layers=[ "flatten", { type = "linear", in_features = 784, out_features = 128 }, "relu",
  { type = "linear", in_features = 128, out_features = 10 }, { type = "log_softmax", dim = 1 } ]"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="folder with MNIST's IDX files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--conv-steps", type=int, default=100)
    parser.add_argument("--mlp-steps", type=int, default=1500)
    parser.add_argument("--peer-conv", help="a command to measure beside the ConvNet")
    parser.add_argument("--peer-mlp", help="a command to measure beside the multilayer perceptron")
    args = parser.parse_args()
    data = f"data.root={args.data.resolve()}"

    def ours(steps, *more):
        settings = [data, f"train.steps={steps}", "train.epochs=10", "log.every=50", *more]
        return lambda: spawn(JOB, 2, settings)["steps_per_s"] / 2

    for name, subject, command in (("conv", ours(args.conv_steps), args.peer_conv),
                                   ("mlp", ours(args.mlp_steps, MLP), args.peer_mlp)):
        subjects = {f"pstrain {name}": subject}
        if command:
            subjects[command] = peer(command)
        show(in_turns(subjects, args.rounds), f"pstrain {name}")


if __name__ == "__main__":
    main()
