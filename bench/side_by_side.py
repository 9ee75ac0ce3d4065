"""What the benchmarks share: runs in turns, since a machine's speed drifts, and medians."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PSTRAIN = Path(os.environ.get("PSTRAIN", ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug/pstrain"))
PEERS = ROOT / "bench/peers"
PYTHON = os.environ.get("INTEROP_PYTHON", str(ROOT / ".deps/interop/bin/python"))
# A Python's torch finds its own libraries and sets its own threads.
OURS_ALONE = "LD_LIBRARY_PATH", "LD_PRELOAD", "LIBTORCH", "OMP_NUM_THREADS", "OMP_WAIT_POLICY"


def fail(message, hint):
    sys.exit(f"error: {message}\n  hint: {hint}")


def arguments(doc, data=True):
    """The options of every benchmark; `doc` is its description."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--python", default=PYTHON, help="a Python with torch, for what is measured beside")
    if data:
        parser.add_argument("--data", type=Path, default=ROOT / "data/mnist", help="folder with MNIST's IDX files")
    return parser


def parse(parser, beside_torch=True):
    args = parser.parse_args()
    check(args, beside_torch)
    return args


def check(args, beside_torch=True):
    """Ends the program where what a benchmark needs is not there."""
    if args.rounds < 1:
        fail(f"--rounds = {args.rounds}", "use 1 or more")
    if not PSTRAIN.exists():
        fail(f"{PSTRAIN}: no such program", "`make build` makes it; PSTRAIN=FILE names another")
    torch = [args.python, "-c", "import torch"]
    if beside_torch and subprocess.run(torch, env=peer_environment(), capture_output=True).returncode:
        fail(f"{args.python} cannot import torch", "`scripts/setup-interop` sets one up that can; --python names another")
    if "data" in args:
        args.data = args.data.resolve()
        mnist(args.data)


def mnist(folder):
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        if not any((folder / name).with_suffix(suffix).exists() for suffix in ("", ".gz")):
            fail(f"{folder}: no {name}, nor with .gz",
                 f"`{PSTRAIN} data fetch mnist --to {folder}` gets MNIST; --data names another folder")


def peer_environment():
    return {name: value for name, value in os.environ.items() if name not in OURS_ALONE}


def output(*command, env=None):
    command = [str(part) for part in command]
    try:
        done = subprocess.run(command, text=True, capture_output=True, env=env)
    except OSError as error:
        fail(f"{command[0]}: {error.strerror}", "is it the right file, and may it be run?")
    if done.returncode:
        fail(f"exit {done.returncode}: {' '.join(command)}\n{told(done.stderr)}", "run this command alone")
    return done.stdout


def told(errors):
    """What a failed command said: its `error:` lines if it has any, or else its last ones."""
    lines = errors.strip().splitlines()
    said = [line for nth, line in enumerate(lines)
            if line.startswith("error:") or (nth and lines[nth - 1].startswith("error:"))]
    return "\n".join(f"  {line}" for line in said or lines[-8:])


def bench(*options):
    """What `pstrain bench` measured."""
    return json.loads(output(PSTRAIN, "bench", *options, "--json"))


def settings(values):
    return [part for value in values for part in ("--set", value)]


def spawn_command(job, world_size, folder, values):
    return [PSTRAIN, "spawn", job, "--world-size", world_size, "--master-port", 0, "--run-dir", folder,
            *settings(values)]


def spawn(job, world_size, values):
    """The summary of a run of all ranks on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        output(*spawn_command(job, world_size, folder, values))
        return json.loads((Path(folder) / "summary.json").read_text())


def peer_command(python, script, *options):
    return [python, "-W", "ignore", PEERS / script, *options]


def peer(python, script, *options):
    """What a program of bench/peers printed: the value of its line of JSON, or N where it prints `N steps/s` only."""
    return parsed(output(*peer_command(python, script, *options), env=peer_environment()))


def parsed(printed):
    lines = printed.strip().splitlines()
    for line in lines:
        if line[:1] in "{[":
            return json.loads(line)
    return float(lines[-1].removesuffix(" steps/s"))


def in_turns(subjects, rounds):
    """The median of what each of the named functions returned in `each_round`."""
    return {name: median(measured) for name, measured in each_round(subjects, rounds).items()}


def each_round(subjects, rounds):
    """Calls each of the named functions once a round, another one first in each; what each returned, by rounds."""
    values = {name: [] for name in subjects}
    for nth in range(1, rounds + 1):
        names = list(subjects)
        first = (nth - 1) % len(names)
        for name in names[first:] + names[:first]:
            values[name].append(subjects[name]())
            print(f"round {nth} of {rounds}, {name}: {json.dumps(values[name][-1])}", file=sys.stderr, flush=True)
    return values


def share(measured, which, of):
    """What one of those that `each_round` called measured, as a part of another one's: the median of each round's."""
    return median([one / other for one, other in zip(measured[which], measured[of], strict=True)])


def median(values):
    """Of numbers; of lists and dictionaries of numbers, for each place."""
    if isinstance(values[0], dict):
        return {key: median([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], (list, tuple)):
        return [median(list(each)) for each in zip(*values, strict=True)]
    return statistics.median(values) if isinstance(values[0], (int, float)) else values[0]
