#!/usr/bin/env python3
"""Steps per second of distributed data parallel training, two ranks, batches of 64 each, beside PyTorch's.

    bench/ddp.py [--data DIR] [--python PYTHON] [--rounds 5] [--conv-steps 100] [--mlp-steps 1500]

One step is a step of all ranks.
"""
from side_by_side import ROOT, arguments, in_turns, parse, peer, spawn
from report import ratio, table

JOB = ROOT / "jobs/ddp_mnist.toml"
MLP = """modules.net.layers=[ "flatten", { type = "linear", in_features = 784, out_features = 128 }, "relu",
  { type = "linear", in_features = 128, out_features = 10 }, { type = "log_softmax", dim = 1 } ]"""


def main():
    parser = arguments(__doc__)
    parser.add_argument("--conv-steps", type=int, default=100)
    parser.add_argument("--mlp-steps", type=int, default=1500)
    args = parse(parser)
    rows = []
    for name, model, steps, more in (("ConvNet of `jobs/ddp_mnist.toml`", "conv", args.conv_steps, []),
                                     ("784-128-10", "mlp", args.mlp_steps, [MLP])):
        values = [f"data.root={args.data}", f"train.steps={steps}", "train.epochs=10", "log.every=50", *more]
        ours, theirs = in_turns({
            "pstrain": lambda: spawn(JOB, 2, values)["steps_per_s"] / 2,
            "PyTorch": lambda: peer(args.python, "torch_ddp.py", "--model", model, "--steps", steps, "--data", args.data),
        }, args.rounds).values()
        rows.append([name, ours, theirs, ratio(ours, theirs)])
    print(table(["steps/s", "`pstrain`", "PyTorch", "ours/theirs"], rows))


if __name__ == "__main__":
    main()
