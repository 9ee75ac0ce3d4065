"""PyTorch's figures for every layer: initial parameters, forward, gradients, running statistics.

    python3 -m venv env && env/bin/pip install torch==2.11.0 numpy safetensors
    env/bin/python tests/data/layers.py

writes layers.safetensors, layers.json and conv_net.json beside this file. Each case of CASES stands in
tests/it/model/layers/cases.rs under the same name, and builds the same layers there.
"""

import json
from collections import OrderedDict
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

HERE = Path(__file__).parent
SEED = 20


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


class Sequence(nn.LSTM):
    def forward(self, x):
        return super().forward(x)[0]


class Last(nn.LSTM):
    """The state after the last step; of both directions side by side."""

    def forward(self, x):
        _, (h, _) = super().forward(x)
        directions = 2 if self.bidirectional else 1
        return torch.cat(list(h[-directions:]), dim=1)


class Attention(nn.MultiheadAttention):
    def __init__(self, *args, causal=False, **options):
        super().__init__(*args, **options)
        self.causal = causal

    def forward(self, x):
        length = x.size(1 if self.batch_first else 0)
        mask = nn.Transformer.generate_square_subsequent_mask(length) if self.causal else None
        return super().forward(x, x, x, attn_mask=mask, need_weights=False, is_causal=self.causal)[0]


class Reshape(nn.Module):
    def __init__(self, *shape):
        super().__init__()
        self.shape = shape

    def forward(self, x):
        return x.reshape(x.size(0), *self.shape)


def ints(high, *shape):
    return lambda: [torch.randint(0, high, shape)]


def bags(high, count, offsets):
    return lambda: [torch.randint(0, high, (count,)), torch.tensor(offsets)]


class PaddedBag(nn.EmbeddingBag):
    """Over the last dimension, in which a negative index is an empty place; by PyTorch's own offsets."""

    def forward(self, x):
        bags = [bag[bag >= 0] for bag in x.reshape(-1, x.size(-1))]
        offsets = torch.tensor([0] + [len(bag) for bag in bags[:-1]]).cumsum(0)
        return super().forward(torch.cat(bags), offsets).reshape(*x.shape[:-1], -1)


def padded(high, *shape):
    """The second bag is empty, the others lose their last places, or one in their middle."""

    def draw():
        x = torch.randint(0, high, shape)
        rows = x.view(-1, shape[-1])
        rows[0, 3:], rows[1], rows[2, 1] = -1, -1, -7
        return [x]

    return draw


def floats(*shape):
    return lambda: [torch.randn(shape)]


# name: (layers, inputs, whether it trains)
CASES = {
    "linear": (lambda: [nn.Linear(5, 3)], floats(4, 5), False),
    "linear_no_bias": (lambda: [nn.Linear(5, 3, bias=False)], floats(4, 2, 5), False),
    "conv1d": (lambda: [nn.Conv1d(3, 4, 3)], floats(2, 3, 8), False),
    "conv1d_options": (
        lambda: [nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2, bias=False)],
        floats(2, 4, 9),
        False,
    ),
    "conv2d": (lambda: [nn.Conv2d(2, 3, 3)], floats(2, 2, 6, 6), False),
    "conv2d_options": (
        lambda: [nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(2, 1), dilation=(2, 3), groups=2, bias=False)],
        floats(2, 4, 9, 8),
        False,
    ),
    "embedding": (lambda: [nn.Embedding(7, 3)], ints(7, 4, 5), False),
    "embedding_padding": (lambda: [nn.Embedding(7, 3, padding_idx=2)], ints(7, 4, 5), False),
    "embedding_sparse": (lambda: [nn.Embedding(7, 3, sparse=True)], ints(7, 4, 5), False),
    "bag_sum": (lambda: [nn.EmbeddingBag(9, 3, mode="sum")], ints(9, 4, 5), False),
    "bag_mean": (lambda: [nn.EmbeddingBag(9, 3, mode="mean")], ints(9, 4, 5), False),
    "bag_max": (lambda: [nn.EmbeddingBag(9, 3, mode="max")], ints(9, 4, 5), False),
    "bag_sum_sparse": (lambda: [nn.EmbeddingBag(9, 3, mode="sum", sparse=True)], ints(9, 4, 5), False),
    # The third bag is empty.
    "bag_offsets": (lambda: [nn.EmbeddingBag(9, 3, mode="sum")], bags(9, 10, [0, 3, 7, 7]), False),
    "bag_last_offset": (
        lambda: [nn.EmbeddingBag(9, 3, mode="mean", include_last_offset=True)],
        bags(9, 10, [0, 3, 7, 10]),
        False,
    ),
    "bag_padded_sum": (lambda: [PaddedBag(9, 3, mode="sum")], padded(9, 4, 5), False),
    "bag_padded_mean": (lambda: [PaddedBag(9, 3, mode="mean")], padded(9, 4, 5), False),
    "bag_padded_max": (lambda: [PaddedBag(9, 3, mode="max")], padded(9, 4, 5), False),
    "bag_padded_sum_sparse": (lambda: [PaddedBag(9, 3, mode="sum", sparse=True)], padded(9, 4, 5), False),
    "bag_padded_mean_sparse": (lambda: [PaddedBag(9, 3, mode="mean", sparse=True)], padded(9, 4, 5), False),
    "bag_padded_nested": (lambda: [PaddedBag(9, 3, mode="mean")], padded(9, 2, 3, 5), False),
    "batch_norm1d": (lambda: [nn.BatchNorm1d(4)], floats(6, 4), True),
    "batch_norm1d_length": (lambda: [nn.BatchNorm1d(4, eps=1e-3, momentum=0.3)], floats(3, 4, 5), True),
    "batch_norm1d_eval": (lambda: [nn.BatchNorm1d(4)], floats(6, 4), False),
    "batch_norm2d": (lambda: [nn.BatchNorm2d(3)], floats(4, 3, 2, 5), True),
    "batch_norm2d_plain": (lambda: [nn.BatchNorm2d(3, affine=False)], floats(4, 3, 2, 5), True),
    "batch_norm2d_eval": (lambda: [nn.BatchNorm2d(3)], floats(4, 3, 2, 5), False),
    "batch_norm2d_untracked": (lambda: [nn.BatchNorm2d(3, track_running_stats=False)], floats(4, 3, 2, 5), False),
    "layer_norm": (lambda: [nn.LayerNorm(6)], floats(3, 2, 6), False),
    "layer_norm_2d": (lambda: [nn.LayerNorm([2, 6], eps=1e-2)], floats(3, 2, 6), False),
    "layer_norm_no_bias": (lambda: [nn.LayerNorm(6, bias=False)], floats(3, 6), False),
    "layer_norm_plain": (lambda: [nn.LayerNorm(6, elementwise_affine=False)], floats(3, 6), False),
    "group_norm": (lambda: [nn.GroupNorm(2, 6)], floats(3, 6, 4), False),
    "group_norm_plain": (lambda: [nn.GroupNorm(3, 6, eps=1e-2, affine=False)], floats(3, 6, 2, 2), False),
    "relu": (lambda: [nn.ReLU()], floats(4, 5), False),
    "gelu": (lambda: [nn.GELU()], floats(4, 5), False),
    "gelu_tanh": (lambda: [nn.GELU("tanh")], floats(4, 5), False),
    "silu": (lambda: [nn.SiLU()], floats(4, 5), False),
    "tanh": (lambda: [nn.Tanh()], floats(4, 5), False),
    "sigmoid": (lambda: [nn.Sigmoid()], floats(4, 5), False),
    "softmax": (lambda: [nn.Softmax(1)], floats(4, 5, 2), False),
    "softmax_last": (lambda: [nn.Softmax(-1)], floats(4, 5, 2), False),
    "log_softmax": (lambda: [nn.LogSoftmax(1)], floats(4, 5), False),
    "max_pool2d": (lambda: [nn.MaxPool2d(2)], floats(2, 3, 6, 7), False),
    "max_pool2d_options": (
        lambda: [nn.MaxPool2d((3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), ceil_mode=True)],
        floats(2, 3, 8, 7),
        False,
    ),
    "avg_pool2d": (lambda: [nn.AvgPool2d(2)], floats(2, 3, 6, 7), False),
    "avg_pool2d_options": (
        lambda: [nn.AvgPool2d((3, 2), stride=(2, 1), padding=(1, 1), ceil_mode=True, count_include_pad=False)],
        floats(2, 3, 8, 7),
        False,
    ),
    "avg_pool2d_padded": (lambda: [nn.AvgPool2d(3, stride=2, padding=1)], floats(2, 3, 8, 7), False),
    "adaptive_avg_pool2d": (lambda: [nn.AdaptiveAvgPool2d((3, 2))], floats(2, 3, 8, 7), False),
    "adaptive_avg_pool2d_one": (lambda: [nn.AdaptiveAvgPool2d(1)], floats(2, 3, 8, 7), False),
    "dropout_eval": (lambda: [nn.Dropout(0.5), nn.Dropout2d(0.5)], floats(2, 3, 4, 4), False),
    "dropout_all": (lambda: [nn.Dropout(1.0)], floats(2, 3), True),
    "dropout_none": (lambda: [nn.Dropout(0.0), nn.Dropout2d(0.0)], floats(2, 3, 4, 4), True),
    "flatten": (lambda: [nn.Flatten()], floats(2, 3, 4, 4), False),
    "flatten_part": (lambda: [nn.Flatten(1, 2)], floats(2, 3, 4, 5), False),
    "reshape": (lambda: [Reshape(4, -1)], floats(2, 3, 4, 5), False),
    "residual": (
        lambda: [Residual(OrderedDict(up=nn.Linear(4, 6), act=nn.ReLU(), down=nn.Linear(6, 4))), nn.Tanh()],
        floats(3, 4),
        False,
    ),
    "residual_nested": (
        lambda: [Residual(nn.ReLU(), Residual(nn.Linear(4, 4), nn.ReLU()), nn.LayerNorm(4)), nn.Linear(4, 2)],
        floats(3, 4),
        False,
    ),
    # ReLU behind each layer that lets it write in place.
    "relu_in_place": (
        lambda: [nn.Conv1d(2, 3, 2), nn.ReLU(), nn.BatchNorm1d(3), nn.ReLU(), nn.GroupNorm(1, 3), nn.ReLU(),
                 nn.LayerNorm(4), nn.ReLU(), nn.Linear(4, 3), nn.ReLU()],
        floats(3, 2, 5),
        True,
    ),
    "lstm": (lambda: [Sequence(3, 4)], floats(5, 2, 3), False),
    "lstm_batch_first": (lambda: [Sequence(3, 4, batch_first=True)], floats(2, 5, 3), False),
    "lstm_last": (lambda: [Last(3, 4, batch_first=True)], floats(2, 5, 3), False),
    "lstm_deep": (
        lambda: [Sequence(3, 4, num_layers=2, bidirectional=True, batch_first=True)],
        floats(2, 5, 3),
        False,
    ),
    "lstm_deep_last": (lambda: [Last(3, 4, num_layers=2, bidirectional=True)], floats(5, 2, 3), False),
    "lstm_no_bias": (lambda: [Sequence(3, 4, num_layers=2, bias=False)], floats(5, 2, 3), False),
    # Dropping everything between the layers leaves nothing to chance.
    "lstm_dropout_all": (
        lambda: [Sequence(3, 4, num_layers=3, dropout=1.0, bidirectional=True, batch_first=True)],
        floats(2, 5, 3),
        True,
    ),
    "attention": (lambda: [Attention(8, 2, batch_first=True)], floats(2, 5, 8), False),
    "attention_length_first": (lambda: [Attention(8, 4, bias=False)], floats(5, 2, 8), False),
    "attention_causal": (lambda: [Attention(8, 2, batch_first=True, causal=True)], floats(2, 5, 8), False),
    "attention_dropout_all": (lambda: [Attention(8, 2, dropout=1.0, batch_first=True)], floats(2, 5, 8), True),
}


def case(name, make, inputs, train):
    tensors, out = {}, {}
    torch.manual_seed(SEED)
    model = nn.Sequential(*make())
    for key, value in model.named_parameters():
        tensors[f"init/{key}"] = value.detach().clone()
    torch.manual_seed(sum(name.encode()))
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value), alpha=0.3)
        for key, value in model.named_buffers():
            if value.is_floating_point():
                value.add_(torch.rand_like(value))
    for key, value in model.named_parameters():
        tensors[f"param/{key}"] = value.detach().clone()
    for key, value in model.named_buffers():
        tensors[f"buffer/{key}"] = value.clone()
    model.train(train)
    inputs = inputs()
    for at, value in enumerate(inputs):
        tensors[f"input/{at}"] = value.detach().clone()
        if value.is_floating_point():
            value.requires_grad_()
    y = model[1:](model[0](*inputs))
    grad = torch.randn_like(y)
    tensors["output"], tensors["grad_output"] = y.detach().clone(), grad
    if y.requires_grad:
        y.backward(grad)
    for key, value in model.named_parameters():
        given = torch.zeros_like(value) if value.grad is None else value.grad.to_dense()
        tensors[f"grad/{key}"] = given
    if inputs[0].is_floating_point():
        tensors["grad_input"] = inputs[0].grad
    for key, value in model.named_buffers():
        tensors[f"after/{key}"] = value.clone()
    out["parameters"] = [[key, list(value.shape)] for key, value in model.named_parameters()]
    out["buffers"] = [[key, list(value.shape)] for key, value in model.named_buffers()]
    out["train"] = train
    return {f"{name}/{key}": value.clone(memory_format=torch.contiguous_format) for key, value in tensors.items()}, out


class ConvNet(nn.Module):
    """The network of the parameter server tutorial."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = torch.flatten(F.max_pool2d(x, 2), 1)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


def conv_net(steps=10):
    """Losses and norms of SGD from the seed's own weights, dropout off."""
    torch.manual_seed(SEED)
    model = ConvNet()
    named = list(model.named_parameters())
    first = {key: [value.sum().item(), value.norm().item()] for key, value in named}
    x = (torch.arange(8 * 28 * 28, dtype=torch.float32) * 0.37).sin().reshape(8, 1, 28, 28)
    target = torch.arange(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    losses, gradients = [], None
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.nll_loss(model(x), target)
        loss.backward()
        if gradients is None:
            gradients = {key: [value.grad.sum().item(), value.grad.norm().item()] for key, value in named}
        optimizer.step()
        losses.append(loss.item())
    last = {key: [value.sum().item(), value.norm().item()] for key, value in named}
    return {
        "parameters": [[key, list(value.shape)] for key, value in named],
        "seed": SEED,
        "first": first,
        "gradients": gradients,
        "losses": losses,
        "last": last,
    }


def main():
    torch.set_num_threads(1)
    tensors, names = {}, {}
    for name, (make, inputs, train) in CASES.items():
        figures, names[name] = case(name, make, inputs, train)
        tensors.update(figures)
    save_file(tensors, HERE / "layers.safetensors")
    (HERE / "layers.json").write_text(json.dumps({"seed": SEED, "cases": names}, indent=1) + "\n")
    (HERE / "conv_net.json").write_text(json.dumps(conv_net(), indent=1) + "\n")


if __name__ == "__main__":
    main()
