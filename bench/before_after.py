#!/usr/bin/env python3
"""Another build of pstrain beside this one, in turns: whether a change costs anything.

    bench/before_after.py BEFORE [--data DIR] [--rounds 5] [--scale 1.0]

BEFORE is the program to compare with. Rates: more is better, and a ratio below 1 is a loss.
"""
import json
import os
import tempfile
from pathlib import Path

from report import ratio, table
from side_by_side import PSTRAIN, ROOT, arguments, fail, in_turns, mnist, output, settings, spawn_command

CONV, MLP = ROOT / "jobs/mnist_ps.toml", ROOT / "bench/jobs/mlp_ps.toml"
# Name, job, ranks, steps of each trainer, settings, whether it reads MNIST.
TRAINING = [
    ("ConvNet on a server, one trainer", CONV, 2, 200, [], True),
    ("ConvNet on a server, three trainers", CONV, 4, 80, [], True),
    ("784-128-10 on a server, one trainer", MLP, 2, 4000, [], True),
    ("784-128-10 on a server, three trainers", MLP, 4, 2000, [], True),
    ("the same under `bsp`", MLP, 4, 2000, ["train.consistency=bsp"], True),
    ("replicas of a ConvNet, two ranks", ROOT / "jobs/ddp_mnist.toml", 2, 120, [], True),
    ("pull and push, four ranks", ROOT / "jobs/mnist_pull_push.toml", 4, 1500, [], True),
    ("a table on two servers", ROOT / "jobs/recommender.toml", 4, 1500, [], False),
    ("a pipeline of two stages", ROOT / "jobs/pipeline.toml", 4, 600, [], False),
]


def trained(program, case, args):
    _, job, world_size, steps, values, reads_mnist = case
    values = [*values, "train.epochs=1000", f"train.steps={max(int(steps * args.scale), 40)}"]
    values += [f"data.root={args.data}"] if reads_mnist else []
    with tempfile.TemporaryDirectory() as folder:
        command = spawn_command(job, world_size, folder, values)
        output(program, *command[1:])
        return json.loads((Path(folder) / "summary.json").read_text())["steps_per_s"]


def called(program):
    """Rates of calls between two ranks, and of tensors one way."""
    told = json.loads(output(program, "bench", "rpc", "--sizes", "4K,100K,1M,16M,64M", "--json"))
    rates = [each["calls_per_s"] for each in told["rates"]]
    return [1e6 / told["small"]["median_us"], rates[-1], *(1e6 / each["median_us"] for each in told["tensors"])]


def read(program, args):
    command = [program, "bench", "data", CONV, "--steps", int(1500 * args.scale), "--json"]
    return json.loads(output(*command, *settings([f"data.root={args.data}"])))["samples_per_s"]


def main():
    parser = arguments(__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of steps")
    args = parser.parse_args()
    if not os.access(args.before, os.X_OK):
        fail(f"{args.before}: no such program", "name another build of pstrain")
    args.data = args.data.resolve()
    mnist(args.data)
    programs = {"before": args.before, "now": PSTRAIN}
    rows = []

    def compare(name, measure):
        measured = in_turns({which: lambda program=program: measure(program) for which, program in programs.items()},
                            args.rounds)
        return [[name, measured["before"], measured["now"], ratio(measured["now"], measured["before"])]]

    for case in TRAINING:
        rows += compare(f"{case[0]}, steps/s", lambda program, case=case: trained(program, case, args))
    calls = in_turns({which: lambda program=program: called(program) for which, program in programs.items()}, args.rounds)
    names = ["small calls/s, one at a time", "small calls/s, 64 in flight",
             *(f"tensors of {size}iB/s, one way" for size in ("4 K", "100 K", "1 M", "16 M", "64 M"))]
    rows += [[name, before, now, ratio(now, before)]
             for name, before, now in zip(names, calls["before"], calls["now"], strict=True)]
    rows += compare("samples/s of MNIST through a plug-in", lambda program: read(program, args))
    print(table(["", "before", "now", "now/before"], rows))


if __name__ == "__main__":
    main()
