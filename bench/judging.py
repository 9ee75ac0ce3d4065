#!/usr/bin/env python3
"""What clipping by the norm costs a step, and how much faster several trainers judge a model than one.

    bench/judging.py [--data DIR] [--rounds 5] [--scale 1.0]

Ratios are the medians of each round's, whose runs came one after the other. A model is judged by `pstrain eval` on MNIST's test images,
the whole command; one trainer is held to one core, as others have one each.
"""
import os
import tempfile
import time
from pathlib import Path

from report import table
from side_by_side import PSTRAIN, ROOT, arguments, each_round, median, output, parse, settings, share, spawn, spawn_command

MLP = ROOT / "bench/jobs/mlp_ps.toml"
CONV = ROOT / "jobs/mnist_ps.toml"
CLIP = "optimizer.clip_norm=1.0"
# Name, job, steps of each of three trainers.
CLIPPED = [("784-128-10 on a server", MLP, 2000), ("ConvNet on a server", CONV, 80)]
JUDGED = ROOT / "jobs/ddp_mnist.toml"


def clipping(args):
    rows = []
    for name, job, steps in CLIPPED:
        for consistency in ("async", "bsp"):
            values = [f"data.root={args.data}", f"train.consistency={consistency}", "train.epochs=1000",
                      f"train.steps={max(int(steps * args.scale), 20)}"]
            rate = lambda *more, job=job, values=values: spawn(job, 4, [*values, *more])["steps_per_s"]
            measured = each_round({"plain": rate, "clipped": lambda rate=rate: rate(CLIP)}, args.rounds)
            rows.append([f"{name}, `{consistency}`", *map(median, measured.values()),
                         f"{share(measured, 'clipped', of='plain'):.2f}"])
    return table(["steps/s of three trainers", "without", "clipped", "clipped/without"], rows)


def seconds(run, trainers, cores):
    held = ["taskset", "-c", ",".join(map(str, sorted(os.sched_getaffinity(0))[:cores]))]
    begun = time.monotonic()
    output(*held, PSTRAIN, "eval", run, "--master-port", 0, *settings([f"cluster.world_size={trainers}"]))
    return time.monotonic() - begun


def judging(args):
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        output(*spawn_command(JUDGED, 2, run, [f"data.root={args.data}", "train.steps=20"]))
        measured = each_round({f"{trainers} on {held}": lambda trainers=trainers, held=held: seconds(run, trainers, held)
                               for trainers, held in [(1, 1), (1, cores), (cores, cores)]}, args.rounds)
    alone = "1 on 1"
    rows = [[f"trainers and cores: {which}", median(took), f"{share(measured, which, of=alone):.2f}"]
            for which, took in measured.items()]
    return table(["seconds of `pstrain eval`", "", "of one on one core"], rows)


def main():
    parser = arguments(__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of steps")
    args = parse(parser, beside_torch=False)
    print(clipping(args), judging(args), sep="\n\n")


if __name__ == "__main__":
    main()
