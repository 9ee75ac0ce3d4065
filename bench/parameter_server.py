#!/usr/bin/env python3
"""Steps per second of the parameter-server job with one trainer, against the same model in one process.

    bench/parameter_server.py --data DIR_WITH_MNIST [--rounds 5] [--peer "python3 torch_ps.py --world-size 2 ..."]

A peer is any command that prints a line with `N steps/s`; it may be given several times.
"""
import argparse
import json
from pathlib import Path

from side_by_side import PSTRAIN, ROOT, in_turns, output, peer, show, spawn

JOB = ROOT / "jobs/mnist_ps.toml"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="folder with MNIST's IDX files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--peer", action="append", default=[], help="a command to measure beside")
    args = parser.parse_args()
    data = f"data.root={args.data.resolve()}"

    def one_process():
        told = output(PSTRAIN, "bench", "step", JOB, "--steps", args.steps, "--set", data, "--json")
        return json.loads(told)["steps_per_s"]

    def parameter_server():
        return spawn(JOB, 2, [data, f"train.steps={args.steps}"])["steps_per_s"]

    subjects = {"one process": one_process, "parameter server": parameter_server}
    subjects.update({command: peer(command) for command in args.peer})
    show(in_turns(subjects, args.rounds), "one process")


if __name__ == "__main__":
    main()
