#!/usr/bin/env python3
"""A job that loses a rank, from the kill to the first step of the next attempt, beside torchrun.

    bench/restarts.py [--rounds 8] [--python PYTHON]

Each round trains the built-in job (one server, three trainers, `bsp`, a checkpoint every second) under `--restarts 1`, and its model
under torchrun (bench/peers/torch_elastic.py: four replicas, torch.save every second), and kills another rank without a word, some seconds
into it. Told are the job's own start-up, how long it takes until the ranks of the next attempt are there, and until the first step of it.
"""
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path

from report import table
from side_by_side import PEERS, PSTRAIN, arguments, fail, parse, peer_environment
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


def size(steps):
    return steps.stat().st_size if steps.exists() else 0


def alive(launcher):
    try:
        return ranks_of(launcher)
    except (FileNotFoundError, ProcessLookupError):
        return []  # a rank has just ended


def kill_times(command, steps, saved, rank, env=None):
    """The times around the kill of a rank. `steps` grows with each step, `saved` says whether there is a checkpoint."""
    with Launched(command, env) as launched:
        until("a step", lambda: size(steps))
        started = launched.seconds()
        until("a checkpoint", saved)
        time.sleep(1 + rank * 0.3)  # somewhere between two checkpoints
        before = ranks_of(launched.process.pid)
        os.kill(int(before[rank]), signal.SIGKILL)
        at_kill = time.monotonic()
        until("new ranks", lambda: len(set(alive(launched.process.pid)) - set(before)) == RANKS)
        there, told = time.monotonic() - at_kill, size(steps)
        until("a new step", lambda: size(steps) > told)
        stepped = time.monotonic() - at_kill
        left = alive(launched.process.pid)
        launched.process.send_signal(signal.SIGKILL)
        for process in left:  # torchrun's outlive it
            try:
                os.kill(int(process), signal.SIGKILL)
            except ProcessLookupError:
                pass
        launched.process.wait()
        launched.process.returncode = 0  # it was to end so
    return started, there, stepped


def ours(rank, folder):
    run = folder / "run"
    settings = ["train.consistency=bsp", "train.epochs=100000", "checkpoint.every_seconds=1", "log.every=1"]
    command = [PSTRAIN, "spawn", "--world-size", RANKS, "--run-dir", run, "--restarts", "1", "--master-port", "0"]
    command += [part for setting in settings for part in ("--set", setting)]
    return kill_times(command, run / "metrics.jsonl", lambda: list((run / "checkpoints").glob("step-*")), rank)


def torchruns(python, rank, folder):
    command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", RANKS, "--max-restarts", "1",
               PEERS / "torch_elastic.py", "--folder", folder]
    return kill_times(command, folder / "steps", (folder / "checkpoint").exists, rank, peer_environment())


def main():
    parser = arguments(__doc__, data=False)
    parser.set_defaults(rounds=8)
    args = parse(parser)
    measured = {"pstrain": [], "torchrun": []}
    for nth in range(args.rounds):
        with tempfile.TemporaryDirectory() as folder:
            measured["pstrain"].append(ours(nth % RANKS, Path(folder)))
        with tempfile.TemporaryDirectory() as folder:
            measured["torchrun"].append(torchruns(args.python, nth % RANKS, Path(folder)))
    header = ["seconds", "pstrain, median", "pstrain, longest", "torchrun, median", "torchrun, longest"]
    names = ["start-up, to the first step", "kill to the ranks of the next attempt", "kill to its first step"]
    rows = []
    for name, ours_s, torchruns_s in zip(names, *(zip(*rounds) for rounds in measured.values())):
        rows.append([name, statistics.median(ours_s), max(ours_s), statistics.median(torchruns_s), max(torchruns_s)])
    print(table(header, rows))


if __name__ == "__main__":
    main()
