#!/usr/bin/env python3
"""How much memory it takes to go through a CSV file that is larger than memory should be.

    bench/stream.py [--megabytes 1000] [--steps 20000] [--rounds 5]

A table of 21 columns of numbers, in batches of 64: the peak resident set of `pstrain bench data`, in which nothing is done with
them, and samples per second.
"""
import json
import os
import random
import subprocess
import tempfile
from pathlib import Path

from data import job
from report import table
from side_by_side import PSTRAIN, arguments, fail, in_turns, parse, settings

MIB, ROWS = 1 << 20, 20_000


def write(file, megabytes):
    """Some rows, again and again."""
    file.parent.mkdir()
    row = lambda: ",".join(f"{random.gauss(0, 1):.5f}" for _ in range(21))
    rows = "".join(f"{row()}\n" for _ in range(ROWS))
    with file.open("w") as out:
        out.write(",".join([f"x{column}" for column in range(20)] + ["y\n"]))
        while out.tell() < megabytes * 1_000_000:
            out.write(rows)


def measured(file, steps, values):
    command = [PSTRAIN, "bench", "data", file, "--steps", steps, "--json", *settings(values)]
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        fail(f"status {status}: {command}", "run this command alone")
    return [usage.ru_maxrss * 1024 / MIB, json.loads(printed)["samples_per_s"]]


def main():
    parser = arguments(__doc__, data=False)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=20_000)
    args = parse(parser)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "csv/train.csv", args.megabytes)
        file, subjects = job("csv", Path(folder), 1), {}
        for name, values in {"in order": ["data.shuffle=false"], "shuffled": [],
                             "shuffled, 2 threads": ["data.threads=2"]}.items():
            subjects[name] = lambda values=values: measured(file, args.steps, values)
        # Compiled once, by a process that takes more than reading does.
        measured(file, 1, [])
        rows = [[name, *both] for name, both in in_turns(subjects, args.rounds).items()]
    print(table([f"{args.megabytes:,} MB", "peak resident MiB", "samples/s"], rows))


if __name__ == "__main__":
    main()
