#!/usr/bin/env python3
"""Steps per second of the parameter-server job with one trainer, against the same model in one process.

    bench/parameter_server.py --data DIR_WITH_MNIST [--rounds 5] [--peer "python3 torch_ps.py --world-size 2 ..."]

Rounds are interleaved and medians are compared, since a machine's speed drifts. A peer is any command that prints a
line with `N steps/s`; it may be given several times.
"""
import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PSTRAIN = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug/pstrain"
JOB = ROOT / "jobs/mnist_ps.toml"


def one_process(args):
    out = subprocess.run(
        [PSTRAIN, "bench", "step", JOB, "--steps", str(args.steps), "--set", f"data.root={args.data}", "--json"],
        check=True, stdout=subprocess.PIPE)
    return json.loads(out.stdout)["steps_per_s"]


def parameter_server(args):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [PSTRAIN, "spawn", JOB, "--world-size", "2", "--master-port", "0", "--run-dir", folder,
             "--set", f"data.root={args.data}", "--set", f"train.steps={args.steps}"],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return json.loads((Path(folder) / "summary.json").read_text())["steps_per_s"]


def peer(command):
    def run(_):
        out = subprocess.run(shlex.split(command), check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return float(re.findall(r"([\d.]+) steps/s", out.stdout)[-1])
    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="folder with MNIST's IDX files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--peer", action="append", default=[], help="a command to measure beside")
    args = parser.parse_args()
    args.data = args.data.resolve()

    subjects = {"one process": one_process, "parameter server": parameter_server}
    subjects.update({command: peer(command) for command in args.peer})
    rates = {name: [] for name in subjects}
    for _ in range(args.rounds):
        for name, measure in subjects.items():
            rates[name].append(measure(args))
    base = statistics.median(rates["one process"])
    for name, values in rates.items():
        median = statistics.median(values)
        shown = " ".join(f"{value:.1f}" for value in values)
        print(f"{median:8.1f} steps/s  {median / base:5.2f} of one process  {name}  ({shown})")


if __name__ == "__main__":
    main()
