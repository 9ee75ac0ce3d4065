"""Models that are not chains, trained in one process of PyTorch for 50 steps: a small DLRM, two towers, a
diamond, TorchScript with two arguments and two results, a DLRM of Criteo's shape with a table for each column, weighted bags, a small ConvNet, and two heads
with a target each.

    python3 -m venv env && env/bin/pip install torch==2.11.0 numpy safetensors
    env/bin/python tests/data/graph.py

writes graph.csv and graph_columns.csv (the samples), graph_crossed.pt (the TorchScript, before the steps),
graph.safetensors (each model's parameters after the steps; of some also with two optimizers, groups and a schedule), and graph_columns.json and graph_heads.json (the losses of that DLRM
and of the heads with them, on all samples) beside this file. A table that is cut over ranks starts from rows of its own: graph_rows.safetensors,
graph_column_rows.safetensors and graph_bag_rows.safetensors have them, which tests/it/graph leaves there (`first_rows`, with
WRITE_FIRST_ROWS=1).
"""

import copy
import json
import math
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

import torchscript

HERE = Path(__file__).parent
SEED, LR = 3, 0.1
TRAINERS, BATCH, STEPS = 2, 8, 50
ROWS, IDS, DENSE, DIM = 60, 4, 4, 8
SAMPLES = TRAINERS * BATCH * STEPS
# Of Criteo's shape: numbers, and columns of categories with tables of their own.
NUMBERS, COLUMN_DIM = 13, 4
# An image of one channel, of all but the last of the numbers.
IMAGE = (1, 3, 4)
# Bags of three and of two, of tables with so many rows.
BAG_LENGTHS, BAG_ROWS = [3, 2], [20, 11]
COLUMN_ROWS = [12, 3, 40, 7, 1, 25, 9, 30, 2, 18, 5, 33, 11, 4, 21, 6, 14, 2, 28, 8, 3, 16, 10, 37, 13, 5]


# Models that are also trained with two optimizers, groups and a schedule.
CLIP_NORM = 0.15
CLIP_VALUE = 0.002
DECAY = 0.9
# The modules of which one is, in each model that has one.
FROZEN = ["tables", "user", "a", "both", "convs"]
TUNED = ["dlrm", "columns", "towers", "diamond", "conv"]


def samples():
    """Four ids, each among fifteen of its own, and four numbers, which are both an input and the target."""
    torch.manual_seed(1)
    ids = torch.randint(0, ROWS // IDS, (SAMPLES, IDS)) + torch.arange(IDS) * (ROWS // IDS)
    return ids, (torch.randn(SAMPLES, DENSE) * 1000).round() / 1000


def write(ids, dense):
    names = [f"id{n}" for n in range(IDS)] + [f"x{n}" for n in range(DENSE)]
    rows = [",".join([str(i) for i in a] + [f"{x:.3f}" for x in b]) for a, b in zip(ids.tolist(), dense.tolist())]
    (HERE / "graph.csv").write_text("\n".join([",".join(names)] + rows) + "\n")


def clicks():
    """Numbers, an index for each column below its rows, and whether there was a click."""
    torch.manual_seed(2)
    dense = (torch.rand(SAMPLES, NUMBERS) * 20).round() / 10
    ids = torch.stack([torch.randint(0, rows, [SAMPLES]) for rows in COLUMN_ROWS], 1)
    click = torch.randint(0, 2, [SAMPLES, 1]).float()
    bags = [torch.randint(0, rows, [SAMPLES, length]) for length, rows in zip(BAG_LENGTHS, BAG_ROWS)]
    # A third of the places are empty.
    bags = [bag.masked_fill(torch.rand(bag.shape) < 1 / 3, -1) for bag in bags]
    return dense, ids, click, torch.cat(bags, 1)


def write_clicks(dense, ids, click, bags):
    names = [f"x{n}" for n in range(NUMBERS)] + [f"c{n}" for n in range(len(COLUMN_ROWS))] + ["click"]
    names += [f"b{n}" for n in range(sum(BAG_LENGTHS))]
    lines = zip(dense.tolist(), torch.cat([ids, click.long(), bags], 1).tolist())
    rows = [",".join([f"{x:.1f}" for x in a] + [str(i) for i in b]) for a, b in lines]
    (HERE / "graph_columns.csv").write_text("\n".join([",".join(names)] + rows) + "\n")


def drawn(*makes):
    """Modules as a job draws them: each from the job's seed and its place."""
    modules = []
    for place, make in enumerate(makes):
        torch.manual_seed(SEED + place)
        modules.append(make())
    return modules


def dots(vectors):
    """Of each pair; under autocast as its lists say of products of matrices, which the job's layer is."""
    count = vectors.size(1)
    if torch.is_autocast_enabled("cpu"):
        rows, columns = torch.tril_indices(count, count, -1)
        return torch.bmm(vectors, vectors.transpose(1, 2))[:, rows, columns]
    return torch.stack([(vectors[:, i] * vectors[:, j]).sum(1) for i in range(count) for j in range(i)], 1)


class Dlrm(nn.Module):
    def __init__(self):
        super().__init__()
        pairs = (IDS + 1) * IDS // 2
        self.bottom, self.tables, self.top = drawn(
            lambda: nn.Sequential(nn.Linear(DENSE, DIM), nn.ReLU()),
            lambda: nn.Sequential(nn.Embedding(ROWS, DIM)),
            lambda: nn.Sequential(nn.Identity(), nn.Linear(DIM + pairs, 6), nn.Tanh(), nn.Linear(6, DENSE)),
        )

    def forward(self, ids, dense):
        bottom = self.bottom(dense)
        vectors = torch.cat([bottom.unsqueeze(1), self.tables(ids)], 1)
        return self.top(torch.cat([bottom, dots(vectors)], 1))


class Tables(nn.ModuleList):
    """A table for each column of indices."""

    def forward(self, ids):
        return torch.stack([table(ids[:, column]) for column, table in enumerate(self)], 1)


class Columns(nn.Module):
    def __init__(self):
        super().__init__()
        vectors = len(COLUMN_ROWS) + 1
        self.bottom, self.tables, self.top = drawn(
            lambda: nn.Sequential(nn.Linear(NUMBERS, 8), nn.ReLU(), nn.Linear(8, COLUMN_DIM)),
            lambda: nn.Sequential(Tables(nn.Embedding(rows, COLUMN_DIM) for rows in COLUMN_ROWS)),
            lambda: nn.Sequential(
                nn.Identity(), nn.Linear(COLUMN_DIM + vectors * (vectors - 1) // 2, 6), nn.Tanh(), nn.Linear(6, 1)
            ),
        )

    def forward(self, dense, ids):
        bottom = self.bottom(dense)
        vectors = torch.cat([bottom.unsqueeze(1), self.tables(ids)], 1)
        return self.top(torch.cat([bottom, dots(vectors)], 1))


class WeightedBag(nn.EmbeddingBag):
    """Sums of rows times their weights; -1 is an empty place."""

    def forward(self, bags, weights):
        there = bags != -1
        counts = there.sum(1)
        return super().forward(bags[there], counts.cumsum(0) - counts, per_sample_weights=weights[there])


class Bags(nn.Module):
    """Bags whose weights another module gives, and a bag for each of two columns, with weights among the samples."""

    def __init__(self):
        super().__init__()
        self.mix, self.bag, self.columns, self.top = drawn(
            lambda: nn.Sequential(nn.Linear(NUMBERS, BAG_LENGTHS[0]), nn.Tanh()),
            lambda: nn.Sequential(WeightedBag(BAG_ROWS[0], COLUMN_DIM, mode="sum")),
            lambda: nn.Sequential(nn.ModuleList(WeightedBag(rows, COLUMN_DIM, mode="sum") for rows in BAG_ROWS)),
            lambda: nn.Sequential(nn.Identity(), nn.Linear(COLUMN_DIM + 3, 1)),
        )

    def forward(self, dense, bags):
        first, second = bags.split(BAG_LENGTHS, 1)
        one, two = self.columns[0]
        weights = dense.split([*BAG_LENGTHS, NUMBERS - sum(BAG_LENGTHS)], 1)
        vectors = [self.bag[0](first, self.mix(dense)), one(first, weights[0]), two(second, weights[1])]
        dots = [(vectors[i] * vectors[j]).sum(1) for i in range(3) for j in range(i)]
        return self.top(torch.cat([vectors[0], torch.stack(dots, 1)], 1))


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.item, self.head = drawn(
            lambda: nn.Sequential(nn.EmbeddingBag(ROWS, DIM, mode="sum"), nn.Linear(DIM, DIM), nn.Tanh()),
            lambda: nn.Sequential(nn.Linear(DENSE, 6), nn.Tanh(), nn.Linear(6, DIM)),
            lambda: nn.Sequential(nn.Identity(), nn.Linear(DIM, DENSE)),
        )

    def forward(self, ids, dense):
        return self.head(self.user(ids) * self.item(dense))


class Diamond(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = drawn(
            lambda: nn.Sequential(nn.Linear(DENSE, DIM), nn.Tanh()),
            lambda: nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh()),
            lambda: nn.Sequential(nn.Linear(DIM, 5), nn.ReLU()),
            lambda: nn.Sequential(nn.Identity(), nn.Linear(DIM + 5 + DIM, DENSE)),
        )

    def forward(self, ids, dense):
        a = self.a(dense)
        return self.d(torch.cat([self.b(a), self.c(a), a], 1))


class Conv(nn.Module):
    """Two convolutions with a pooling between them, and a head."""

    def __init__(self):
        super().__init__()
        self.convs, self.head = drawn(
            lambda: nn.Sequential(
                nn.Unflatten(1, IMAGE),
                nn.Conv2d(1, 4, 3, padding=1),
                nn.ReLU(),
                nn.MaxPool2d(2, stride=1),
                nn.Conv2d(4, 3, 2),
                nn.Tanh(),
                nn.Flatten(),
            ),
            lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1)),
        )

    def forward(self, image):
        return self.head(self.convs(image))


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.left, self.right = drawn(
            lambda: nn.Sequential(nn.Linear(DENSE, DIM), nn.Tanh()),
            lambda: nn.Sequential(nn.Linear(DIM, 6), nn.Tanh(), nn.Linear(6, DENSE)),
            lambda: nn.Sequential(nn.Linear(DIM, 2)),
        )

    def forward(self, dense):
        body = self.body(dense)
        return self.left(body), self.right(body)


def by_heads(outputs, *targets):
    """As plugins/testing/heads."""
    errors = [nn.functional.mse_loss(output, target) for output, target in zip(outputs, targets)]
    return sum(error * weight for weight, error in enumerate(errors, 1))


class Crossed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = nn.Embedding(ROWS, DIM)
        self.mix = nn.Linear(DENSE, DIM)

    def forward(self, ids, dense):
        mixed = torch.tanh(self.mix(dense))
        return self.rows(ids).sum(1) * mixed, mixed


class Script(nn.Module):
    def __init__(self):
        super().__init__()
        self.both, self.head = drawn(
            Crossed, lambda: nn.Sequential(nn.Identity(), nn.Linear(2 * DIM, 6), nn.Tanh(), nn.Linear(6, DENSE))
        )

    def forward(self, ids, dense):
        return self.head(torch.cat(self.both(ids, dense), 1))


def plain(model):
    return [torch.optim.SGD(model.parameters(), lr=LR)], [], None


def tuned(model):
    """The last module by AdamW without decay of its biases, the others by SGD with twice the rate for biases; all rates warm up
    and follow a cosine; gradients are clipped, which in half of the steps or more they need. placements.rs says the same as a job."""
    *front, (_, last) = model.named_children()

    def groups(modules, bias, others):
        named = [entry for module in modules for entry in module.named_parameters()]
        return [dict(params=[value for name, value in named if name.endswith("bias") is is_bias], **options)
                for is_bias, options in ((True, bias), (False, others))]
    optimizers = [
        torch.optim.SGD(groups([module for _, module in front], dict(lr=0.2), {}), lr=LR),
        torch.optim.AdamW(groups([last], dict(weight_decay=0.0), {}), lr=0.01, eps=1e-4, weight_decay=0.1),
    ]

    def scheduled(optimizer):
        # Of rates that differ by a factor, as eta_min is not of CosineAnnealingLR.
        def factor(step):
            if step < 5:
                return 0.2 + 0.8 * step / 5
            return 0.1 + 0.9 * (1 + math.cos(math.pi * (step - 5) / (STEPS - 5))) / 2
        return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    return optimizers, [scheduled(optimizer) for optimizer in optimizers], CLIP_NORM


def clamped(model):
    """Each number of a gradient within CLIP_VALUE, which some of half of the steps or more are not."""
    return [torch.optim.SGD(model.parameters(), lr=LR, momentum=0.0)], [], -CLIP_VALUE


def frozen(model):
    """Nothing of one module is trained, and no bias of the last. placements.rs says the same as a job."""
    children = dict(model.named_children())
    for value in children[next(name for name in children if name in FROZEN)].parameters():
        value.requires_grad_(False)
    for name, value in children[[*children][-1]].named_parameters():
        value.requires_grad_(not name.endswith("bias"))
    trained = [value for value in model.parameters() if value.requires_grad]
    return [torch.optim.SGD(trained, lr=LR)], [], None


def averaged(model):
    """As plain; what is taken is the moving average of the weights."""
    return plain(model)


def bf16(model):
    """As plain, with modules in bfloat16 where autocast says so; each trainer's half goes its own way."""
    return plain(model)


def fp16(model):
    """As bf16, in float16 with losses that are scaled: at first by too much, and soon by more again. The gradients of the ConvNet
    are clipped, too. placements.rs says the same."""
    return [torch.optim.SGD(model.parameters(), lr=LR)], [], CLIP_NORM if isinstance(model, Conv) else None


HALVES = {bf16: torch.bfloat16, fp16: torch.float16}
SCALER = dict(init_scale=2.0**24, growth_factor=2.0, backoff_factor=0.5, growth_interval=7)


def train(model, inputs, targets, loss=nn.functional.mse_loss, how=plain):
    targets = targets if isinstance(targets, list) else [targets]
    optimizers, schedules, clip_norm = how(model)
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(DECAY))
    scaler = torch.amp.GradScaler("cpu", **SCALER, enabled=how is fp16)
    clipped, left_out, scales = 0, 0, set()
    for step in range(STEPS):
        # Each trainer has a half, and a step is one batch of each.
        own = torch.arange(step * BATCH, (step + 1) * BATCH)
        halves = [own + trainer * (SAMPLES // TRAINERS) for trainer in range(TRAINERS)]
        model.zero_grad()
        parts = halves if how in HALVES else [torch.cat(halves)]
        for part in parts:
            with torch.autocast("cpu", HALVES.get(how, torch.bfloat16), enabled=how in HALVES):
                outputs = model(*[x[part] for x in inputs])
                of_part = loss(outputs, *[y[part] for y in targets])
            # Of the trainers' gradients the mean is applied.
            scaler.scale(of_part).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= len(parts)
        if clip_norm and clip_norm < 0:
            clipped += any(bool((p.grad.abs() > -clip_norm).any()) for p in model.parameters())
            nn.utils.clip_grad_value_(model.parameters(), -clip_norm)
        elif clip_norm:
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
            clipped += bool(norm > clip_norm)
        for optimizer in optimizers:
            scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        left_out += scaler.get_scale() < before
        scales.add(before)
        for schedule in schedules:
            schedule.step()
        average.update_parameters(model)
    assert not clip_norm or clipped > STEPS * 0.4, clipped
    assert how is not fp16 or left_out > 3 and len(scales) > 4, (left_out, scales)
    return (average.module if how is averaged else model).state_dict()


def main():
    torch.set_num_threads(1)
    ids, dense = samples()
    write(ids, dense)
    script = Script()
    torchscript.write(torch.jit.script(script.both), HERE / "graph_crossed.pt")
    figures = {}

    def trained(name, make, rows, *given):
        """From the seed, and from the first rows of tables that are cut."""
        ways = {"": plain, "_averaged": averaged}
        if name in TUNED:
            ways.update(_tuned=tuned, _clamped=clamped, _bf16=bf16, _fp16=fp16)
        if name in [*TUNED, "script"]:
            ways["_frozen"] = frozen
        for way, how in ways.items():
            figures.update({f"{name}{way}/{key}": value for key, value in train(make(), *given, how=how).items()})
        rows = HERE / f"{rows}.safetensors"
        if rows.exists():
            for way, how in ways.items():
                model = make()
                assert not model.load_state_dict(load_file(rows), strict=False).unexpected_keys
                found = train(model, *given, how=how)
                figures.update({f"{name}_rows{way}/{key}": value for key, value in found.items()})

    trained("dlrm", Dlrm, "graph_rows", [ids, dense], dense)
    for name, make in [("towers", Towers), ("diamond", Diamond), ("script", lambda: copy.deepcopy(script))]:
        trained(name, make, "", [ids, dense], dense)
    # The second target is a part of the numbers; the first one all of them, the other way round.
    halves = [dense.flip(1), dense[:, 2:]]
    trained("heads", Heads, "", [dense], halves, by_heads)

    numbers, columns, click, bags = clicks()
    write_clicks(numbers, columns, click, bags)
    by_click = nn.functional.binary_cross_entropy_with_logits
    trained("columns", Columns, "graph_column_rows", [numbers, columns], click, by_click)
    trained("bags", Bags, "graph_bag_rows", [numbers, bags], click, by_click)
    trained("conv", Conv, "", [numbers[:, :-1]], click, by_click)

    def evaluated(name, make, inputs, targets, loss):
        model = make()
        model.load_state_dict({key.removeprefix(f"{name}/"): figures[key] for key in figures if key.startswith(f"{name}/")})
        with torch.no_grad():
            of_all = loss(model(*inputs), *targets).item()
        (HERE / f"graph_{name}.json").write_text(json.dumps({"loss": of_all}) + "\n")

    evaluated("columns", Columns, [numbers, columns], [click], by_click)
    evaluated("heads", Heads, [dense], halves, by_heads)
    save_file(figures, HERE / "graph.safetensors")


if __name__ == "__main__":
    main()
