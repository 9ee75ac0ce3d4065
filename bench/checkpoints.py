#!/usr/bin/env python3
"""What checkpoints cost: step rates with one every ten seconds and after every step, and the memory of a server that writes them.

    bench/checkpoints.py [--data DIR] [--rounds 5] [--steps 400]

Ratios are the medians of each round's, whose runs came one after the other. The memory is the most that the server has had, sampled ten
times a second, with Adam on a model of one wide layer: what is updated while a checkpoint is written is all that it has.
"""
import tempfile
from pathlib import Path

from report import table
from side_by_side import ROOT, arguments, each_round, median, parse, share, spawn, spawn_command
from watch import watch

JOBS = [("ConvNet on a server, three trainers, `bsp`", ROOT / "jobs/mnist_ps.toml", 4, ["train.consistency=bsp"]),
        ("replicas of a ConvNet, two ranks", ROOT / "jobs/ddp_mnist.toml", 2, [])]
SETTINGS = {"none": [], "every 10 s": ["checkpoint.every_seconds=10"], "every step": ["checkpoint.every_steps=1"]}
WIDE = 16_384
PARAMETERS = (28 * 28 + 1) * WIDE + (WIDE + 1) * 10
MIB = 1 << 20


def most_resident(job, values):
    """MiB of the server."""
    with tempfile.TemporaryDirectory() as folder:
        _, samples = watch(spawn_command(job, 2, folder, values), 2)
        return max(sample.ranks[0].resident for sample in samples) / MIB


def rates(args):
    rows = []
    for name, job, world_size, values in JOBS:
        values = [*values, f"data.root={args.data}", "train.epochs=1000", f"train.steps={args.steps}"]
        measured = each_round({which: lambda more=more: spawn(job, world_size, [*values, *more])["steps_per_s"]
                               for which, more in SETTINGS.items()}, args.rounds)
        shares = [f"{share(measured, which, of='none'):.3f}" for which in SETTINGS if which != "none"]
        rows.append([name, *map(median, measured.values()), *shares])
    return table(["steps/s", *SETTINGS, "every 10 s/none", "every step/none"], rows)


def memory(args):
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "wide.toml"
        text = (ROOT / "bench/jobs/mlp_ps.toml").read_text()
        wide = text.replace("features = 128", f"features = {WIDE}").replace('"sgd"', '"adam"').replace("0.03\n", "0.0001\n")
        job.write_text(wide)
        values = [f"data.root={args.data}", "train.steps=60", "train.scale_lr=false"]
        measured = each_round({which: lambda more=more: most_resident(job, [*values, *more])
                               for which, more in SETTINGS.items() if which != "every 10 s"}, args.rounds)
    without, written = (median(each) for each in measured.values())
    return table(["MiB", "none", "every step", "difference", "parameters and both slots"],
                 [["server, at most", without, written, written - without, 3 * 4 * PARAMETERS / MIB]])


def main():
    parser = arguments(__doc__)
    parser.add_argument("--steps", type=int, default=400, help="of each trainer")
    args = parse(parser, beside_torch=False)
    print(memory(args), rates(args), sep="\n\n")


if __name__ == "__main__":
    main()
