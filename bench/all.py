#!/usr/bin/env python3
"""All benchmarks; each writes its table into docs/performance.md, between its markers, and what is said around it stays.

    bench/all.py [--data DIR] [--python PYTHON] [--rounds 5] [--only rpc,ddp] [--quick]

Without --python a Python environment with PyTorch is made in .deps, once. It takes about an hour; `--quick`
tries everything with few steps, and prints the tables instead.
"""
import os
import platform
import subprocess
import sys
from typing import NamedTuple

from report import replaced
from side_by_side import PYTHON, ROOT, arguments, check, fail, output

DOCUMENT = ROOT / "docs/performance.md"


class Benchmark(NamedTuple):
    script: str
    options: str = ""  # those that are written down with the table
    quick: str = ""    # those of `--quick`, in their place
    data: bool = True  # needs MNIST


BENCHMARKS = {
    "parameter_server": Benchmark("parameter_server.py", quick="--scale 0.1"),
    "rpc": Benchmark("rpc.py", quick="--sizes 4K,1M", data=False),
    "ddp": Benchmark("ddp.py", quick="--conv-steps 30 --mlp-steps 60"),
    "all_reduce": Benchmark("all_reduce.py", quick="--sizes 4K,64K", data=False),
    "recommender": Benchmark("recommender.py", "--steps 3000 --peer-steps 600", "--steps 100 --peer-steps 40", False),
    "dlrm": Benchmark("dlrm.py", quick="--steps 60 --peer-steps 40", data=False),
    "data": Benchmark("data.py", quick="--steps 60"),
    "files": Benchmark("data.py", "--kinds images,csv,text,criteo,npy,parquet", "--kinds text,npy", False),
    "stream": Benchmark("stream.py", quick="--megabytes 20 --steps 200", data=False),
    "models": Benchmark("models.py", quick="--scale 0.1", data=False),
    "checkpoints": Benchmark("checkpoints.py", "--steps 250", "--steps 20"),
    "memory": Benchmark("resources.py memory", quick="--steps 50"),
    "growth": Benchmark("resources.py growth", quick="--steps 2000"),
    "startup": Benchmark("resources.py startup"),
    "ranks": Benchmark("resources.py ranks", quick="--steps 3000 --world-sizes 2,8"),
}


def measured(benchmark, args):
    """What stands between the markers, or None where the benchmark failed."""
    options = benchmark.quick if args.quick else benchmark.options
    script, *words = f"{benchmark.script} {options}".split()
    given = ["--rounds", str(args.rounds), "--python", args.python]
    given += ["--data", str(args.data)] if benchmark.data else []
    done = subprocess.run([sys.executable, ROOT / "bench" / script, *words, *given], text=True, stdout=subprocess.PIPE)
    if done.returncode:
        return None
    command = " ".join(["bench/" + script, *words, "--rounds", str(args.rounds)])
    how = f"Medians of {args.rounds} interleaved rounds:" if args.rounds > 1 else "One round:"
    return f"\n{how}\n\n    {command}\n\n{done.stdout}"


def machine(python):
    system = platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    torch = output(python, "-c", "import torch; print(torch.__version__)").strip()
    return f"{os.cpu_count()} cores, {system}. The peers run on PyTorch {torch}."


def write(name, text):
    """Read again each time: others may have changed what is said around it."""
    try:
        DOCUMENT.write_text(replaced(DOCUMENT.read_text(), name, text))
    except KeyError:
        fail(f"{DOCUMENT}: not one place for `{name}`",
             f"it needs a line `<!-- bench: {name} -->`, and after it `<!-- end -->`")


def main():
    parser = arguments(__doc__)
    parser.add_argument("--only", type=lambda names: names.split(","), default=list(BENCHMARKS),
                        help="some of " + ", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="one round of few steps; prints the tables, writes nothing")
    args = parser.parse_args()
    unknown = set(args.only) - set(BENCHMARKS)
    if unknown:
        fail(f"--only: no benchmark {', '.join(sorted(unknown))}", "there are " + ", ".join(BENCHMARKS))
    if args.python == PYTHON and subprocess.run([ROOT / "scripts/setup-interop"]).returncode:
        sys.exit(1)  # it has said why
    check(args)
    args.rounds = 1 if args.quick else args.rounds
    put = (lambda name, text: print(f"## {name}\n{text}", flush=True)) if args.quick else write
    failed = []
    for name in args.only:
        print(f"bench: {name}", file=sys.stderr, flush=True)
        text = measured(BENCHMARKS[name], args)
        if text is None:
            failed.append(name)
        else:
            put(name, text)
    if args.only == list(BENCHMARKS):
        put("machine", machine(args.python))
    if failed:
        fail(f"failed: {', '.join(failed)}", "the reasons are above; their tables are as they were. "
             f"`bench/all.py --only {','.join(failed)}` tries them again")


if __name__ == "__main__":
    main()
