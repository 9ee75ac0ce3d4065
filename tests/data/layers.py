"""PyTorch's figures for every layer: initial parameters, forward, gradients, running statistics.

    python3 -m venv env && env/bin/pip install torch==2.11.0 numpy safetensors
    env/bin/python tests/data/layers.py

writes into layers/ beside this file, for each group of CASES, GROUP.safetensors and GROUP.json (the layers as a job writes
them, the names and shapes of their parameters and buffers), and conv_net.json. With groups behind it, it writes these
only.
"""

import json
import sys
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


class Sequence(nn.Module):
    """The hidden states at every step, of an LSTM or GRU, whose parameters have their names."""

    def __init__(self, kind, *args, **options):
        super().__init__()
        inner = kind(*args, batch_first=True, **options)
        self.inner = [inner]
        for name, value in inner.named_parameters():
            self.register_parameter(name, value)

    def forward(self, x):
        return self.inner[0](x)[0]


class Last(Sequence):
    """The state after the last step; of both directions side by side."""

    def forward(self, x):
        _, h = self.inner[0](x)
        h = h[0] if isinstance(h, tuple) else h
        directions = 2 if self.inner[0].bidirectional else 1
        return torch.cat(list(h[-directions:]), dim=1)


class Attention(nn.MultiheadAttention):
    def __init__(self, *args, causal=False, **options):
        super().__init__(*args, batch_first=True, **options)
        self.causal = causal

    def forward(self, x):
        length = x.size(1)
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


class PaddedBag(nn.EmbeddingBag):
    """Over the last dimension, in which -1 is an empty place; by PyTorch's own offsets."""

    def forward(self, x):
        bags = [bag[bag != -1] for bag in x.reshape(-1, x.size(-1))]
        offsets = torch.tensor([0] + [len(bag) for bag in bags[:-1]]).cumsum(0)
        return super().forward(torch.cat(bags), offsets).reshape(*x.shape[:-1], -1)


def padded(high, *shape):
    """The second bag is empty, the others lose their last places, or one in their middle."""

    def draw():
        x = torch.randint(0, high, shape)
        rows = x.view(-1, shape[-1])
        rows[0, 3:], rows[1], rows[2, 1] = -1, -1, -1
        return [x]

    return draw


class Columns(nn.ModuleList):
    """An embedding for each column of what comes."""

    def forward(self, *inputs):
        columns = [column for x in inputs for column in ([x] if x.dim() == 1 else x.unbind(-1))]
        return torch.stack([table(column) for table, column in zip(self, columns, strict=True)], -2)


class BagColumns(nn.ModuleList):
    """A bag for each column of what comes."""

    def forward(self, *inputs):
        columns = [column for x in inputs for column in ([x] if x.dim() == 2 else x.unbind(-2))]
        return torch.stack([table(column) for table, column in zip(self, columns, strict=True)], -2)


class WeightedBag(nn.EmbeddingBag):
    """Bags in which -1 is an empty place, and the weights of their places."""

    def forward(self, x, weights):
        there = x.reshape(-1, x.size(-1)) != -1
        counts = there.sum(1)
        bags = super().forward(
            x[x != -1], counts.cumsum(0) - counts, per_sample_weights=weights[x != -1]
        )
        return bags.reshape(*x.shape[:-1], -1)


class WeightedBagColumns(nn.ModuleList):
    """A weighted bag for each column of what comes: indices, then weights."""

    def forward(self, *inputs):
        indices, weights = inputs[: len(inputs) // 2], inputs[len(inputs) // 2 :]

        def columns(parts):
            return [column for x in parts for column in ([x] if x.dim() == 2 else x.unbind(-2))]

        of_tables = zip(self, columns(indices), columns(weights), strict=True)
        return torch.stack([table(x, w) for table, x, w in of_tables], -2)


COLUMNS = [7, 3, 5]


def column_ints(*shape, first=0, last=len(COLUMNS)):
    """Indices below each column's rows, at the last dimension."""
    return torch.stack([torch.randint(0, rows, shape) for rows in COLUMNS[first:last]], -1)


def column_bags(*shape, first=0, last=len(COLUMNS)):
    """Bags below each column's rows, at the last dimension but one; the first sample's lose their last place."""
    bags = column_ints(*shape, first=first, last=last).transpose(-1, -2).contiguous()
    bags[0, ..., -1] = -1
    return bags


def floats(*shape):
    return lambda: [torch.randn(shape)]


def several(*shapes):
    return lambda: [torch.randn(shape) for shape in shapes]


class Narrow(nn.Module):
    def __init__(self, *where):
        super().__init__()
        self.where = where

    def forward(self, x):
        return x.narrow(*self.where)


class Concat(nn.Module):
    def __init__(self, dim=1):
        super().__init__()
        self.dim = dim

    def forward(self, *inputs):
        return torch.cat(inputs, self.dim)


class Add(nn.Module):
    def forward(self, *inputs):
        return sum(inputs)


class Mul(nn.Module):
    def forward(self, *inputs):
        return torch.stack(inputs).prod(0)


class DotInteraction(nn.Module):
    """DLRM's: a pair of vectors after the other, each with those before it."""

    def __init__(self, itself=False):
        super().__init__()
        self.itself = itself

    def forward(self, dense, *others):
        vectors = [dense]
        for other in others:
            vectors += [other] if other.dim() == 2 else list(other.unbind(1))
        dots = []
        for i, vector in enumerate(vectors):
            for before in vectors[: i + 1 if self.itself else i]:
                dots.append((vector * before).sum(1))
        return torch.cat([dense, torch.stack(dots, 1)], 1)


class Permute(nn.Module):
    def __init__(self, *dims):
        super().__init__()
        self.dims = dims

    def forward(self, x):
        return x.permute(self.dims)


class PositionalEmbedding(nn.Embedding):
    def forward(self, x):
        return x + super().forward(torch.arange(x.size(1)))


def with_zeros(*shape):
    return lambda: [torch.randn(shape).index_fill_(1, torch.tensor([0]), 0.0)]


# For each layer, cases by name: the layers as a job writes them, the same in PyTorch, inputs, whether it trains.
CASES = {
    "linear": {
        "linear": (
            '[{ type = "linear", in_features = 5, out_features = 3 }]',
            lambda: [nn.Linear(5, 3)],
            floats(4, 5),
            False,
        ),
        "linear_no_bias": (
            '[{ type = "linear", in_features = 5, out_features = 3, bias = false }]',
            lambda: [nn.Linear(5, 3, bias=False)],
            floats(4, 2, 5),
            False,
        ),
    },
    "conv1d": {
        "conv1d": (
            '[{ type = "conv1d", in_channels = 3, out_channels = 4, kernel_size = 3 }]',
            lambda: [nn.Conv1d(3, 4, 3)],
            floats(2, 3, 8),
            False,
        ),
        "conv1d_options": (
            '[{ type = "conv1d", in_channels = 4, out_channels = 6, kernel_size = 3, stride = 2, padding = 2, dilation = 2, groups = 2, bias = false }]',
            lambda: [nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2, bias=False)],
            floats(2, 4, 9),
            False,
        ),
    },
    "conv2d": {
        "conv2d": (
            '[{ type = "conv2d", in_channels = 2, out_channels = 3, kernel_size = 3 }]',
            lambda: [nn.Conv2d(2, 3, 3)],
            floats(2, 2, 6, 6),
            False,
        ),
        "conv2d_options": (
            '[{ type = "conv2d", in_channels = 4, out_channels = 6, kernel_size = [3, 2], stride = [2, 1], padding = [2, 1], dilation = [2, 3], groups = 2, bias = false }]',
            lambda: [nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(2, 1), dilation=(2, 3), groups=2, bias=False)],
            floats(2, 4, 9, 8),
            False,
        ),
        "conv2d_same": (
            '[{ type = "conv2d", in_channels = 2, out_channels = 3, kernel_size = 3, dilation = 2, padding = "same" }]',
            lambda: [nn.Conv2d(2, 3, 3, dilation=2, padding="same")],
            floats(2, 2, 6, 5),
            False,
        ),
    },
    "embedding": {
        "embedding": (
            '[{ type = "embedding", num_embeddings = 7, embedding_dim = 3 }]',
            lambda: [nn.Embedding(7, 3)],
            ints(7, 4, 5),
            False,
        ),
        "embedding_padding": (
            '[{ type = "embedding", num_embeddings = 7, embedding_dim = 3, padding_idx = 2 }]',
            lambda: [nn.Embedding(7, 3, padding_idx=2)],
            ints(7, 4, 5),
            False,
        ),
        "embedding_sparse": (
            '[{ type = "embedding", num_embeddings = 7, embedding_dim = 3, sparse = true }]',
            lambda: [nn.Embedding(7, 3, sparse=True)],
            ints(7, 4, 5),
            False,
        ),
        "embedding_columns": (
            '[{ type = "embedding", num_embeddings = [7, 3, 5], embedding_dim = 3 }]',
            lambda: [Columns(nn.Embedding(rows, 3) for rows in COLUMNS)],
            lambda: [column_ints(4)],
            False,
        ),
        "embedding_columns_of_steps": (
            '[{ type = "embedding", num_embeddings = [7, 3, 5], embedding_dim = 3, sparse = true }]',
            lambda: [Columns(nn.Embedding(rows, 3, sparse=True) for rows in COLUMNS)],
            lambda: [column_ints(4, 2)],
            False,
        ),
        "embedding_columns_of_fields": (
            '[{ type = "embedding", num_embeddings = [7, 3, 5], embedding_dim = 3 }, "relu"]',
            lambda: [Columns(nn.Embedding(rows, 3) for rows in COLUMNS), nn.ReLU()],
            lambda: [column_ints(6, last=2), column_ints(6, first=2).squeeze(1)],
            False,
        ),
    },
    "embedding_bag": {
        "bag_sum": (
            '[{ type = "embedding_bag", num_embeddings = 9, embedding_dim = 3, mode = "sum" }]',
            lambda: [nn.EmbeddingBag(9, 3, mode="sum")],
            ints(9, 4, 5),
            False,
        ),
        "bag_mean": (
            '[{ type = "embedding_bag", num_embeddings = 9, embedding_dim = 3 }]',
            lambda: [nn.EmbeddingBag(9, 3, mode="mean")],
            ints(9, 4, 5),
            False,
        ),
        "bag_max": (
            '[{ type = "embedding_bag", num_embeddings = 9, embedding_dim = 3, mode = "max" }]',
            lambda: [nn.EmbeddingBag(9, 3, mode="max")],
            ints(9, 4, 5),
            False,
        ),
        "bag_sum_sparse": (
            '[{ type = "embedding_bag", num_embeddings = 9, embedding_dim = 3, mode = "sum", sparse = true }]',
            lambda: [nn.EmbeddingBag(9, 3, mode="sum", sparse=True)],
            ints(9, 4, 5),
            False,
        ),
        "bag_columns_sum": (
            '[{ type = "embedding_bag", num_embeddings = [7, 3, 5], embedding_dim = 3, mode = "sum" }]',
            lambda: [BagColumns(PaddedBag(rows, 3, mode="sum") for rows in COLUMNS)],
            lambda: [column_bags(4, 5)],
            False,
        ),
        "bag_columns_mean_sparse": (
            '[{ type = "embedding_bag", num_embeddings = [7, 3, 5], embedding_dim = 3, sparse = true }]',
            lambda: [BagColumns(PaddedBag(rows, 3, mode="mean", sparse=True) for rows in COLUMNS)],
            lambda: [column_bags(4, 2, 5)],
            False,
        ),
        "bag_columns_of_fields": (
            '[{ type = "embedding_bag", num_embeddings = [7, 3, 5], embedding_dim = 3, mode = "max" }, "relu"]',
            lambda: [BagColumns(PaddedBag(rows, 3, mode="max") for rows in COLUMNS), nn.ReLU()],
            lambda: [column_bags(4, 2, last=1).squeeze(1), column_bags(4, 6, first=1)],
            False,
        ),
        "bag_weighted": (
            '[{ type = "embedding_bag", num_embeddings = 9, embedding_dim = 3, mode = "sum", per_sample_weights = true }]',
            lambda: [WeightedBag(9, 3, mode="sum")],
            lambda: [*padded(9, 4, 5)(), torch.randn(4, 5)],
            False,
        ),
        "bag_columns_weighted": (
            '[{ type = "embedding_bag", num_embeddings = [7, 3, 5], embedding_dim = 3, mode = "sum", per_sample_weights = true }, "relu"]',
            lambda: [WeightedBagColumns(WeightedBag(rows, 3, mode="sum") for rows in COLUMNS), nn.ReLU()],
            lambda: [column_bags(4, 5), torch.randn(4, 3, 5)],
            False,
        ),
        "bag_columns_of_fields_weighted": (
            '[{ type = "embedding_bag", num_embeddings = [7, 3, 5], embedding_dim = 3, mode = "sum", per_sample_weights = true }]',
            lambda: [WeightedBagColumns(WeightedBag(rows, 3, mode="sum") for rows in COLUMNS)],
            lambda: [column_bags(4, 2, last=1).squeeze(1), column_bags(4, 6, first=1), torch.randn(4, 2), torch.randn(4, 2, 6)],
            False,
        ),
        "bag_padded_sum": (
            '[{ type = "embedding_bag", num_embeddings = 9, embedding_dim = 3, mode = "sum" }]',
            lambda: [PaddedBag(9, 3, mode="sum")],
            padded(9, 4, 5),
            False,
        ),
        "bag_padded_mean": (
            '[{ type = "embedding_bag", num_embeddings = 9, embedding_dim = 3 }]',
            lambda: [PaddedBag(9, 3, mode="mean")],
            padded(9, 4, 5),
            False,
        ),
        "bag_padded_max": (
            '[{ type = "embedding_bag", num_embeddings = 9, embedding_dim = 3, mode = "max" }]',
            lambda: [PaddedBag(9, 3, mode="max")],
            padded(9, 4, 5),
            False,
        ),
        "bag_padded_sum_sparse": (
            '[{ type = "embedding_bag", num_embeddings = 9, embedding_dim = 3, mode = "sum", sparse = true }]',
            lambda: [PaddedBag(9, 3, mode="sum", sparse=True)],
            padded(9, 4, 5),
            False,
        ),
        "bag_padded_mean_sparse": (
            '[{ type = "embedding_bag", num_embeddings = 9, embedding_dim = 3, sparse = true }]',
            lambda: [PaddedBag(9, 3, mode="mean", sparse=True)],
            padded(9, 4, 5),
            False,
        ),
        "bag_padded_nested": (
            '[{ type = "embedding_bag", num_embeddings = 9, embedding_dim = 3 }]',
            lambda: [PaddedBag(9, 3, mode="mean")],
            padded(9, 2, 3, 5),
            False,
        ),
    },
    "batch_norm1d": {
        "batch_norm1d": (
            '[{ type = "batch_norm1d", num_features = 4 }]',
            lambda: [nn.BatchNorm1d(4)],
            floats(6, 4),
            True,
        ),
        "batch_norm1d_length": (
            '[{ type = "batch_norm1d", num_features = 4, eps = 1e-3, momentum = 0.3 }]',
            lambda: [nn.BatchNorm1d(4, eps=1e-3, momentum=0.3)],
            floats(3, 4, 5),
            True,
        ),
        "batch_norm1d_eval": (
            '[{ type = "batch_norm1d", num_features = 4 }]',
            lambda: [nn.BatchNorm1d(4)],
            floats(6, 4),
            False,
        ),
    },
    "batch_norm2d": {
        "batch_norm2d": (
            '[{ type = "batch_norm2d", num_features = 3 }]',
            lambda: [nn.BatchNorm2d(3)],
            floats(4, 3, 2, 5),
            True,
        ),
        "batch_norm2d_plain": (
            '[{ type = "batch_norm2d", num_features = 3, affine = false }]',
            lambda: [nn.BatchNorm2d(3, affine=False)],
            floats(4, 3, 2, 5),
            True,
        ),
        "batch_norm2d_eval": (
            '[{ type = "batch_norm2d", num_features = 3 }]',
            lambda: [nn.BatchNorm2d(3)],
            floats(4, 3, 2, 5),
            False,
        ),
        "batch_norm2d_untracked": (
            '[{ type = "batch_norm2d", num_features = 3, track_running_stats = false }]',
            lambda: [nn.BatchNorm2d(3, track_running_stats=False)],
            floats(4, 3, 2, 5),
            False,
        ),
    },
    "layer_norm": {
        "layer_norm": (
            '[{ type = "layer_norm", normalized_shape = 6 }]',
            lambda: [nn.LayerNorm(6)],
            floats(3, 2, 6),
            False,
        ),
        "layer_norm_2d": (
            '[{ type = "layer_norm", normalized_shape = [2, 6], eps = 1e-2 }]',
            lambda: [nn.LayerNorm([2, 6], eps=1e-2)],
            floats(3, 2, 6),
            False,
        ),
        "layer_norm_no_bias": (
            '[{ type = "layer_norm", normalized_shape = 6, bias = false }]',
            lambda: [nn.LayerNorm(6, bias=False)],
            floats(3, 6),
            False,
        ),
        "layer_norm_plain": (
            '[{ type = "layer_norm", normalized_shape = 6, elementwise_affine = false }]',
            lambda: [nn.LayerNorm(6, elementwise_affine=False)],
            floats(3, 6),
            False,
        ),
    },
    "group_norm": {
        "group_norm": (
            '[{ type = "group_norm", num_groups = 2, num_channels = 6 }]',
            lambda: [nn.GroupNorm(2, 6)],
            floats(3, 6, 4),
            False,
        ),
        "group_norm_plain": (
            '[{ type = "group_norm", num_groups = 3, num_channels = 6, eps = 1e-2, affine = false }]',
            lambda: [nn.GroupNorm(3, 6, eps=1e-2, affine=False)],
            floats(3, 6, 2, 2),
            False,
        ),
    },
    "relu": {
        "relu": (
            '["relu"]',
            lambda: [nn.ReLU()],
            floats(4, 5),
            False,
        ),
        # ReLU behind each layer that lets it write in place.
        "relu_in_place": (
            '[{ type = "conv1d", in_channels = 2, out_channels = 3, kernel_size = 2 }, "relu", { type = "batch_norm1d", num_features = 3 }, "relu", { type = "group_norm", num_groups = 1, num_channels = 3 }, "relu", { type = "layer_norm", normalized_shape = 8 }, "relu", { type = "linear", in_features = 8, out_features = 3 }, "relu"]',
            lambda: [nn.Conv1d(2, 3, 2), nn.ReLU(), nn.BatchNorm1d(3), nn.ReLU(), nn.GroupNorm(1, 3), nn.ReLU(), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3), nn.ReLU()],
            floats(4, 2, 9),
            True,
        ),
    },
    "silu": {
        "silu": (
            '["silu"]',
            lambda: [nn.SiLU()],
            floats(4, 5),
            False,
        ),
    },
    "tanh": {
        "tanh": (
            '["tanh"]',
            lambda: [nn.Tanh()],
            floats(4, 5),
            False,
        ),
    },
    "sigmoid": {
        "sigmoid": (
            '["sigmoid"]',
            lambda: [nn.Sigmoid()],
            floats(4, 5),
            False,
        ),
    },
    "gelu": {
        "gelu": (
            '["gelu"]',
            lambda: [nn.GELU()],
            floats(4, 5),
            False,
        ),
        "gelu_tanh": (
            '[{ type = "gelu", approximate = "tanh" }]',
            lambda: [nn.GELU("tanh")],
            floats(4, 5),
            False,
        ),
    },
    "softmax": {
        "softmax": (
            '[{ type = "softmax", dim = 1 }]',
            lambda: [nn.Softmax(1)],
            floats(4, 5, 2),
            False,
        ),
        "softmax_last": (
            '[{ type = "softmax", dim = -1 }]',
            lambda: [nn.Softmax(-1)],
            floats(4, 5, 2),
            False,
        ),
    },
    "log_softmax": {
        "log_softmax": (
            '[{ type = "log_softmax", dim = 1 }]',
            lambda: [nn.LogSoftmax(1)],
            floats(4, 5),
            False,
        ),
    },
    "max_pool2d": {
        "max_pool2d": (
            '[{ type = "max_pool2d", kernel_size = 2 }]',
            lambda: [nn.MaxPool2d(2)],
            floats(2, 3, 6, 7),
            False,
        ),
        "max_pool2d_options": (
            '[{ type = "max_pool2d", kernel_size = [3, 2], stride = [2, 1], padding = [1, 0], dilation = [1, 2], ceil_mode = true }]',
            lambda: [nn.MaxPool2d((3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), ceil_mode=True)],
            floats(2, 3, 8, 7),
            False,
        ),
    },
    "avg_pool2d": {
        "avg_pool2d": (
            '[{ type = "avg_pool2d", kernel_size = 2 }]',
            lambda: [nn.AvgPool2d(2)],
            floats(2, 3, 6, 7),
            False,
        ),
        "avg_pool2d_options": (
            '[{ type = "avg_pool2d", kernel_size = [3, 2], stride = [2, 1], padding = [1, 1], ceil_mode = true, count_include_pad = false }]',
            lambda: [nn.AvgPool2d((3, 2), stride=(2, 1), padding=(1, 1), ceil_mode=True, count_include_pad=False)],
            floats(2, 3, 8, 7),
            False,
        ),
        "avg_pool2d_padded": (
            '[{ type = "avg_pool2d", kernel_size = 3, stride = 2, padding = 1 }]',
            lambda: [nn.AvgPool2d(3, stride=2, padding=1)],
            floats(2, 3, 8, 7),
            False,
        ),
    },
    "adaptive_avg_pool2d": {
        "adaptive_avg_pool2d": (
            '[{ type = "adaptive_avg_pool2d", output_size = [3, 2] }]',
            lambda: [nn.AdaptiveAvgPool2d((3, 2))],
            floats(2, 3, 8, 7),
            False,
        ),
        "adaptive_avg_pool2d_one": (
            '[{ type = "adaptive_avg_pool2d", output_size = 1 }]',
            lambda: [nn.AdaptiveAvgPool2d(1)],
            floats(2, 3, 8, 7),
            False,
        ),
    },
    "dropout": {
        "dropout_all": (
            '[{ type = "dropout", p = 1.0 }]',
            lambda: [nn.Dropout(1.0)],
            floats(2, 3),
            True,
        ),
    },
    "dropout2d": {
        "dropout_eval": (
            '["dropout", "dropout2d"]',
            lambda: [nn.Dropout(0.5), nn.Dropout2d(0.5)],
            floats(2, 3, 4, 4),
            False,
        ),
        "dropout_none": (
            '[{ type = "dropout", p = 0 }, { type = "dropout2d", p = 0 }]',
            lambda: [nn.Dropout(0.0), nn.Dropout2d(0.0)],
            floats(2, 3, 4, 4),
            True,
        ),
    },
    "flatten": {
        "flatten": (
            '["flatten"]',
            lambda: [nn.Flatten()],
            floats(2, 3, 4, 4),
            False,
        ),
        "flatten_part": (
            '[{ type = "flatten", start_dim = 1, end_dim = 2 }]',
            lambda: [nn.Flatten(1, 2)],
            floats(2, 3, 4, 5),
            False,
        ),
    },
    "reshape": {
        "reshape": (
            '[{ type = "reshape", shape = [4, -1] }]',
            lambda: [Reshape(4, -1)],
            floats(2, 3, 4, 5),
            False,
        ),
    },
    "residual": {
        "residual": (
            '[{ type = "residual", layers = [{ name = "up", type = "linear", in_features = 4, out_features = 6 }, { name = "act", type = "relu" }, { name = "down", type = "linear", in_features = 6, out_features = 4 }] }, "tanh"]',
            lambda: [Residual(OrderedDict(up=nn.Linear(4, 6), act=nn.ReLU(), down=nn.Linear(6, 4))), nn.Tanh()],
            floats(3, 4),
            False,
        ),
        "residual_nested": (
            '[{ type = "residual", layers = ["relu", { type = "residual", layers = [{ type = "linear", in_features = 4, out_features = 4 }, "relu"] }, { type = "layer_norm", normalized_shape = 4 }] }, { type = "linear", in_features = 4, out_features = 2 }]',
            lambda: [Residual(nn.ReLU(), Residual(nn.Linear(4, 4), nn.ReLU()), nn.LayerNorm(4)), nn.Linear(4, 2)],
            floats(3, 4),
            False,
        ),
    },
    "lstm": {
        "lstm": (
            '[{ type = "lstm", input_size = 3, hidden_size = 4, batch_first = true }]',
            lambda: [Sequence(nn.LSTM, 3, 4)],
            floats(2, 5, 3),
            False,
        ),
        "lstm_last": (
            '[{ type = "lstm", input_size = 3, hidden_size = 4, output = "last", batch_first = true }]',
            lambda: [Last(nn.LSTM, 3, 4)],
            floats(2, 5, 3),
            False,
        ),
        "lstm_deep": (
            '[{ type = "lstm", input_size = 3, hidden_size = 4, num_layers = 2, bidirectional = true, batch_first = true }]',
            lambda: [Sequence(nn.LSTM, 3, 4, num_layers=2, bidirectional=True)],
            floats(2, 5, 3),
            False,
        ),
        "lstm_deep_last": (
            '[{ type = "lstm", input_size = 3, hidden_size = 4, num_layers = 2, bidirectional = true, output = "last", batch_first = true }]',
            lambda: [Last(nn.LSTM, 3, 4, num_layers=2, bidirectional=True)],
            floats(2, 5, 3),
            False,
        ),
        "lstm_no_bias": (
            '[{ type = "lstm", input_size = 3, hidden_size = 4, num_layers = 2, bias = false, batch_first = true }]',
            lambda: [Sequence(nn.LSTM, 3, 4, num_layers=2, bias=False)],
            floats(2, 5, 3),
            False,
        ),
        # Dropping everything between the layers leaves nothing to chance.
        "lstm_dropout_all": (
            '[{ type = "lstm", input_size = 3, hidden_size = 4, num_layers = 3, dropout = 1.0, bidirectional = true, batch_first = true }]',
            lambda: [Sequence(nn.LSTM, 3, 4, num_layers=3, dropout=1.0, bidirectional=True)],
            floats(2, 5, 3),
            True,
        ),
    },
    "multihead_attention": {
        "attention": (
            '[{ type = "multihead_attention", embed_dim = 8, num_heads = 2, batch_first = true }]',
            lambda: [Attention(8, 2)],
            floats(2, 5, 8),
            False,
        ),
        "attention_no_bias": (
            '[{ type = "multihead_attention", embed_dim = 8, num_heads = 4, bias = false, batch_first = true }]',
            lambda: [Attention(8, 4, bias=False)],
            floats(2, 5, 8),
            False,
        ),
        "attention_causal": (
            '[{ type = "multihead_attention", embed_dim = 8, num_heads = 2, causal = true, batch_first = true }]',
            lambda: [Attention(8, 2, causal=True)],
            floats(2, 5, 8),
            False,
        ),
        "attention_dropout_all": (
            '[{ type = "multihead_attention", embed_dim = 8, num_heads = 2, dropout = 1.0, batch_first = true }]',
            lambda: [Attention(8, 2, dropout=1.0)],
            floats(2, 5, 8),
            True,
        ),
    },
    "rms_norm": {
        "rms_norm": (
            '[{ type = "rms_norm", normalized_shape = 6 }]',
            lambda: [nn.RMSNorm(6)],
            floats(3, 2, 6),
            False,
        ),
        "rms_norm_2d": (
            '[{ type = "rms_norm", normalized_shape = [2, 6], eps = 1e-2 }]',
            lambda: [nn.RMSNorm([2, 6], eps=1e-2)],
            floats(3, 2, 6),
            False,
        ),
        "rms_norm_plain": (
            '[{ type = "rms_norm", normalized_shape = 6, elementwise_affine = false }, "relu"]',
            lambda: [nn.RMSNorm(6, elementwise_affine=False), nn.ReLU()],
            floats(3, 6),
            False,
        ),
    },
    "instance_norm1d": {
        "instance_norm1d": (
            '[{ type = "instance_norm1d", num_features = 4 }]',
            lambda: [nn.InstanceNorm1d(4)],
            floats(3, 4, 5),
            False,
        ),
        "instance_norm1d_affine": (
            '[{ type = "instance_norm1d", num_features = 4, affine = true, eps = 1e-2 }]',
            lambda: [nn.InstanceNorm1d(4, affine=True, eps=1e-2)],
            floats(3, 4, 5),
            True,
        ),
        "instance_norm1d_tracked": (
            '[{ type = "instance_norm1d", num_features = 4, track_running_stats = true, momentum = 0.3 }]',
            lambda: [nn.InstanceNorm1d(4, track_running_stats=True, momentum=0.3)],
            floats(3, 4, 5),
            True,
        ),
        "instance_norm1d_tracked_eval": (
            '[{ type = "instance_norm1d", num_features = 4, affine = true, track_running_stats = true }]',
            lambda: [nn.InstanceNorm1d(4, affine=True, track_running_stats=True)],
            floats(3, 4, 5),
            False,
        ),
    },
    "instance_norm2d": {
        "instance_norm2d": (
            '[{ type = "instance_norm2d", num_features = 4 }]',
            lambda: [nn.InstanceNorm2d(4)],
            floats(3, 4, 2, 5),
            False,
        ),
        "instance_norm2d_affine": (
            '[{ type = "instance_norm2d", num_features = 4, affine = true, eps = 1e-2 }]',
            lambda: [nn.InstanceNorm2d(4, affine=True, eps=1e-2)],
            floats(3, 4, 2, 5),
            True,
        ),
        "instance_norm2d_tracked": (
            '[{ type = "instance_norm2d", num_features = 4, track_running_stats = true, momentum = 0.3 }]',
            lambda: [nn.InstanceNorm2d(4, track_running_stats=True, momentum=0.3)],
            floats(3, 4, 2, 5),
            True,
        ),
        "instance_norm2d_tracked_eval": (
            '[{ type = "instance_norm2d", num_features = 4, affine = true, track_running_stats = true }]',
            lambda: [nn.InstanceNorm2d(4, affine=True, track_running_stats=True)],
            floats(3, 4, 2, 5),
            False,
        ),
    },
    "gru": {
        "gru": (
            '[{ type = "gru", input_size = 3, hidden_size = 4, batch_first = true }]',
            lambda: [Sequence(nn.GRU, 3, 4)],
            floats(2, 5, 3),
            False,
        ),
        "gru_last": (
            '[{ type = "gru", input_size = 3, hidden_size = 4, output = "last", batch_first = true }]',
            lambda: [Last(nn.GRU, 3, 4)],
            floats(2, 5, 3),
            False,
        ),
        "gru_deep_last": (
            '[{ type = "gru", input_size = 3, hidden_size = 4, num_layers = 2, bidirectional = true, output = "last", batch_first = true }]',
            lambda: [Last(nn.GRU, 3, 4, num_layers=2, bidirectional=True)],
            floats(2, 5, 3),
            False,
        ),
        "gru_no_bias": (
            '[{ type = "gru", input_size = 3, hidden_size = 4, num_layers = 2, bias = false, batch_first = true }]',
            lambda: [Sequence(nn.GRU, 3, 4, num_layers=2, bias=False)],
            floats(2, 5, 3),
            False,
        ),
        "gru_dropout_all": (
            '[{ type = "gru", input_size = 3, hidden_size = 4, num_layers = 3, dropout = 1.0, bidirectional = true, batch_first = true }]',
            lambda: [Sequence(nn.GRU, 3, 4, num_layers=3, dropout=1.0, bidirectional=True)],
            floats(2, 5, 3),
            True,
        ),
    },
    "conv_transpose2d": {
        "conv_transpose2d": (
            '[{ type = "conv_transpose2d", in_channels = 2, out_channels = 3, kernel_size = 3 }, "relu"]',
            lambda: [nn.ConvTranspose2d(2, 3, 3), nn.ReLU()],
            floats(2, 2, 4, 5),
            False,
        ),
        "conv_transpose2d_options": (
            '[{ type = "conv_transpose2d", in_channels = 4, out_channels = 6, kernel_size = [3, 2], stride = [2, 3], padding = [1, 0], output_padding = [1, 2], dilation = [2, 1], groups = 2, bias = false }]',
            lambda: [nn.ConvTranspose2d(4, 6, (3, 2), stride=(2, 3), padding=(1, 0), output_padding=(1, 2), dilation=(2, 1), groups=2, bias=False)],
            floats(2, 4, 4, 3),
            False,
        ),
    },
    "conv3d": {
        "conv3d": (
            '[{ type = "conv3d", in_channels = 2, out_channels = 3, kernel_size = 3 }, "relu"]',
            lambda: [nn.Conv3d(2, 3, 3), nn.ReLU()],
            floats(2, 2, 4, 5, 4),
            False,
        ),
        "conv3d_options": (
            '[{ type = "conv3d", in_channels = 4, out_channels = 6, kernel_size = [3, 2, 1], stride = [2, 1, 1], padding = [2, 1, 0], dilation = [2, 3, 1], groups = 2, bias = false }]',
            lambda: [nn.Conv3d(4, 6, (3, 2, 1), stride=(2, 1, 1), padding=(2, 1, 0), dilation=(2, 3, 1), groups=2, bias=False)],
            floats(2, 4, 7, 6, 3),
            False,
        ),
    },
    "max_pool1d": {
        "max_pool1d": (
            '[{ type = "max_pool1d", kernel_size = 2 }]',
            lambda: [nn.MaxPool1d(2)],
            floats(2, 3, 7),
            False,
        ),
        "max_pool1d_options": (
            '[{ type = "max_pool1d", kernel_size = 3, stride = 2, padding = 1, dilation = 2, ceil_mode = true }]',
            lambda: [nn.MaxPool1d(3, stride=2, padding=1, dilation=2, ceil_mode=True)],
            floats(2, 3, 8),
            False,
        ),
    },
    "avg_pool1d": {
        "avg_pool1d": (
            '[{ type = "avg_pool1d", kernel_size = 2 }]',
            lambda: [nn.AvgPool1d(2)],
            floats(2, 3, 7),
            False,
        ),
        "avg_pool1d_options": (
            '[{ type = "avg_pool1d", kernel_size = 3, stride = 2, padding = 1, ceil_mode = true, count_include_pad = false }]',
            lambda: [nn.AvgPool1d(3, stride=2, padding=1, ceil_mode=True, count_include_pad=False)],
            floats(2, 3, 8),
            False,
        ),
    },
    "upsample": {
        "upsample": (
            '[{ type = "upsample", scale_factor = 2 }]',
            lambda: [nn.Upsample(scale_factor=2)],
            floats(2, 3, 2, 3),
            False,
        ),
        "upsample_size": (
            '[{ type = "upsample", size = [5, 4] }]',
            lambda: [nn.Upsample(size=(5, 4))],
            floats(2, 3, 2, 3),
            False,
        ),
        "upsample_length": (
            '[{ type = "upsample", scale_factor = 1.7 }]',
            lambda: [nn.Upsample(scale_factor=1.7)],
            floats(2, 3, 4),
            False,
        ),
        "upsample_volume": (
            '[{ type = "upsample", scale_factor = 2 }]',
            lambda: [nn.Upsample(scale_factor=2)],
            floats(2, 2, 2, 2, 3),
            False,
        ),
        "upsample_linear": (
            '[{ type = "upsample", scale_factor = 2.5, mode = "linear" }]',
            lambda: [nn.Upsample(scale_factor=2.5, mode="linear")],
            floats(2, 3, 4),
            False,
        ),
        "upsample_bilinear": (
            '[{ type = "upsample", scale_factor = [2, 1.5], mode = "bilinear" }]',
            lambda: [nn.Upsample(scale_factor=(2, 1.5), mode="bilinear")],
            floats(2, 3, 3, 4),
            False,
        ),
        "upsample_corners": (
            '[{ type = "upsample", size = 7, mode = "bilinear", align_corners = true }]',
            lambda: [nn.Upsample(size=7, mode="bilinear", align_corners=True)],
            floats(2, 3, 3, 4),
            False,
        ),
        "upsample_bicubic": (
            '[{ type = "upsample", scale_factor = 2, mode = "bicubic" }]',
            lambda: [nn.Upsample(scale_factor=2, mode="bicubic")],
            floats(2, 3, 3, 4),
            False,
        ),
        "upsample_trilinear": (
            '[{ type = "upsample", scale_factor = 2, mode = "trilinear" }]',
            lambda: [nn.Upsample(scale_factor=2, mode="trilinear")],
            floats(2, 2, 2, 2, 3),
            False,
        ),
    },
    "permute": {
        "permute": (
            '[{ type = "permute", dims = [0, 2, 1] }]',
            lambda: [Permute(0, 2, 1)],
            floats(2, 3, 4),
            False,
        ),
        "permute_from_the_end": (
            '[{ type = "permute", dims = [0, -1, 1, 2] }]',
            lambda: [Permute(0, -1, 1, 2)],
            floats(2, 3, 4, 5),
            False,
        ),
    },
    "positional_embedding": {
        "positional_embedding": (
            '[{ type = "positional_embedding", num_embeddings = 7, embedding_dim = 4 }]',
            lambda: [PositionalEmbedding(7, 4)],
            floats(2, 5, 4),
            False,
        ),
    },
    "leaky_relu": {
        "leaky_relu": (
            '["leaky_relu"]',
            lambda: [nn.LeakyReLU()],
            floats(4, 5),
            False,
        ),
        "leaky_relu_slope": (
            '[{ type = "leaky_relu", negative_slope = 0.3 }]',
            lambda: [nn.LeakyReLU(0.3)],
            floats(4, 5),
            False,
        ),
    },
    "elu": {
        "elu": (
            '["elu"]',
            lambda: [nn.ELU()],
            floats(4, 5),
            False,
        ),
        "elu_alpha": (
            '[{ type = "elu", alpha = 0.4 }]',
            lambda: [nn.ELU(0.4)],
            with_zeros(4, 5),
            False,
        ),
    },
    "mish": {
        "mish": (
            '["mish"]',
            lambda: [nn.Mish()],
            floats(4, 5),
            False,
        ),
    },
    "hardswish": {
        "hardswish": (
            '["hardswish"]',
            lambda: [nn.Hardswish()],
            lambda: [torch.randn(4, 5) * 4],
            False,
        ),
    },
    "softplus": {
        "softplus": (
            '["softplus"]',
            lambda: [nn.Softplus()],
            lambda: [torch.randn(4, 5) * 20],
            False,
        ),
        "softplus_options": (
            '[{ type = "softplus", beta = 2.5, threshold = 3 }]',
            lambda: [nn.Softplus(2.5, 3)],
            floats(4, 5),
            False,
        ),
    },
    "prelu": {
        "prelu": (
            '["prelu"]',
            lambda: [nn.PReLU()],
            floats(4, 5),
            False,
        ),
        "prelu_channels": (
            '[{ type = "prelu", num_parameters = 3, init = 0.1 }]',
            lambda: [nn.PReLU(3, 0.1)],
            floats(4, 3, 2),
            False,
        ),
    },
    "narrow": {
        "narrow": ('[{ type = "narrow", start = 1, length = 2 }]', lambda: [Narrow(1, 1, 2)], floats(4, 5), False),
        "narrow_last": (
            '[{ type = "narrow", dim = -1, start = 0, length = 3 }, "relu"]',
            lambda: [Narrow(-1, 0, 3), nn.ReLU()],
            floats(3, 2, 4),
            False,
        ),
        "narrow_ids": (
            '[{ type = "narrow", start = 2, length = 1 }, { type = "embedding", num_embeddings = 9, embedding_dim = 3 }]',
            lambda: [Narrow(1, 2, 1), nn.Embedding(9, 3)],
            ints(9, 4, 3),
            False,
        ),
    },
    "concat": {
        "concat": ('["concat"]', lambda: [Concat()], several([4, 3], [4, 5], [4, 1]), False),
        "concat_lists": (
            '[{ type = "concat", dim = -2 }, { type = "linear", in_features = 5, out_features = 2 }]',
            lambda: [Concat(-2), nn.Linear(5, 2)],
            several([3, 2, 5], [3, 4, 5]),
            False,
        ),
        "concat_last": ('[{ type = "concat", dim = 2 }]', lambda: [Concat(2)], several([3, 2, 5], [3, 2, 4]), False),
    },
    "add": {
        "add": ('["add"]', lambda: [Add()], several([4, 3], [4, 3], [4, 3]), False),
        "add_and_rest": ('["add", "relu"]', lambda: [Add(), nn.ReLU()], several([4, 3, 2], [4, 3, 2]), False),
    },
    "mul": {
        "mul": ('["mul"]', lambda: [Mul()], several([4, 3], [4, 3], [4, 3]), False),
        "mul_and_rest": (
            '["mul", { type = "linear", in_features = 3, out_features = 2 }]',
            lambda: [Mul(), nn.Linear(3, 2)],
            several([4, 3], [4, 3]),
            False,
        ),
    },
    "dot_interaction": {
        "dot_interaction": ('["dot_interaction"]', lambda: [DotInteraction()], several([4, 3], [4, 5, 3]), False),
        "dot_interaction_of_vectors": (
            '["dot_interaction", { type = "linear", in_features = 6, out_features = 2 }]',
            lambda: [DotInteraction(), nn.Linear(6, 2)],
            several([4, 3], [4, 3], [4, 3]),
            False,
        ),
        "dot_interaction_itself": (
            '[{ type = "dot_interaction", itself = true }]',
            lambda: [DotInteraction(itself=True)],
            several([4, 3], [4, 2, 3], [4, 3]),
            True,
        ),
    },
}


# For some layers, samples that PyTorch refuses: the layer as a job writes it, the same in PyTorch, the shape of a sample.
REFUSED = {
    "rms_norm": [('[{ type = "rms_norm", normalized_shape = 6 }]', lambda: nn.RMSNorm(6), [2, 5])],
    "instance_norm1d": [
        ('[{ type = "instance_norm1d", num_features = 4, affine = true }]', lambda: nn.InstanceNorm1d(4, affine=True), shape)
        for shape in ([4], [3, 5], [4, 1])
    ],
    "instance_norm2d": [
        ('[{ type = "instance_norm2d", num_features = 4, affine = true }]', lambda: nn.InstanceNorm2d(4, affine=True), shape)
        for shape in ([4, 5], [3, 5, 5], [4, 1, 1])
    ],
    "gru": [
        (
            '[{ type = "gru", input_size = 3, hidden_size = 4, batch_first = true }]',
            lambda: nn.GRU(3, 4, batch_first=True),
            [5, 2],
        )
    ],
    "conv_transpose2d": [
        (
            '[{ type = "conv_transpose2d", in_channels = 2, out_channels = 3, kernel_size = 3, padding = 3 }]',
            lambda: nn.ConvTranspose2d(2, 3, 3, padding=3),
            shape,
        )
        for shape in ([3, 9, 9], [2, 9, 3])
    ],
    "conv3d": [
        (
            '[{ type = "conv3d", in_channels = 2, out_channels = 3, kernel_size = 3 }]',
            lambda: nn.Conv3d(2, 3, 3),
            shape,
        )
        for shape in ([3, 4, 4, 4], [2, 4, 2, 4], [2, 4])
    ],
    "max_pool1d": [('[{ type = "max_pool1d", kernel_size = 5 }]', lambda: nn.MaxPool1d(5), [3, 4])],
    "avg_pool1d": [('[{ type = "avg_pool1d", kernel_size = 5 }]', lambda: nn.AvgPool1d(5), [3, 4])],
    "upsample": [
        ('[{ type = "upsample", scale_factor = 2, mode = "bilinear" }]', lambda: nn.Upsample(scale_factor=2, mode="bilinear"), [3, 4]),
        ('[{ type = "upsample", scale_factor = 2, mode = "linear" }]', lambda: nn.Upsample(scale_factor=2, mode="linear"), [3, 4, 4]),
        ('[{ type = "upsample", size = [2, 2, 2] }]', lambda: nn.Upsample(size=(2, 2, 2)), [3, 4, 4]),
        ('[{ type = "upsample", scale_factor = 0.1 }]', lambda: nn.Upsample(scale_factor=0.1), [3, 4, 4]),
    ],
    "permute": [('[{ type = "permute", dims = [0, 2, 1] }]', lambda: Permute(0, 2, 1), [3, 4, 5])],
    "positional_embedding": [
        (
            '[{ type = "positional_embedding", num_embeddings = 7, embedding_dim = 4 }]',
            lambda: PositionalEmbedding(7, 4),
            shape,
        )
        for shape in ([8, 4], [5, 3])
    ],
    "narrow": [('[{ type = "narrow", start = 3, length = 2 }]', lambda: Narrow(1, 3, 2), [4])],
    "prelu": [('[{ type = "prelu", num_parameters = 3 }]', lambda: nn.PReLU(3), [4, 2])],
}


def refused(layers, make, shape):
    try:
        make()(torch.randn([2, *shape]))
    except (RuntimeError, ValueError, IndexError, NotImplementedError):
        return [layers, shape]
    raise AssertionError(f"PyTorch takes {shape} for {layers}")


def case(name, layers, make, inputs, train):
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
    # `input`, and of layers that join several `input1`, `input2`, ...
    given = {f"input{number or ''}": x for number, x in enumerate(inputs())}
    for key, x in given.items():
        tensors[key] = x.detach().clone()
        if x.is_floating_point():
            x.requires_grad_()
    first, *rest = model
    y = nn.Sequential(*rest)(first(*given.values()))
    grad = torch.randn_like(y)
    tensors["output"], tensors["grad_output"] = y.detach().clone(), grad
    if y.requires_grad:
        y.backward(grad)
    for key, value in model.named_parameters():
        tensors[f"grad/{key}"] = torch.zeros_like(value) if value.grad is None else value.grad.to_dense()
    for key, x in given.items():
        if x.is_floating_point():
            tensors[f"grad_{key}"] = x.grad
    for key, value in model.named_buffers():
        tensors[f"after/{key}"] = value.clone()
    out["layers"] = layers
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


def main(wanted):
    torch.set_num_threads(1)
    (HERE / "layers").mkdir(exist_ok=True)
    for group, cases in CASES.items():
        if wanted and group not in wanted:
            continue
        tensors, out = {}, {}
        for name, parts in cases.items():
            figures, out[name] = case(name, *parts)
            tensors.update(figures)
        save_file(tensors, HERE / "layers" / f"{group}.safetensors")
        figures = {"seed": SEED, "cases": out, "refused": [refused(*parts) for parts in REFUSED.get(group, [])]}
        (HERE / "layers" / f"{group}.json").write_text(json.dumps(figures, indent=1) + "\n")
    if not wanted:
        (HERE / "conv_net.json").write_text(json.dumps(conv_net(), indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
