#!/usr/bin/env python3
"""A job that loses a rank, from the kill to the first step of the next attempt.

    bench/restarts.py [--rounds 8]

Each round trains the built-in job (one server, three trainers, `bsp`, a checkpoint every second) under `--restarts 1` and kills
another rank without a word, some seconds into it. Told are the job's own start-up, how long it takes until the ranks of the next
attempt are there, and until the first step of it.
"""
import argparse
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path

from report import table
from side_by_side import PSTRAIN, fail
from watch import Launched, ranks_of

RANKS = 4
LIMIT_S = 60


def until(what, holds):
    """What `holds` gives once it is something."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        if found := holds():
            return found
        time.sleep(0.002)
    fail(f"after {LIMIT_S} s: not {what}", "run the command alone")


def size(metrics):
    return metrics.stat().st_size if metrics.exists() else 0


def round_of(rank, folder):
    run, metrics = folder / "run", folder / "run/metrics.jsonl"
    settings = ["train.consistency=bsp", "train.epochs=100000", "checkpoint.every_seconds=1", "log.every=1"]
    command = [PSTRAIN, "spawn", "--world-size", RANKS, "--run-dir", run, "--restarts", "1", "--master-port", "0"]
    command += [part for setting in settings for part in ("--set", setting)]
    with Launched(command) as launched:
        until("a step", lambda: size(metrics))
        started = launched.seconds()
        until("a checkpoint", lambda: list((run / "checkpoints").glob("step-*")))
        time.sleep(1 + rank * 0.3)  # somewhere between two checkpoints
        before = ranks_of(launched.process.pid)
        os.kill(int(before[rank]), signal.SIGKILL)
        killed = time.monotonic()
        until("new ranks", lambda: len(set(ranks_of(launched.process.pid)) - set(before)) == RANKS)
        there, told = time.monotonic() - killed, size(metrics)
        until("a new step", lambda: size(metrics) > told)
        stepped = time.monotonic() - killed
        launched.process.send_signal(signal.SIGKILL)
        launched.process.wait()
        launched.process.returncode = 0  # it was to end so
    return started, there, stepped


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    args = parser.parse_args()
    measured = []
    for nth in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            measured.append(round_of(nth % RANKS, Path(folder)))
    header = ["", "median, s", "longest, s"]
    names = ["start-up, to the first step", "kill to the ranks of the next attempt", "kill to its first step"]
    rows = [[name, statistics.median(of), max(of)] for name, of in zip(names, zip(*measured))]
    print(table(header, rows))


if __name__ == "__main__":
    main()
