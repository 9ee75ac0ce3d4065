"""The learning rates of torch.optim.lr_scheduler, and of transformers' inverse square root, for `optimizer.schedule`.

    python3 -m venv env && env/bin/pip install torch==2.11.0 numpy
    env/bin/python tests/data/schedules.py

writes plateau.json and schedules.json beside this file: of ReduceLROnPlateau its options, the figures of validations and the factor
behind each; for each case the schedule as a job writes it, the steps that a trainer takes, and by
what the optimizer's learning rate, here BASE, is multiplied in each of them.
"""

import json
import math
from pathlib import Path

import torch
from torch.optim import lr_scheduler as lr

BASE, STEPS = 0.3, 200


def warmed(make, steps, start):
    """Behind a LinearLR; torch's begins above 0, so one from 0 is a LambdaLR."""
    def of(optimizer):
        first = (lr.LinearLR(optimizer, start, 1.0, steps) if start > 0
                 else lr.LambdaLR(optimizer, lambda step: min(step / steps, 1.0)))
        return lr.SequentialLR(optimizer, [first, make(optimizer)], milestones=[steps])
    return of


def inverse_sqrt(warmup, timescale):
    """`get_inverse_sqrt_schedule` of transformers 4.57, whose _get_inverse_sqrt_schedule_lr_lambda this is."""
    shift = timescale - warmup

    def factor(step):
        return step / max(1, warmup) if step < warmup else 1.0 / math.sqrt((step + shift) / timescale)
    return lambda optimizer: lr.LambdaLR(optimizer, factor)


CASES = [
    (dict(type="constant", warmup_steps=30, warmup_from=0.1), warmed(lambda o: lr.ConstantLR(o, 1.0, 1), 30, 0.1)),
    (dict(type="linear"), lambda o: lr.LinearLR(o, 1.0, 0.0, STEPS)),
    (dict(type="linear", start_factor=0.25, end_factor=0.75, steps=60), lambda o: lr.LinearLR(o, 0.25, 0.75, 60)),
    (dict(type="linear", warmup_steps=20), warmed(lambda o: lr.LinearLR(o, 1.0, 0.0, STEPS - 20), 20, 0.0)),
    (dict(type="cosine"), lambda o: lr.CosineAnnealingLR(o, STEPS)),
    (dict(type="cosine", end_factor=0.1, warmup=0.05),
     warmed(lambda o: lr.CosineAnnealingLR(o, STEPS - 10, 0.1 * BASE), 10, 0.0)),
    (dict(type="cosine", end_factor=0.1, warmup_steps=7, warmup_from=0.5),
     warmed(lambda o: lr.CosineAnnealingLR(o, STEPS - 7, 0.1 * BASE), 7, 0.5)),
    (dict(type="cosine_restarts", first_steps=40), lambda o: lr.CosineAnnealingWarmRestarts(o, 40)),
    (dict(type="cosine_restarts", first_steps=15, multiplier=2, end_factor=0.05),
     lambda o: lr.CosineAnnealingWarmRestarts(o, 15, 2, 0.05 * BASE)),
    (dict(type="step", every=30), lambda o: lr.StepLR(o, 30)),
    (dict(type="step", every=7, gamma=0.9), lambda o: lr.StepLR(o, 7, 0.9)),
    (dict(type="multi_step", milestones=[10, 90, 91]), lambda o: lr.MultiStepLR(o, [10, 90, 91])),
    (dict(type="multi_step", milestones=[50, 5], gamma=0.5), lambda o: lr.MultiStepLR(o, [5, 50], 0.5)),
    (dict(type="exponential", gamma=0.98), lambda o: lr.ExponentialLR(o, 0.98)),
    (dict(type="polynomial"), lambda o: lr.PolynomialLR(o, STEPS)),
    (dict(type="polynomial", power=2.5, steps=120), lambda o: lr.PolynomialLR(o, 120, 2.5)),
    (dict(type="one_cycle"), lambda o: lr.OneCycleLR(o, BASE, STEPS, cycle_momentum=False)),
    (dict(type="one_cycle", rising=0.1, start_factor=0.2, end_factor=0.02),
     lambda o: lr.OneCycleLR(o, BASE, STEPS, pct_start=0.1, div_factor=5, final_div_factor=10, cycle_momentum=False)),
    (dict(type="inverse_sqrt", timescale=25, warmup_steps=25), inverse_sqrt(25, 25)),
    (dict(type="inverse_sqrt", timescale=60), inverse_sqrt(0, 60)),
    (dict(type="inverse_sqrt", warmup_steps=50), inverse_sqrt(50, 10_000)),
]


def factors(make):
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=BASE)
    schedule = make(optimizer)
    found = []
    for _ in range(STEPS):
        found.append(optimizer.param_groups[0]["lr"] / BASE)
        optimizer.step()
        schedule.step()
    return found


# Figures of validations: falling, standing still, rising, again better, and NaN.
VALIDATIONS = ([1.0, 0.8, 0.7, 0.7, 0.7, 0.69999, 0.7, 0.7] + [0.7 + 0.01 * n for n in range(12)] + [0.5, 0.6, 0.6, math.nan]
               + [0.6, 0.5, 0.49, 0.49] * 5)
PLATEAUS = [
    dict(),
    dict(patience=1, gamma=0.5),
    dict(patience=0, gamma=0.5, cooldown=2),
    dict(patience=2, gamma=0.3, threshold=0.05, threshold_mode="abs", min_factor=0.01),
    dict(patience=1, gamma=0.5, threshold=0.1, threshold_mode="rel"),
    dict(patience=1, gamma=0.5, mode="max"),
]


def plateau(options):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=BASE)
    torchs = {{"gamma": "factor", "min_factor": "min_lr"}.get(key, key): value for key, value in options.items()}
    if "min_lr" in torchs:
        torchs["min_lr"] *= BASE
    schedule = lr.ReduceLROnPlateau(optimizer, eps=0.0, **torchs)
    found = []
    for figure in VALIDATIONS:
        schedule.step(figure)
        found.append(optimizer.param_groups[0]["lr"] / BASE)
    return found


def main():
    validations = [None if math.isnan(figure) else figure for figure in VALIDATIONS]
    plateaus = [dict(options=options, validations=validations, factors=plateau(options)) for options in PLATEAUS]
    text = ",\n".join(json.dumps(case) for case in plateaus)
    (Path(__file__).parent / "plateau.json").write_text(f"[\n{text}\n]\n")
    cases = [dict(schedule=options, steps=STEPS, factors=factors(make)) for options, make in CASES]
    text = ",\n".join(json.dumps(case) for case in cases)
    (Path(__file__).parent / "schedules.json").write_text(f"[\n{text}\n]\n")


if __name__ == "__main__":
    main()
