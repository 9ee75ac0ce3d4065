"""The models of some jobs of `jobs/` as plain modules of PyTorch, whose state_dict has the names that a run saves.

    python3 -m venv env && env/bin/pip install torch==2.11.0 numpy safetensors
    env/bin/python tests/data/jobs.py

writes jobs.safetensors beside this file: what each model makes of a few made-up samples, with made-up parameters. Both follow
from names alone (`made`), and tests/it/graph/outputs.rs makes the same.

    env/bin/python tests/data/jobs.py compare JOB model.safetensors ours.safetensors

loads what a run of the job has saved, and compares outputs and loss with what pstrain made of the same samples: the file
`ours` has fields and outputs, and the loss of all of them. `make interop` does so for each job.
"""

import sys
import zlib
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

HERE = Path(__file__).parent
CLOSE = 1e-6


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


class Attention(nn.MultiheadAttention):
    """Causal, of a sequence to itself."""

    def __init__(self, size, heads):
        super().__init__(size, heads, batch_first=True)

    def forward(self, x):
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return super().forward(x, x, x, attn_mask=later, need_weights=False)[0]


class Places(nn.Embedding):
    def forward(self, x):
        return x + self.weight[: x.shape[1]]


class CharLm(nn.Sequential):
    fields, target = {"input": 256}, ("target", 256)

    def __init__(self):
        size = 96
        look = lambda: Residual(nn.LayerNorm(size), Attention(size, 4), nn.Dropout(0.1))
        think = lambda: Residual(
            nn.LayerNorm(size), nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size), nn.Dropout(0.1)
        )
        super().__init__(
            nn.Embedding(256, size), Places(64, size), look(), think(), look(), think(), look(), think(),
            nn.LayerNorm(size), nn.Linear(size, 256),
        )
        # As the job names them.
        self._modules = {{"0": "bytes", "1": "places", "9": "next"}.get(at, at): own for at, own in self._modules.items()}

    def forward(self, bytes):
        return super().forward(bytes).permute(0, 2, 1)

    samples = {"input": (2, 64)}
    loss = staticmethod(F.cross_entropy)


def conv(ins, outs, kernel, stride=1):
    return nn.Conv2d(ins, outs, kernel, stride, (kernel - 1) // 2, bias=False)


def two_convs(ins, outs, stride=1):
    return conv(ins, outs, 3, stride), nn.BatchNorm2d(outs), nn.ReLU(), conv(outs, outs, 3), nn.BatchNorm2d(outs)


class Sum(nn.Module):
    def forward(self, inputs):
        return sum(inputs)


class Images(nn.Module):
    """ResNet-18, as torchvision's (`resnet18(num_classes=10)`) under other names."""

    fields = {"images": None}

    def __init__(self):
        super().__init__()
        block = lambda size: (Residual(*two_convs(size, size)), nn.ReLU())
        self.layer1 = nn.Sequential(
            conv(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1), *block(64), *block(64)
        )
        for number, size in ((2, 128), (3, 256), (4, 512)):
            end = [nn.AdaptiveAvgPool2d(1), nn.Flatten()] if number == 4 else []
            setattr(self, f"layer{number}_long", nn.Sequential(*two_convs(size // 2, size, 2)))
            short = nn.Sequential(conv(size // 2, size, 1, 2), nn.BatchNorm2d(size))
            setattr(self, f"layer{number}_short", short)
            setattr(self, f"layer{number}", nn.Sequential(Sum(), nn.ReLU(), *block(size), *end))
        self.layer4.add_module("fc", nn.Linear(512, 10))

    def forward(self, images):
        x = self.layer1(images)
        for number in (2, 3, 4):
            ways = [getattr(self, f"layer{number}_{way}")(x) for way in ("long", "short")]
            x = getattr(self, f"layer{number}")(ways)
        return x

    samples = {"images": (3, 3, 32, 32)}
    target = ("labels", 10)
    loss = staticmethod(F.cross_entropy)


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        rows = lambda: nn.Sequential(nn.Identity(), nn.Embedding(10_200, 16))
        tower = lambda ids: nn.Sequential(nn.Flatten(), nn.Linear(16 * ids, 32), nn.ReLU(), nn.Linear(32, 16))
        self.user_rows, self.item_rows = rows(), rows()
        self.user, self.item = tower(1), tower(2)
        self.score = nn.Sequential(nn.Identity(), nn.Linear(16, 1))

    def forward(self, ids):
        return self.score(self.user(self.user_rows(ids[:, :1])) * self.item(self.item_rows(ids[:, 1:])))

    samples, fields, target = {"ids": (5, 3)}, {"ids": 10_200}, ("click", None)
    loss = staticmethod(F.binary_cross_entropy_with_logits)


class WideDeep(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Sequential(nn.EmbeddingBag(100_200, 1, mode="sum"))
        self.vectors = nn.Sequential(nn.Embedding(100_200, 16))
        self.deep = nn.Sequential(nn.Flatten(), nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids):
        return self.wide(ids) + self.deep(self.vectors(ids))

    samples, fields, target = {"ids": (5, 3)}, {"ids": 100_200}, ("click", None)
    loss = staticmethod(F.binary_cross_entropy_with_logits)


class Dlrm(nn.Module):
    rows = [
        1_000, 500, 100_000, 50_000, 300, 20, 10_000, 600, 3, 50_000, 5_000, 100_000, 3_000, 26, 10_000, 100_000, 10, 4_000,
        2_000, 4, 100_000, 18, 15, 50_000, 100, 30_000,
    ]

    def __init__(self):
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 16), nn.ReLU())
        self.tables = nn.ModuleList([nn.ModuleList(nn.Embedding(rows, 16) for rows in self.rows)])
        self.top = nn.Sequential(
            nn.Identity(), nn.Linear(16 + 27 * 26 // 2, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )

    def forward(self, dense, categories):
        dense = self.bottom(dense)
        vectors = [dense] + [table(categories[:, column]) for column, table in enumerate(self.tables[0])]
        vectors = torch.stack(vectors, dim=1)
        rows, columns = torch.tril_indices(27, 27, -1)
        products = (vectors @ vectors.transpose(1, 2))[:, rows, columns]
        return self.top(torch.cat([dense, products], dim=1))

    samples, target = {"dense": (5, 13), "categories": (5, 26)}, ("click", None)
    fields = {"dense": None, "categories": rows}
    loss = staticmethod(F.binary_cross_entropy_with_logits)


MODELS = {"char_lm": CharLm, "images": Images, "two_tower": TwoTower, "wide_deep": WideDeep, "dlrm": Dlrm}


def made(name, count):
    """Numbers from 0 to 1 that follow from a name."""
    state = (np.arange(count, dtype=np.uint64) * 1_103_515_245 + zlib.crc32(name.encode())) & 0xFFFFFFFF
    for shift in (15, 13):
        state = ((state ^ (state >> np.uint64(shift))) * 1_103_515_245) & 0xFFFFFFFF
    return state.astype(np.float64) / 2.0**32


def parameter(name, like):
    """A made-up one, near those of a trained model in size."""
    numbers = made(name, like.numel())
    if like.dim() > 1:
        numbers = (numbers - 0.5) * 3 / np.sqrt(like.numel() // like.shape[0])
    elif name.endswith(("weight", "running_var")):
        numbers = numbers + 0.5
    else:
        numbers = numbers - 0.5
    return torch.from_numpy(numbers.astype(np.float32)).reshape(like.shape)


def field(name, shape, below):
    """Ids below a number, or each below its column's, or numbers."""
    numbers = made(name, int(np.prod(shape))).reshape(shape)
    return torch.from_numpy(numbers.astype(np.float32) if below is None else (numbers * np.array(below)).astype(np.int64))


def figures():
    all = {}
    for job, make in MODELS.items():
        model = make().eval()
        state = {name: own if own.dim() == 0 else parameter(name, own) for name, own in model.state_dict().items()}
        model.load_state_dict(state)
        with torch.no_grad():
            output = model(*(field(name, shape, make.fields[name]) for name, shape in make.samples.items()))
        # Of a language model a part is enough.
        all[job] = output.flatten()[:: max(1, output.numel() // 2048)].clone()
    save_file(all, HERE / "jobs.safetensors")


def whole_tables(state, model):
    """Tables of which only some rows are saved, with the others left out as 0: no sample asks for them."""
    wanted = model.state_dict()
    for name in [name for name in state if name.endswith(".ids")]:
        weight = name.removesuffix("ids") + "weight"
        ids, rows = state.pop(name), state[weight]
        state[weight] = torch.zeros_like(wanted[weight]).index_copy(0, ids, rows)
    return state


def compare(job, saved, ours):
    make = MODELS[job]
    model = make().eval()
    model.load_state_dict(whole_tables(load_file(saved), model))
    ours = load_file(ours)
    with torch.no_grad():
        output = model(*(ours[name] for name in make.fields))
        loss = make.loss(output, ours[make.target[0]])
    off = (output - ours["output"]).abs().max().item() / max(1.0, output.abs().max().item())
    loss_off = abs(loss.item() - ours["loss"].item()) / max(1.0, abs(loss.item()))
    print(f"{job}: {len(output)} outputs differ by at most {off:.1e}, the loss {loss.item():.4f} by {loss_off:.1e}")
    sys.exit(0 if max(off, loss_off) <= CLOSE else 1)


def main():
    torch.set_num_threads(1)
    match sys.argv[1:]:
        case []:
            figures()
        case ["compare", job, saved, ours]:
            compare(job, saved, ours)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
