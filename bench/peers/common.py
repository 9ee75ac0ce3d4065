"""What the PyTorch programs share: models, MNIST, and what /proc says about a process."""
import gzip
import os
import resource
import socket
import struct
import time
from pathlib import Path

import torch
from torch import nn

MEAN, STD = 0.1307, 0.3081


def conv_net():
    """The ConvNet of PyTorch's parameter-server tutorial: as in jobs/mnist_ps.toml."""
    return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.MaxPool2d(2), nn.Dropout2d(0.25),
                         nn.Flatten(), nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10),
                         nn.LogSoftmax(dim=1))


def multilayer():
    """784-128-10, as in bench/jobs/mlp_ps.toml."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10), nn.LogSoftmax(dim=1))


MODELS = {"conv": conv_net, "mlp": multilayer}


def read_idx(folder, name):
    """An IDX file of bytes, plain or gzip, as a uint8 tensor."""
    plain, packed = Path(folder) / name, Path(folder) / f"{name}.gz"
    if plain.exists():
        content = plain.read_bytes()
    elif packed.exists():
        content = gzip.decompress(packed.read_bytes())
    else:
        raise SystemExit(f"error: {plain}: no such file, nor with .gz\n"
                         f"  hint: `pstrain data fetch mnist --to {folder}` gets MNIST")
    _, _, kind, dimensions = struct.unpack_from(">4B", content)
    if kind != 0x08:
        raise SystemExit(f"error: {plain}: elements of type {kind:#04x}, not bytes (0x08)")
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=4 + 4 * dimensions).reshape(shape)


def normalised(images):
    """Of bytes [samples, 28, 28], as torchvision's ToTensor and Normalize would have them."""
    return images.unsqueeze(1).float().div_(255).sub_(MEAN).div_(STD)


def batches(folder, size, part, parts):
    """Endless shuffled batches of one part of the training set. It is held as bytes."""
    images = read_idx(folder, "train-images-idx3-ubyte")
    classes = read_idx(folder, "train-labels-idx1-ubyte").long()
    own = torch.arange(part, len(images), parts)
    generator = torch.Generator().manual_seed(part)
    while True:
        order = own[torch.randperm(len(own), generator=generator)]
        for chosen in order.split(size):
            if len(chosen) == size:
                yield normalised(images[chosen]), classes[chosen]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def process_start():
    """When this process was started, on the clock of `since_boot`."""
    after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(after_name[19]) / os.sysconf("SC_CLK_TCK")


def since_boot():
    return time.clock_gettime(time.CLOCK_BOOTTIME)
