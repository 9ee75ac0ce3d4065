#!/usr/bin/env python3
"""A DataLoader over files of one kind, measured: batches of 64, shuffled, nothing done with them.

    python torch_files.py images --data FOLDER --make        # writes made-up files
    python torch_files.py images --data FOLDER --workers 2

Reads them as PyTorch's users do: torchvision's ImageFolder; arrays of NumPy that hold a table, a click log, a text or the columns
that pyarrow has read; files of NumPy as they lie on the disk. Prints JSON: samples per second over the passes, without the first 20 batches.
"""
import argparse
import json
import pathlib
import time

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

BATCH, WARM_UP = 64, 20
SIZES = {"images": 2_000, "csv": 200_000, "text": 4_000_000, "criteo": 100_000, "npy": 20_000, "parquet": 200_000}
LENGTH = 128


def make_images(folder, count, random):
    from PIL import Image

    y, x = np.mgrid[0:120, 0:160]
    for number in range(count):
        phase = random.uniform(0, 9, 3)
        waves = [128 + 100 * np.sin(x / (9 + c) + y / (13 - c) + phase[c]) for c in range(3)]
        pixels = np.stack(waves, -1) + random.normal(0, 8, (120, 160, 3))
        place = folder / "train" / f"class{number % 10}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(place / f"{number:05}.jpg", quality=90)


def make_csv(folder, count, random):
    header = ",".join([f"x{column}" for column in range(20)] + ["y"])
    np.savetxt(folder / "train.csv", random.normal(size=(count, 21)), "%.5f", ",", header=header, comments="")


def make_text(folder, count, random):
    (folder / "train.txt").write_bytes(random.integers(32, 127, count, dtype=np.uint8).tobytes())


def make_criteo(folder, count, random):
    dense, categories = random.integers(-2, 1000, (count, 13)), random.integers(0, 1 << 32, (count, 26))
    with open(folder / "train.tsv", "w") as file:
        for row in range(count):
            cells = [str(row % 2), *map(str, dense[row]), *(f"{category:08x}" for category in categories[row])]
            file.write("\t".join(cells) + "\n")


def make_npy(folder, count, random):
    np.save(folder / "x.npy", random.normal(size=(count, 784)).astype(np.float32))
    np.save(folder / "y.npy", random.integers(0, 10, count))


def make_parquet(folder, count, random):
    import pyarrow as pa
    from pyarrow.parquet import write_table

    columns = {f"x{column}": random.normal(size=count).astype(np.float32) for column in range(20)}
    write_table(pa.table(columns | {"y": random.normal(size=count).astype(np.float32)}), folder / "train.parquet",
                row_group_size=50_000)


class Arrays(Dataset):
    """Fields of which each sample is a row."""

    def __init__(self, *fields):
        self.fields = fields

    def __len__(self):
        return len(self.fields[0])

    def __getitem__(self, index):
        return tuple(torch.as_tensor(np.array(field[index])) for field in self.fields)


class Windows(Dataset):
    def __init__(self, text):
        self.text = text

    def __len__(self):
        return (len(self.text) - 1) // LENGTH

    def __getitem__(self, index):
        window = torch.from_numpy(self.text[index * LENGTH : (index + 1) * LENGTH + 1].astype(np.int64))
        return window[:-1], window[1:]


def read_images(folder):
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import Compose, RandomCrop, RandomHorizontalFlip, Resize, ToTensor

    return ImageFolder(folder / "train", Compose([Resize(72), RandomCrop(64), RandomHorizontalFlip(), ToTensor()]))


def read_csv(folder):
    table = np.loadtxt(folder / "train.csv", np.float32, delimiter=",", skiprows=1)
    return Arrays(table[:, :-1], table[:, -1])


def read_text(folder):
    return Windows(np.fromfile(folder / "train.txt", np.uint8))


def read_criteo(folder):
    rows = [line.rstrip("\n").split("\t") for line in open(folder / "train.tsv")]
    dense = np.array([[max(int(cell or 0), 0) for cell in row[1:14]] for row in rows], np.float32)
    categories = np.array([[int(cell or "0", 16) % 100_000 for cell in row[14:]] for row in rows])
    clicks = np.array([[float(row[0])] for row in rows], np.float32)
    return Arrays(np.log1p(dense), categories, clicks)


def read_npy(folder):
    return Arrays(*(np.load(folder / name, mmap_mode="r") for name in ("x.npy", "y.npy")))


def read_parquet(folder):
    from pyarrow.parquet import read_table

    table = read_table(folder / "train.parquet")
    columns = [table[name].to_numpy() for name in table.column_names]
    return Arrays(np.stack(columns[:-1], -1), columns[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=SIZES)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder of the files")
    parser.add_argument("--make", action="store_true", help="write them")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--passes", type=int, default=1)
    args = parser.parse_args()
    if args.make:
        globals()[f"make_{args.kind}"](args.data, SIZES[args.kind], np.random.default_rng(7))
        return
    samples, step, begun = 0, 0, time.perf_counter()
    keeps = args.workers > 0
    loader = DataLoader(globals()[f"read_{args.kind}"](args.data), BATCH, shuffle=True, num_workers=args.workers,
                        persistent_workers=keeps)
    for _ in range(args.passes):
        for first, *_ in loader:
            if step == WARM_UP:
                samples, begun = 0, time.perf_counter()
            samples += len(first) if step >= WARM_UP else 0
            step += 1
    print(json.dumps({"workers": args.workers, "samples_per_s": samples / (time.perf_counter() - begun)}))


if __name__ == "__main__":
    main()
