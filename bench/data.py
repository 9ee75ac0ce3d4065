#!/usr/bin/env python3
"""Samples per second through the data plug-ins, beside PyTorch's DataLoader.

    bench/data.py [--data DIR] [--python PYTHON] [--rounds 5] [--steps 0]
    bench/data.py --kinds images,csv,text,criteo,npy,parquet [--python PYTHON] [--rounds 5]

MNIST's training images in batches of 32, or made-up files of some kinds in batches of 64: shuffled, made ready for a model,
and nothing done with them. The PyTorch that reads images needs torchvision, and the one that reads Parquet pyarrow.
"""
import tempfile
from pathlib import Path

from side_by_side import (ROOT, arguments, bench, check, fail, in_turns, output, peer, peer_command, peer_environment,
                          settings)
from report import ratio, table

JOB = ROOT / "jobs/mnist_ps.toml"

# What a job says of each kind: its modules' input and first layer, and its data.
KINDS = {
    "images": ("input = [3, 64, 64]", '"flatten"', """normalize = { scale = 255.0 }
plugin = "images"
train = { folder = "train", resize = 72, crop = 64, random_crop = true, flip = true }"""),
    "csv": ("input = [20]", '"relu"', """plugin = "csv"
train = { file = "train.csv", target = "y" }"""),
    "text": ('input = [128]\ninput_dtype = "int64"', '{ type = "embedding", num_embeddings = 256, embedding_dim = 1 }',
             """plugin = "text"
train = { file = "train.txt", length = 128 }"""),
    "criteo": ("input = [13]", '"relu"', """plugin = "criteo"
target = "click"
train = { file = "train.tsv", rows = 100_000 }"""),
    "npy": ("input = [784]", '"relu"', """plugin = "npy"
train = { file = ["x.npy", "y.npy"] }"""),
    "parquet": ("input = [20]", '"relu"', """plugin = "parquet"
train = { file = "train.parquet", fields = [{ name = "x", columns = [COLUMNS] }, { name = "y", columns = "y" }] }""".replace(
        "COLUMNS", ", ".join(f'"x{column}"' for column in range(20)))),
}
# Images are decoded in the first pass and kept for the others.
ROWS = {"images": ("images", 1), "images, ten passes": ("images", 10), "csv": ("csv", 1), "text": ("text", 1),
        "criteo": ("criteo", 1), "npy": ("npy", 1), "parquet": ("parquet", 1)}


def job(kind, folder, passes):
    shape, layer, data = KINDS[kind]
    file = folder / f"{kind}{passes}.toml"
    file.write_text(f"""name = "{kind}"
[roles]
trainer = 1
[modules.net]
place = "trainer"
{shape}
layers = [{layer}]
[data]
root = "{folder / kind}"
{data}
[loss]
plugin = "mse"
[optimizer]
type = "sgd"
lr = 0.1
[train]
batch_size = 64
epochs = {passes}
""")
    return file


def mnist(args):
    subjects = {}
    for threads in (1, 2):
        values = settings([f"data.root={args.data}", f"data.threads={threads}"])
        subjects[f"`pstrain`, `data.threads` = {threads}"] = lambda values=values: bench(
            "data", JOB, "--steps", args.steps, *values)["samples_per_s"]
    for workers in (0, 2):
        subjects[f"PyTorch, {workers} workers"] = lambda workers=workers: peer(
            args.python, "torch_loader.py", "--data", args.data, "--workers", workers, "--steps",
            args.steps)["samples_per_s"]
    measured = in_turns(subjects, args.rounds)
    best = max(rate for name, rate in measured.items() if name.startswith("PyTorch"))
    return table(["", "samples/s", "of PyTorch's best"], [[name, rate, ratio(rate, best)] for name, rate in measured.items()])


def files(args, folder, kinds):
    rows = []
    for kind in kinds:
        (folder / kind).mkdir()
        output(*peer_command(args.python, "torch_files.py", kind, "--data", folder / kind, "--make"), env=peer_environment())
    for name, (kind, passes) in ROWS.items():
        if kind not in kinds:
            continue
        file, subjects = job(kind, folder, passes), {}
        for threads in (1, 2):
            values = settings([f"data.threads={threads}"])
            subjects[f"threads{threads}"] = lambda values=values: bench("data", file, *values)["samples_per_s"]
        for workers in (0, 1, 2):
            subjects[f"workers{workers}"] = lambda workers=workers: peer(
                args.python, "torch_files.py", kind, "--data", folder / kind, "--workers", workers, "--passes",
                passes)["samples_per_s"]
        rates = in_turns(subjects, args.rounds)
        ours, theirs = (max(rate for way, rate in rates.items() if way.startswith(ways)) for ways in ("threads", "workers"))
        rows.append([name, *rates.values(), ratio(ours, theirs)])
    heads = ["1 thread", "2 threads", "PyTorch, 0 workers", "1 worker", "2 workers", "best of best"]
    return table(["samples/s", *heads], rows)


def main():
    parser = arguments(__doc__)
    parser.add_argument("--steps", type=int, default=0, help="batches of MNIST; 0: all of one pass")
    parser.add_argument("--kinds", help=f"made-up files in place of MNIST: of {', '.join(KINDS)}")
    args = parser.parse_args()
    if not args.kinds:
        check(args)
        print(mnist(args))
        return
    del args.data
    check(args)
    kinds = args.kinds.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        fail(f"--kinds: there is no {unknown[0]}", f"there are {', '.join(KINDS)}")
    with tempfile.TemporaryDirectory() as folder:
        print(files(args, Path(folder), kinds))


if __name__ == "__main__":
    main()
