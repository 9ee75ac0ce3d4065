#!/usr/bin/env python3
"""A job that loses a rank, from the kill to the first step of the next attempt, beside torchrun.

    bench/restarts.py [--rounds 8] [--python PYTHON] [--tensorflow PYTHON]

Each round trains the built-in job (one server, three trainers, `bsp`, a checkpoint every second) under `--restarts 1`, and its model
under torchrun (bench/peers/torch_elastic.py: four replicas, torch.save every second), and kills another rank without a word, some seconds
into it. With a Python that has tensorflow-cpu, its parameter servers (bench/peers/tf_parameter_server.py: one server, three workers, a
coordinator, a checkpoint every second) lose their server. Told are the job's own start-up, how long it takes until the ranks of the next
attempt are there, and until the first step of it.
"""
import os
import signal
import statistics
import tempfile
import time
from functools import partial
from itertools import count
from pathlib import Path

from report import table
from side_by_side import PEERS, PSTRAIN, arguments, each_round, fail, parse, peer_environment
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


def kill_times(command, steps, saved, rank, anew=RANKS, env=None):
    """The times around the kill of a rank, for which `anew` processes come. `steps` grows with each step, `saved` says whether there is
    a checkpoint."""
    with Launched(command, env) as launched:
        until("a step", lambda: size(steps))
        started = launched.seconds()
        until("a checkpoint", saved)
        time.sleep(1 + rank * 0.3)  # somewhere between two checkpoints
        before = ranks_of(launched.process.pid)
        os.kill(int(before[rank]), signal.SIGKILL)
        at_kill = time.monotonic()
        until("new ranks", lambda: len(set(alive(launched.process.pid)) - set(before)) == anew)
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
    return kill_times(command, folder / "steps", (folder / "checkpoint").exists, rank, env=peer_environment())


def tensorflows(python, folder):
    """The server is the first process; with it the coordinator ends and is started again."""
    command = [python, PEERS / "tf_parameter_server.py", "--folder", folder]
    return kill_times(command, folder / "steps", (folder / "checkpoints/checkpoint").exists, 0, anew=2, env=peer_environment())


def in_folder(subject):
    with tempfile.TemporaryDirectory() as folder:
        return subject(Path(folder))


def main():
    parser = arguments(__doc__, data=False)
    parser.add_argument("--tensorflow", metavar="PYTHON", help="a Python with tensorflow-cpu, to measure its parameter servers")
    parser.set_defaults(rounds=8)
    args = parse(parser)
    ranks = {"pstrain": count(), "torchrun": count()}  # another one each round
    subjects = {
        "pstrain": lambda folder: ours(next(ranks["pstrain"]) % RANKS, folder),
        "torchrun": lambda folder: torchruns(args.python, next(ranks["torchrun"]) % RANKS, folder),
    }
    if args.tensorflow:
        subjects["TensorFlow"] = lambda folder: tensorflows(args.tensorflow, folder)
    measured = each_round({name: partial(in_folder, subject) for name, subject in subjects.items()}, args.rounds)
    names = ["start-up, to the first step", "kill to the ranks of the next attempt", "kill to its first step"]
    header = ["seconds", *(f"{name}, {which}" for name in measured for which in ("median", "longest"))]
    times = [list(zip(*rounds)) for rounds in measured.values()]
    rows = [[name, *(of(each[nth]) for each in times for of in (statistics.median, max))] for nth, name in enumerate(names)]
    print(table(header, rows))


if __name__ == "__main__":
    main()
