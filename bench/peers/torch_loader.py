#!/usr/bin/env python3
"""A DataLoader over MNIST's IDX files, measured: batches of 32, shuffled, nothing done with them.

    python torch_loader.py --data DIR_WITH_MNIST --workers 0

Each sample is made as torchvision's MNIST with ToTensor and Normalize makes it: an image of PIL (without PIL, an array),
a tensor of floats, normalised. Prints JSON: samples per second over one pass, without the first 20 batches.
"""
import argparse
import json
import time

import torch
from torch.utils.data import DataLoader, Dataset

from common import MEAN, STD, read_idx

try:
    from PIL import Image
except ImportError:
    Image = None

BATCH, WARM_UP = 32, 20


class Mnist(Dataset):
    def __init__(self, folder):
        self.images = read_idx(folder, "train-images-idx3-ubyte")
        self.classes = read_idx(folder, "train-labels-idx1-ubyte").long()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        array = self.images[index].numpy()
        image = torch.from_numpy(array.copy()) if Image is None else of_image(Image.fromarray(array))
        values = image.unsqueeze(0).to(torch.get_default_dtype()).div(255)
        mean, std = (torch.tensor([value]).view(-1, 1, 1) for value in (MEAN, STD))
        return values.clone().sub_(mean).div_(std), int(self.classes[index])


def of_image(image):
    flat = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return flat.view(image.height, image.width)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder with MNIST's IDX files")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0, help="batches; 0: all of one pass")
    args = parser.parse_args()
    samples = 0
    for step, (images, _) in enumerate(DataLoader(Mnist(args.data), BATCH, shuffle=True, num_workers=args.workers)):
        if step == WARM_UP:
            begun = time.perf_counter()
        samples += len(images) if step >= WARM_UP else 0
        if args.steps and step + 1 >= args.steps:
            break
    print(json.dumps({"workers": args.workers, "samples_per_s": samples / (time.perf_counter() - begun)}))


if __name__ == "__main__":
    main()
