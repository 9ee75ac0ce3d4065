#!/usr/bin/env python3
"""Look-ups and updates per second of an embedding table on a server, two trainers with a replicated dense layer.

    bench/recommender.py [--python PYTHON] [--rounds 5] [--steps 1000] [--servers 1] [--peer-steps 200]

A step of a trainer looks up the rows of 512 ids (64 bags of 8, drawn evenly from all rows), and updates them. Beside it,
at the same shape, the hybrid of PyTorch's tutorial: bench/peers/torch_hybrid.py.
"""
import random
import struct
import tempfile
from pathlib import Path

from side_by_side import arguments, in_turns, parse, peer, spawn
from report import ratio, table

BAGS, LENGTH, CLASSES = 64, 8, 8
JOB = """name = "bench"
[roles]
trainer = 2
server = {servers}
[modules.emb]
place = "server"
shards = "{shards}"
input = [{length}]
input_dtype = "int64"
layers = [{{ type = "embedding_bag", num_embeddings = {rows}, embedding_dim = {dim}, mode = "sum" }}]
[modules.fc]
place = "trainer"
layers = [{{ type = "linear", in_features = {dim}, out_features = {classes} }}]
[data]
plugin = "idx"
root = "{root}"
[data.train]
images = "ids"
labels = "classes"
[loss]
plugin = "cross_entropy"
[optimizer]
type = "{optimizer}"
lr = 0.05
[train]
forward = ["emb", "fc"]
epochs = 1000000
batch_size = {bags}
[log]
every = 100
"""


def write(root, rows, batches):
    """IDX files of ids, int32 [samples, LENGTH], and of classes."""
    random.seed(0)
    samples = batches * BAGS
    ids = [random.randrange(rows) for _ in range(samples * LENGTH)]
    (root / "ids").write_bytes(struct.pack(">4BII", 0, 0, 0x0C, 2, samples, LENGTH) + struct.pack(f">{len(ids)}i", *ids))
    classes = bytes(random.randrange(CLASSES) for _ in range(samples))
    (root / "classes").write_bytes(struct.pack(">4BI", 0, 0, 0x08, 1, samples) + classes)


def main():
    parser = arguments(__doc__, data=False)
    parser.add_argument("--steps", type=int, default=1000, help="of each trainer")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--shards", default="rows", choices=["rows", "hash"])
    parser.add_argument("--optimizer", default="sgd", choices=["sgd", "adagrad"])
    parser.add_argument("--peer-steps", type=int, default=200)
    args = parse(parser)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root, args.rows, 400)
        job = root / "bench.toml"
        job.write_text(JOB.format(servers=args.servers, shards=args.shards, rows=args.rows, dim=args.dim, root=root,
                                  optimizer=args.optimizer, length=LENGTH, classes=CLASSES, bags=BAGS))
        options = {"rows": args.rows, "dim": args.dim, "bags": BAGS, "length": LENGTH, "classes": CLASSES,
                   "optimizer": args.optimizer, "steps": args.peer_steps}
        given = [part for name, value in options.items() for part in (f"--{name}", value)]
        # Steps of both trainers together.
        ours, theirs = in_turns({
            "pstrain": lambda: spawn(job, 2 + args.servers, [f"train.steps={args.steps}"])["steps_per_s"],
            "PyTorch": lambda: peer(args.python, "torch_hybrid.py", *given),
        }, args.rounds).values()
    rows = [[name, rate, rate * BAGS * LENGTH, ratio(rate, theirs)]
            for name, rate in (("`pstrain`", ours), ("PyTorch", theirs))]
    print(table(["", "steps/s", "look-ups/s, and as many updates/s", "of PyTorch's"], rows))


if __name__ == "__main__":
    main()
