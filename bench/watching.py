#!/usr/bin/env python3
"""What it costs a run to be watched: step rates without a page, and with one that a browser has open.

    bench/watching.py [--data DIR] [--rounds 5] [--steps 3000]

The small model on a server and three trainers, more ranks than this machine may have cores, so that whatever looks on takes time
from them. The browser is a thread that reads the page and then what it is told of the run, until the end. Ratios are the medians of
each round's.
"""
import json
import subprocess
import tempfile
import threading
import urllib.request
from pathlib import Path

from report import table
from side_by_side import ROOT, arguments, each_round, fail, median, parse, share, spawn_command

JOB = ROOT / "bench/jobs/mlp_ps.toml"


def look(address):
    """As a browser that has the page open."""
    with urllib.request.urlopen(address) as page:
        page.read()
    try:
        with urllib.request.urlopen(f"{address.rstrip('/')}/events") as events:
            while events.readline():
                pass
    except OSError:
        pass  # the run has ended


def trained(args, watched):
    values = [f"data.root={args.data}", "train.epochs=1000", f"train.steps={args.steps}"]
    with tempfile.TemporaryDirectory() as folder:
        command = [str(part) for part in spawn_command(JOB, 4, folder, values)]
        run = subprocess.Popen(command + ["--dashboard"] * watched, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for line in run.stderr:
            if line.startswith("dashboard: "):
                threading.Thread(target=look, args=[line.split()[1]], daemon=True).start()
        if run.wait():
            fail(f"exit {run.returncode}: {' '.join(command)}", "run this command alone")
        return json.loads((Path(folder) / "summary.json").read_text())["steps_per_s"]


def main():
    parser = arguments(__doc__)
    parser.add_argument("--steps", type=int, default=3000, help="of each trainer")
    args = parse(parser, beside_torch=False)
    measured = each_round({"alone": lambda: trained(args, False), "watched": lambda: trained(args, True)}, args.rounds)
    print(table(["steps/s", "alone", "watched", "watched/alone"],
                [["784-128-10 on a server, three trainers", *map(median, measured.values()), f"{share(measured, 'watched', of='alone'):.3f}"]]))


if __name__ == "__main__":
    main()
