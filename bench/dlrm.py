#!/usr/bin/env python3
"""Steps per second of a DLRM: tables on servers, dense layers replicated on two trainers.

    bench/dlrm.py [--python PYTHON] [--rounds 5] [--steps 1000] [--servers 2] [--peer-steps 100]

A step of a trainer is a batch of 512 samples: 13 numbers, and an index into each of 26 tables of 100,000 rows of 16, drawn
evenly. Beside it, at the same shape, bench/peers/torch_dlrm.py: the hybrid of PyTorch's tutorials over RPC, one process with
the threads of this machine, and that with FBGEMM's tables where the Python has them (pip install fbgemm-gpu-cpu).
"""
import array
import os
import random
import subprocess
import tempfile
from pathlib import Path

from report import ratio, table
from side_by_side import arguments, in_turns, parse, peer, peer_environment, spawn

NUMBERS, BATCHES = 13, 50
JOB = """name = "bench"
[roles]
trainer = 2
server = {servers}
[modules.bottom]
from = "dense"
place = "trainer"
input = [{numbers}]
layers = [{{ type = "linear", in_features = {numbers}, out_features = 64 }}, "relu",
  {{ type = "linear", in_features = 64, out_features = {dim} }}, "relu"]
[modules.tables]
from = "ids"
place = "server"
shards = "{shards}"
input = [{columns}]
input_dtype = "int64"
layers = [{{ type = "embedding", num_embeddings = {rows}, embedding_dim = {dim} }}]
[modules.top]
from = ["bottom", "tables"]
place = "trainer"
layers = ["dot_interaction", {{ type = "linear", in_features = {features}, out_features = 64 }}, "relu",
  {{ type = "linear", in_features = 64, out_features = 1 }}]
[data]
plugin = "npy"
root = "{root}"
[data.train]
file = ["dense.npy", "ids.npy", "click.npy"]
[loss]
plugin = "bce_with_logits"
target = "click"
[optimizer]
type = "sgd"
lr = 0.05
[train]
epochs = 1000000
batch_size = {batch}
[log]
every = 100
"""


def write(path, kind, shape, values):
    """A .npy file (format 1.0) of little-endian values."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {tuple(shape)}, }}"
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + values.tobytes())


def write_samples(root, args):
    random.seed(0)
    count = BATCHES * args.batch
    write(root / "dense.npy", "<f4", [count, NUMBERS], array.array("f", (random.random() for _ in range(count * NUMBERS))))
    ids = array.array("q", (random.randrange(args.rows) for _ in range(count * args.columns)))
    write(root / "ids.npy", "<i8", [count, args.columns], ids)
    write(root / "click.npy", "<f4", [count, 1], array.array("f", (float(random.randrange(2)) for _ in range(count))))


def has_fbgemm(python):
    tried = subprocess.run([python, "-c", "import fbgemm_gpu"], env=peer_environment(), capture_output=True)
    return tried.returncode == 0


def main():
    parser = arguments(__doc__, data=False)
    parser.add_argument("--steps", type=int, default=1000, help="of each trainer")
    for name, default in (("columns", 26), ("rows", 100_000), ("dim", 16), ("batch", 512), ("servers", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--shards", default="rows", choices=["rows", "hash"])
    parser.add_argument("--peer-steps", type=int, default=100)
    args = parse(parser)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_samples(root, args)
        job = root / "bench.toml"
        pairs = (args.columns + 1) * args.columns // 2
        job.write_text(JOB.format(servers=args.servers, shards=args.shards, rows=[args.rows] * args.columns, dim=args.dim,
                                  columns=args.columns, batch=args.batch, numbers=NUMBERS, features=args.dim + pairs,
                                  root=root))
        shape = [part for name in ("columns", "rows", "dim", "batch", "servers") for part in (f"--{name}", getattr(args, name))]
        shape += ["--steps", args.peer_steps]
        alone = [*shape, "--threads", os.cpu_count()]
        # Steps of both trainers together.
        subjects = {
            "`pstrain`": lambda: spawn(job, 2 + args.servers, [f"train.steps={args.steps}"])["steps_per_s"],
            "PyTorch, hybrid over RPC": lambda: peer(args.python, "torch_dlrm.py", "hybrid", *shape),
            "PyTorch, one process": lambda: peer(args.python, "torch_dlrm.py", "one", *alone),
        }
        if has_fbgemm(args.python):
            subjects["one process, FBGEMM's tables"] = lambda: peer(args.python, "torch_dlrm.py", "fbgemm", *alone)
        rates = in_turns(subjects, args.rounds)
    hybrid = rates["PyTorch, hybrid over RPC"]
    rows = [[name, rate, rate * args.batch, ratio(rate, hybrid)] for name, rate in rates.items()]
    print(table(["", "steps/s", "samples/s", "of PyTorch's hybrid"], rows))


if __name__ == "__main__":
    main()
