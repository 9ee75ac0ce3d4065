"""Models that are no chains, trained in one process of PyTorch for 50 steps: a small DLRM, two towers, a
diamond, and TorchScript with two arguments and two results.

    python3 -m venv env && env/bin/pip install torch==2.11.0 numpy safetensors
    env/bin/python tests/data/graph.py

writes graph.csv (the samples), graph_crossed.pt (the TorchScript, before the steps) and graph.safetensors (each model's parameters after the steps) beside this file. A table that
is cut over ranks starts from rows of its own: graph_rows.safetensors has them, which tests/it/graph leaves there
(`first_rows`, with WRITE_FIRST_ROWS=1).
"""

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


def samples():
    """Four ids, each among fifteen of its own, and four numbers, which are both an input and the target."""
    torch.manual_seed(1)
    ids = torch.randint(0, ROWS // IDS, (SAMPLES, IDS)) + torch.arange(IDS) * (ROWS // IDS)
    return ids, (torch.randn(SAMPLES, DENSE) * 1000).round() / 1000


def write(ids, dense):
    names = [f"id{n}" for n in range(IDS)] + [f"x{n}" for n in range(DENSE)]
    rows = [",".join([str(i) for i in a] + [f"{x:.3f}" for x in b]) for a, b in zip(ids.tolist(), dense.tolist())]
    (HERE / "graph.csv").write_text("\n".join([",".join(names)] + rows) + "\n")


def drawn(*makes):
    """Modules as a job draws them: each from the job's seed and its place."""
    modules = []
    for place, make in enumerate(makes):
        torch.manual_seed(SEED + place)
        modules.append(make())
    return modules


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
        dots = [(vectors[:, i] * vectors[:, j]).sum(1) for i in range(IDS + 1) for j in range(i)]
        return self.top(torch.cat([bottom, torch.stack(dots, 1)], 1))


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


def train(model, ids, dense):
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for step in range(STEPS):
        # Each trainer has a half, and a step is one batch of each.
        own = torch.arange(step * BATCH, (step + 1) * BATCH)
        both = torch.cat([own + trainer * (SAMPLES // TRAINERS) for trainer in range(TRAINERS)])
        optimizer.zero_grad()
        nn.functional.mse_loss(model(ids[both], dense[both]), dense[both]).backward()
        optimizer.step()
    return model.state_dict()


def main():
    torch.set_num_threads(1)
    ids, dense = samples()
    write(ids, dense)
    script = Script()
    torchscript.write(torch.jit.script(script.both), HERE / "graph_crossed.pt")
    figures = {}
    for name, model in [("dlrm", Dlrm()), ("towers", Towers()), ("diamond", Diamond()), ("script", script)]:
        figures |= {f"{name}/{key}": value for key, value in train(model, ids, dense).items()}
    rows = HERE / "graph_rows.safetensors"
    if rows.exists():
        model = Dlrm()
        model.tables[0].load_state_dict(load_file(rows))
        figures |= {f"dlrm_rows/{key}": value for key, value in train(model, ids, dense).items()}
    save_file(figures, HERE / "graph.safetensors")


if __name__ == "__main__":
    main()
