"""PyTorch's values and gradients of the losses that ship as plug-ins.

    python3 -m venv env && env/bin/pip install torch==2.11.0 numpy
    env/bin/python tests/data/losses.py

writes losses.json beside this file: for each case the plug-in, its parameters, the output and the target with their
shapes, and the loss and its gradient with respect to the output. All in float64, written in full.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F

HERE = Path(__file__).parent
torch.manual_seed(7)
SCORES = torch.randn(6, 4, dtype=torch.float64) * 3
CLASSES = torch.tensor([0, 3, 1, 1, 2, 0])
PIXELS = torch.randn(2, 3, 2, 2, dtype=torch.float64)
PIXEL_CLASSES = torch.randint(0, 3, (2, 2, 2))
VALUES = torch.randn(6, 1, dtype=torch.float64) * 2
TARGETS = torch.randn(6, dtype=torch.float64)
LOGITS = torch.tensor([[-40.0, 0.5, 3.0], [60.0, -1.0, 0.0]], dtype=torch.float64)
PARTS = torch.tensor([[0.0, 1.0, 0.25], [1.0, 0.0, 1.0]], dtype=torch.float64)


def log_probabilities(scores):
    return F.log_softmax(scores, 1)


# A job trains with means only.
R = dict(reduction="mean")
CASES = [
    ("nll", R, log_probabilities(SCORES), CLASSES, lambda o, t: F.nll_loss(o, t, **R)),
    ("nll", R, log_probabilities(PIXELS), PIXEL_CLASSES, lambda o, t: F.nll_loss(o, t, **R)),
    ("cross_entropy", R, SCORES, CLASSES, lambda o, t: F.cross_entropy(o, t, **R)),
    ("cross_entropy", R, PIXELS, PIXEL_CLASSES, lambda o, t: F.cross_entropy(o, t, **R)),
    ("mse", R, VALUES, TARGETS, lambda o, t: F.mse_loss(o.squeeze(1), t, **R)),
    ("mse", R, LOGITS, PARTS, lambda o, t: F.mse_loss(o, t, **R)),
    ("bce_with_logits", R, LOGITS, PARTS, lambda o, t: F.binary_cross_entropy_with_logits(o, t, **R)),
]
for smoothing in [0.1, 1.0]:
    s = dict(R, label_smoothing=smoothing)
    CASES += [
        ("cross_entropy", s, SCORES, CLASSES, lambda o, t, s=s: F.cross_entropy(o, t, **s)),
        ("cross_entropy", s, PIXELS, PIXEL_CLASSES, lambda o, t, s=s: F.cross_entropy(o, t, **s)),
    ]
for weight in [2.5, [0.5, 2.0, 3.0]]:
    w = dict(R, pos_weight=weight)

    def weighted(o, t, weight=weight):
        return F.binary_cross_entropy_with_logits(o, t, pos_weight=torch.tensor(weight, dtype=o.dtype), **R)

    CASES.append(("bce_with_logits", w, LOGITS, PARTS, weighted))


def tensor(t):
    return dict(shape=list(t.shape), values=t.flatten().tolist())


cases = []
for plugin, params, output, target, loss in CASES:
    output = output.clone().requires_grad_(True)
    value = loss(output, target)
    value.backward()
    cases.append(
        dict(
            plugin=plugin,
            params=params,
            output=tensor(output.detach()),
            target=dict(tensor(target), classes=not target.is_floating_point()),
            loss=value.item(),
            gradient=output.grad.flatten().tolist(),
        )
    )
with open(HERE / "losses.json", "w") as file:
    file.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")

# What idx's test of bilinear resizing quotes.
IMAGE = torch.tensor([[[[0.0, 100.0], [50.0, 200.0]]]])
print(F.interpolate(IMAGE, size=(3, 4), mode="bilinear", align_corners=False))
