"""What the benchmarks share: runs in turns, and medians, since a machine's speed drifts."""
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


def output(*command):
    done = subprocess.run([str(part) for part in command], check=True, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL)
    return done.stdout


def spawn(job, world_size, settings):
    """The summary of a run of all ranks on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        options = [part for setting in settings for part in ("--set", setting)]
        output(PSTRAIN, "spawn", job, "--world-size", world_size, "--master-port", 0, "--run-dir", folder, *options)
        return json.loads((Path(folder) / "summary.json").read_text())


def peer(command):
    """Any command that prints a line with `N steps/s`."""
    return lambda: float(re.findall(r"([\d.]+) steps/s", output(*shlex.split(command)))[-1])


def in_turns(subjects, rounds):
    """Calls each of the named functions once a round; the values of each."""
    values = {name: [] for name in subjects}
    for _ in range(rounds):
        for name, measure in subjects.items():
            values[name].append(measure())
    return values


def show(values, base, unit="steps/s"):
    reference = statistics.median(values[base])
    for name, measured in values.items():
        median = statistics.median(measured)
        each = " ".join(f"{value:.1f}" for value in measured)
        print(f"{median:8.1f} {unit}  {median / reference:5.2f} of {base}  {name}  ({each})", flush=True)
