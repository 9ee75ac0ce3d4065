#!/usr/bin/env python3
"""Other builds of pstrain beside this one, in turns: whether a change costs anything.

    bench/before_after.py NAME=PROGRAM... [--data DIR] [--jobs DIR] [--rounds 5] [--scale 1.0] [--only WORD]...

Each PROGRAM is a build to compare with; where it does not know a key of today's jobs, DIR has those that it knows. Rates: more is
better. A ratio below 1 is a loss: the median of each round's, whose builds ran one after the other, so that what else the machine
does weighs on both.
"""
import json
import os
import sys
import tempfile
from pathlib import Path

from report import table
from side_by_side import PSTRAIN, ROOT, arguments, each_round, fail, median, output, parse, settings, share, spawn_command

MLP = ROOT / "bench/jobs/mlp_ps.toml"
# Name, job (of jobs/, where it is a name), ranks, steps of each trainer, settings, whether it reads MNIST.
TRAINING = [
    ("ConvNet on a server, one trainer", "mnist_ps.toml", 2, 200, [], True),
    ("ConvNet on a server, three trainers", "mnist_ps.toml", 4, 80, [], True),
    ("784-128-10 on a server, one trainer", MLP, 2, 4000, [], True),
    ("784-128-10 on a server, three trainers", MLP, 4, 2000, [], True),
    ("the same under `bsp`", MLP, 4, 2000, ["train.consistency=bsp"], True),
    ("replicas of a ConvNet, two ranks", "ddp_mnist.toml", 2, 120, [], True),
    ("pull and push, four ranks", "mnist_pull_push.toml", 4, 1500, [], True),
    ("a table on two servers", "recommender.toml", 4, 1500, [], False),
    ("a pipeline of two stages", "pipeline.toml", 4, 600, [], False),
]
CALLS = ["small calls/s, one at a time", "small calls/s, 64 in flight",
         *(f"tensors of {size}iB/s, one way" for size in ("4 K", "100 K", "1 M", "16 M", "64 M"))]
READING = "samples/s of MNIST through a plug-in"


def trained(program, case, args):
    _, job, world_size, steps, values, reads_mnist = case
    values = [*values, "train.epochs=1000", f"train.steps={max(int(steps * args.scale), 40)}"]
    values += [f"data.root={args.data}"] if reads_mnist else []
    with tempfile.TemporaryDirectory() as folder:
        command = spawn_command(args.jobs / job, world_size, folder, values)
        output(program, *command[1:])
        return json.loads((Path(folder) / "summary.json").read_text())["steps_per_s"]


def called(program):
    """Rates of calls between two ranks, and of tensors one way."""
    told = json.loads(output(program, "bench", "rpc", "--sizes", "4K,100K,1M,16M,64M", "--json"))
    rates = [each["calls_per_s"] for each in told["rates"]]
    return [1e6 / told["small"]["median_us"], rates[-1], *(1e6 / each["median_us"] for each in told["tensors"])]


def read(program, args):
    command = [program, "bench", "data", args.jobs / "mnist_ps.toml", "--steps", int(1500 * args.scale), "--json"]
    return json.loads(output(*command, *settings([f"data.root={args.data}"])))["samples_per_s"]


def builds(texts):
    """Names and programs, from `NAME=PROGRAM`."""
    programs = {}
    for text in texts:
        name, equals, program = text.partition("=")
        if not equals:
            fail(f"`{text}` is not NAME=PROGRAM", "for example: main=/tmp/pstrain")
        if not os.access(program, os.X_OK):
            fail(f"{program}: no such program", "name another build of pstrain")
        programs[name] = program
    return {**programs, "now": PSTRAIN}


def main():
    parser = arguments(__doc__)
    parser.add_argument("build", nargs="+", metavar="NAME=PROGRAM", help="a build to compare with")
    parser.add_argument("--jobs", type=Path, default=ROOT / "jobs", metavar="DIR", help="with jobs that all builds know")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of steps")
    parser.add_argument("--only", action="append", metavar="WORD", help="rows whose name has it; may be repeated")
    args = parse(parser, beside_torch=False)
    programs = builds(args.build)
    others = [name for name in programs if name != "now"]
    rows = []

    def wanted(name):
        return not args.only or any(word in name for word in args.only)

    def measured(measure):
        """What each build measured, by rounds."""
        return each_round({name: lambda program=program: measure(program) for name, program in programs.items()}, args.rounds)

    def row(name, rates):
        ratios = [f"{share(rates, 'now', of=which):.3f}" for which in others]
        rows.append([name, *map(median, rates.values()), *ratios])
        print(*rows[-1], file=sys.stderr, flush=True)

    for case in TRAINING:
        if wanted(case[0]):
            row(f"{case[0]}, steps/s", measured(lambda program, case=case: trained(program, case, args)))
    if any(map(wanted, CALLS)):
        calls = measured(called)
        for nth, name in enumerate(CALLS):
            row(name, {which: [each[nth] for each in rates] for which, rates in calls.items()})
    if wanted(READING):
        row(READING, measured(lambda program: read(program, args)))
    print(table(["", *programs, *(f"now/{which}" for which in others)], rows))


if __name__ == "__main__":
    main()
