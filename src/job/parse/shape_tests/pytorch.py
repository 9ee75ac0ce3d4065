"""Writes pytorch.json: layers with random options and what PyTorch makes of them, for mod.rs.

    python src/job/parse/shape_tests/pytorch.py > src/job/parse/shape_tests/pytorch.json        (torch 2.11.0)

Each case is [layer as TOML, shape of one sample, its dtype, shape that comes out or null if PyTorch refuses,
parameters, bytes of buffers].
"""

import json
import random
import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore")
random.seed(1)
BATCH = 7  # no number of channels below, so that no batch is taken for a sample
pick, some = random.choice, random.randint


def toml(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def size(low, high, dims=2):
    return pick([some(low, high), tuple(some(low, high) for _ in range(dims))])


def case(kind, make, options, shape, dtype="float32", extra=None):
    table = {"type": kind, **options, **(extra or {})}
    text = "{ " + ", ".join(f"{key} = {toml(value)}" for key, value in table.items()) + " }"
    output, parameters, buffers = None, 0, 0
    try:
        module = make(**options)
        parameters = sum(p.numel() for p in module.parameters())
        buffers = sum(b.numel() * b.element_size() for b in module.buffers())
        sample = torch.zeros((BATCH, *shape), dtype=getattr(torch, dtype))
        if kind == "lstm":
            output = module(sample)[0]
            output = output[:, -1] if (extra or {}).get("output") == "last" else output
        elif kind == "multihead_attention":
            output = module(sample, sample, sample)[0]
        else:
            output = module(sample)
        output = list(output.shape[1:])
    except (RuntimeError, ValueError, IndexError, AssertionError):
        pass
    return [text, list(shape), dtype, output, parameters, buffers]


def cases():
    for _ in range(60):
        ins, groups = pick([1, 2, 4, 6]), pick([1, 1, 1, 2])
        options = dict(
            in_channels=ins, out_channels=pick([2, 4, 6]), kernel_size=size(1, 5), stride=size(1, 3),
            padding=size(0, 3), dilation=size(1, 2), groups=groups, bias=pick([True, False]),
        )
        yield case("conv2d", nn.Conv2d, options, (pick([ins, ins, ins, 3]), some(1, 12), some(1, 12)))
    for _ in range(30):
        ins = pick([1, 2, 4])
        options = dict(
            in_channels=ins, out_channels=4, kernel_size=some(1, 5), stride=some(1, 3),
            padding=pick([0, 1, 2, "same", "valid"]), dilation=some(1, 2),
        )
        if options["padding"] == "same":
            options.update(stride=pick([1, 1, 2]), kernel_size=pick([1, 3, 5]))
        yield case("conv1d", nn.Conv1d, options, pick([(ins, some(1, 12)), (ins, some(1, 12)), (3,), (3, 4, 4)]))
    for _ in range(80):
        options = dict(
            kernel_size=size(1, 5), stride=size(1, 4), padding=size(0, 3), dilation=size(1, 3), ceil_mode=pick([True, False])
        )
        if pick([True, False]):
            del options["stride"]
        shape = pick([(3, some(1, 12), some(1, 12)), (3, some(3, 12), some(3, 12)), (some(4, 9), some(4, 9)), (5,)])
        yield case("max_pool2d", nn.MaxPool2d, options, shape)
        del options["dilation"]
        options["count_include_pad"] = pick([True, False])
        yield case("avg_pool2d", nn.AvgPool2d, options, shape)
    for _ in range(8):
        shape = pick([(3, some(1, 9), some(1, 9)), (some(1, 9), some(1, 9)), (5,)])
        yield case("adaptive_avg_pool2d", nn.AdaptiveAvgPool2d, dict(output_size=size(1, 5)), shape)
    for _ in range(25):
        shape = tuple(some(1, 4) for _ in range(some(1, 4)))
        options = dict(start_dim=pick([1, 1, 2, 3, -1, -2]), end_dim=pick([-1, -1, 1, 2, 3, -2]))
        if -len(shape) <= options["start_dim"]:  # the batch itself is refused here, where PyTorch flattens it
            yield case("flatten", nn.Flatten, options, shape)
    for _ in range(12):
        shape = tuple(some(1, 6) for _ in range(some(1, 3)))
        options = dict(in_features=pick([shape[-1], shape[-1], 9]), out_features=5, bias=pick([True, False]))
        yield case("linear", nn.Linear, options, shape)
    for _ in range(12):
        shape = pick([(4,), (4, 6), (4, 6, 6), (3, 5, 5)])
        options = dict(num_features=4, affine=pick([True, False]), track_running_stats=pick([True, False]))
        yield case("batch_norm1d", nn.BatchNorm1d, options, shape)
        yield case("batch_norm2d", nn.BatchNorm2d, options, shape)
        yield case("group_norm", nn.GroupNorm, dict(num_groups=pick([1, 2, 3, 4]), num_channels=4), shape)
        wanted = pick([list(shape), list(shape[-1:]), shape[-1], 8])
        options = dict(normalized_shape=wanted, elementwise_affine=pick([True, False]), bias=pick([True, False]))
        yield case("layer_norm", nn.LayerNorm, options, shape)
    for _ in range(12):
        shape = tuple(some(1, 4) for _ in range(some(1, 3)))
        dim = pick([1, 2, 3, -1, -2, -3])
        if dim != -len(shape) - 1:  # the batch, refused here
            yield case("softmax", nn.Softmax, dict(dim=dim), shape)
            yield case("log_softmax", nn.LogSoftmax, dict(dim=dim), shape)
    for _ in range(15):
        options = dict(
            input_size=pick([4, 5]), hidden_size=some(1, 6), num_layers=some(1, 3), bias=pick([True, False]),
            batch_first=True, bidirectional=pick([True, False]),
        )
        yield case("lstm", nn.LSTM, options, pick([(6, 4), (6, 5), (2, 6, 4)]), extra=dict(output=pick(["sequence", "last"])))
    for _ in range(12):
        options = dict(embed_dim=pick([4, 6, 8]), num_heads=pick([1, 2, 3, 4]), bias=pick([True, False]), batch_first=True)
        yield case("multihead_attention", nn.MultiheadAttention, options, pick([(5, 4), (5, 6), (5, 8)]))
    for shape in [(), (5,), (2, 3)]:
        for dtype in ["int64", "float32"]:
            yield case("embedding", nn.Embedding, dict(num_embeddings=10, embedding_dim=3), shape, dtype)
            if len(shape) == 1:  # a batch of single indices would be one bag; of more dimensions only ours takes bags
                options = dict(num_embeddings=10, embedding_dim=3, mode=pick(["sum", "mean", "max"]))
                yield case("embedding_bag", nn.EmbeddingBag, options, shape, dtype)


print("[\n" + ",\n".join(json.dumps(case) for case in cases()) + "\n]")
