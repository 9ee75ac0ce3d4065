"""The model and the batches of tests/it/small_model.rs, for PyTorch."""

import torch
import torch.nn.functional as F

SHAPES = [(24, 6), (24,), (24, 24), (24,), (3, 24), (3,)]


def numbers(shape, seed):
    count = torch.Size(shape).numel()
    at = torch.arange(count, dtype=torch.float64) + (1000 * seed + 1)
    return ((at * 12.9898).sin() * 43758.5453).frac().to(torch.float32).view(shape)


class Mlp(torch.nn.Module):
    def __init__(self, seed):
        super().__init__()
        self.list = torch.nn.ParameterList(
            torch.nn.Parameter(numbers(shape, seed + i) * 0.5) for i, shape in enumerate(SHAPES)
        )

    def forward(self, x):
        w1, b1, w2, b2, w3, b3 = self.list
        return F.linear(F.linear(F.linear(x, w1, b1).tanh(), w2, b2).tanh(), w3, b3)


def batch(step, rows, rank, size):
    x, y = numbers((rows, 6), 100 + step), numbers((rows, 3), 500 + step)
    return x.chunk(size)[rank], y.chunk(size)[rank]


def step_of(model, ddp, step, rows, rank, size):
    x, y = batch(step, rows, rank, size)
    model.zero_grad()
    F.mse_loss(ddp(x), y).backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= p.grad * 0.3
