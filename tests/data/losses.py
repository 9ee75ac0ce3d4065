"""PyTorch's values and gradients of the losses that ship as plug-ins.

    python3 -m venv env && env/bin/pip install torch==2.11.0 torchvision==0.26.0 numpy
    env/bin/python tests/data/losses.py

writes losses.json beside this file: for each case the plug-in, its parameters, the outputs and the targets with their
shapes, the loss and its gradient with respect to each output, and, where it is not the number of samples, what the mean
was divided by. All in float64, written in full.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torchvision.ops import sigmoid_focal_loss

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



# Class weights, and targets that do not count: the mean is divided by the weights of those that do.
def over_classes(plugin, scores, classes, params):
    def loss(o, t):
        weight = torch.tensor(params["weight"], dtype=o.dtype) if "weight" in params else None
        reduction = params.get("reduction", "mean")
        options = dict(weight=weight, ignore_index=params.get("ignore_index", -100), reduction=reduction)
        if plugin == "nll":
            return F.nll_loss(o, t, **options)
        return F.cross_entropy(o, t, label_smoothing=params.get("label_smoothing", 0.0), **options)

    def weigh(t):
        counts = t != params.get("ignore_index", -100)
        weight = torch.tensor(params.get("weight", [1.0] * scores.shape[1]), dtype=torch.float64)
        return weight[t[counts]].sum().item()

    return plugin, params, scores, classes, loss, weigh


LEFT_OUT, PIXELS_LEFT_OUT = CLASSES.clone(), PIXEL_CLASSES.clone()
LEFT_OUT[[1, 4]] = -100
PIXELS_LEFT_OUT[0, 1] = 7
WEIGHT, PIXEL_WEIGHT, ALL_COUNT = [0.5, 2.0, 0.0, 1.25], [3.0, 0.25, 1.0], [0.5, 2.0, 0.1, 1.25]
for plugin, scores in [("nll", log_probabilities), ("cross_entropy", lambda scores: scores)]:
    for params, classes in [
        (dict(weight=WEIGHT), CLASSES),
        (dict(ignore_index=-100), LEFT_OUT),
        (dict(ignore_index=3), CLASSES),
        (dict(weight=WEIGHT, ignore_index=-100), LEFT_OUT),
    ]:
        CASES.append(over_classes(plugin, scores(SCORES), classes, params))
    both = dict(weight=PIXEL_WEIGHT, ignore_index=7)
    CASES.append(over_classes(plugin, scores(PIXELS), PIXELS_LEFT_OUT, both))
    CASES.append(over_classes(plugin, scores(PIXELS), PIXELS_LEFT_OUT, dict(ignore_index=7)))
for smoothing in [0.1, 1.0]:
    s = dict(label_smoothing=smoothing)
    CASES += [
        over_classes("cross_entropy", SCORES, CLASSES, dict(s, weight=ALL_COUNT)),
        over_classes("cross_entropy", SCORES, LEFT_OUT, dict(s, weight=ALL_COUNT, ignore_index=-100)),
        over_classes("cross_entropy", PIXELS, PIXELS_LEFT_OUT, dict(s, weight=PIXEL_WEIGHT, ignore_index=7)),
        over_classes("cross_entropy", PIXELS, PIXELS_LEFT_OUT, dict(s, ignore_index=7)),
    ]
for pos_weight in [None, [0.5, 2.0, 3.0]]:
    w = dict(weight=[2.0, 0.0, 0.5]) if pos_weight is None else dict(weight=[2.0, 0.0, 0.5], pos_weight=pos_weight)

    def weighted(o, t, w=w):
        tensors = {key: torch.tensor(each, dtype=o.dtype) for key, each in w.items()}
        return F.binary_cross_entropy_with_logits(o, t, **tensors)

    CASES.append(("bce_with_logits", w, LOGITS, PARTS, weighted))

for delta in [1.0, 0.3]:
    CASES += [
        ("huber", dict(delta=delta), VALUES, TARGETS, lambda o, t, d=delta: F.huber_loss(o.squeeze(1), t, delta=d)),
        ("huber", dict(R, delta=delta), PIXELS, PIXELS.flip(0), lambda o, t, d=delta: F.huber_loss(o, t, delta=d)),
    ]

PROBABILITIES = torch.randn(6, 4, dtype=torch.float64).softmax(1)
SOME_ARE_0 = torch.tensor([[0.0, 0.25, 0.75], [1.0, 0.0, 0.0]], dtype=torch.float64)
for reduction in ["batchmean", "mean"]:
    r = dict(reduction=reduction)
    for output, target in [(SCORES, PROBABILITIES), (LOGITS, SOME_ARE_0), (PIXELS, PIXELS.flip(0).softmax(1))]:
        output = log_probabilities(output)
        CASES.append(("kl_div", r, output, target, lambda o, t, r=r: F.kl_div(o, t, **r)))
    l = dict(r, log_target=True)
    output, target = log_probabilities(SCORES), PROBABILITIES.log()
    CASES.append(("kl_div", l, output, target, lambda o, t, l=l: F.kl_div(o, t, **l)))


def focal_loss_of_classes(scores, classes, alpha, gamma, ignored=-100):
    """-alpha_t (1 - p_t)^gamma log(p_t) of the softmax, equation 5 of the paper."""
    counts = classes != ignored
    scores, classes = scores.movedim(1, -1)[counts], classes[counts]
    ce_loss = F.cross_entropy(scores, classes, reduction="none")
    return (alpha[classes] * (1 - torch.exp(-ce_loss)) ** gamma * ce_loss).mean()


# With larger scores torchvision's 1 - p_t is a difference without digits.
MILD, YES = LOGITS.clamp(-6, 6), torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
for focal in [dict(), dict(alpha=0.6, gamma=1.5), dict(alpha=-1, gamma=0.5), dict(gamma=0)]:
    alpha, gamma = focal.get("alpha", 0.25), focal.get("gamma", 2)
    CASES += [
        ("focal", focal, MILD, PARTS, lambda o, t, a=alpha, g=gamma: sigmoid_focal_loss(o, t, a, g, "mean")),
        ("focal", focal, VALUES, YES, lambda o, t, a=alpha, g=gamma: sigmoid_focal_loss(o.squeeze(1), t, a, g, "mean")),
    ]
for plain in [dict(), dict(alpha=[0.5, 2.0, 0.0], gamma=3.5), dict(alpha=-1, gamma=0)]:
    for scores, classes in [(PIXELS, PIXEL_CLASSES), (SCORES, CLASSES)]:
        count = scores.shape[1]
        weights, focal = [1.0] * count, plain
        if isinstance(plain.get("alpha"), list):
            weights = [*plain["alpha"], 1.0][:count]
            focal = dict(plain, alpha=weights)
        weights = torch.tensor(weights, dtype=torch.float64)
        loss = lambda o, t, a=weights, g=focal.get("gamma", 2): focal_loss_of_classes(o, t, a, g)
        CASES.append(("focal", focal, scores, classes, loss))

VECTORS = [torch.randn(5, 8, dtype=torch.float64) for _ in range(3)]
MORE_VECTORS = [torch.randn(2, 3, 4, dtype=torch.float64) for _ in range(3)]
MORE_VECTORS[1] = MORE_VECTORS[0].clone()
for triplet in [dict(), dict(margin=0.25, p=1), dict(margin=3.0, p=3.5, swap=True), dict(swap=True)]:
    for vectors in [VECTORS, MORE_VECTORS]:
        CASES.append(("triplet", triplet, vectors, [], lambda a, p, n, t=triplet: F.triplet_margin_loss(a, p, n, **t)))
for shape in [(6,), (6, 1), (2, 5)]:
    pair = [torch.randn(shape, dtype=torch.float64) * 20 for _ in range(2)]
    CASES.append(("bpr", dict(), pair, [], lambda p, n: -F.logsigmoid(p - n).mean()))

S = dict(reduction="sum")
TENSORS = dict(weight=torch.tensor([2.0, 0.0, 0.5]).double(), pos_weight=torch.tensor(2.5).double())
CASES += [
    ("nll", S, log_probabilities(PIXELS), PIXEL_CLASSES, lambda o, t: F.nll_loss(o, t, **S)),
    ("cross_entropy", S, SCORES, CLASSES, lambda o, t: F.cross_entropy(o, t, **S)),
    ("cross_entropy", dict(S, label_smoothing=0.1), PIXELS, PIXEL_CLASSES, lambda o, t: F.cross_entropy(o, t, label_smoothing=0.1, **S)),
    over_classes("nll", log_probabilities(PIXELS), PIXELS_LEFT_OUT, dict(S, weight=PIXEL_WEIGHT, ignore_index=7)),
    over_classes("cross_entropy", SCORES, LEFT_OUT, dict(S, weight=WEIGHT, ignore_index=-100, label_smoothing=0.1)),
    ("mse", S, LOGITS, PARTS, lambda o, t: F.mse_loss(o, t, **S)),
    (
        "bce_with_logits",
        dict(S, **{key: each.tolist() for key, each in TENSORS.items()}),
        LOGITS,
        PARTS,
        lambda o, t: F.binary_cross_entropy_with_logits(o, t, **TENSORS, **S),
    ),
    ("huber", dict(S, delta=0.3), VALUES, TARGETS, lambda o, t: F.huber_loss(o.squeeze(1), t, delta=0.3, **S)),
    ("kl_div", S, log_probabilities(SCORES), PROBABILITIES, lambda o, t: F.kl_div(o, t, **S)),
    ("focal", S, MILD, PARTS, lambda o, t: sigmoid_focal_loss(o, t, reduction="sum")),
    ("triplet", S, VECTORS, [], lambda a, p, n: F.triplet_margin_loss(a, p, n, **S)),
    ("bpr", S, [TARGETS, TARGETS.flip(0)], [], lambda p, n: -F.logsigmoid(p - n).sum()),
]
for params, scores, classes in [
    (dict(ignore_index=-100), SCORES, LEFT_OUT),
    (dict(ignore_index=3, gamma=3.5, alpha=WEIGHT), SCORES, CLASSES),
    (dict(ignore_index=7, gamma=0.5), PIXELS, PIXELS_LEFT_OUT),
]:
    alpha = torch.tensor(params.get("alpha", [1.0] * scores.shape[1]), dtype=torch.float64)
    given = alpha, params.get("gamma", 2), params["ignore_index"]
    loss = lambda o, t, given=given: focal_loss_of_classes(o, t, *given)
    CASES.append(("focal", params, scores, classes, loss, lambda t, of=given[2]: (t != of).sum().item()))


def tensor(t):
    return dict(shape=list(t.shape), values=t.flatten().tolist(), classes=not t.is_floating_point())


def listed(tensors):
    return tensors if isinstance(tensors, list) else [tensors]


cases = []
for plugin, params, outputs, targets, loss, *weigh in CASES:
    outputs = [output.clone().requires_grad_(True) for output in listed(outputs)]
    targets = listed(targets)
    value = loss(*outputs, *targets)
    value.backward()
    cases.append(
        dict(
            plugin=plugin,
            params=params,
            outputs=[tensor(output.detach()) for output in outputs],
            targets=[tensor(target) for target in targets],
            loss=value.item(),
            gradients=[output.grad.flatten().tolist() for output in outputs],
            weight=weigh[0](*targets) if weigh else None,
        )
    )
with open(HERE / "losses.json", "w") as file:
    file.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")

# What idx's test of bilinear resizing quotes.
IMAGE = torch.tensor([[[[0.0, 100.0], [50.0, 200.0]]]])
print(F.interpolate(IMAGE, size=(3, 4), mode="bilinear", align_corners=False))
