"""PyTorch's trajectories of every optimizer, with and without each option; of Lion, which PyTorch has not, the paper's.

    python3 -m venv env && env/bin/pip install torch==2.11.0 numpy safetensors
    env/bin/python tests/data/optimizers.py

writes into optimizers/ beside this file: given.safetensors (start and gradients, which all share), and for each optimizer
NAME.safetensors (parameters after each step, and the state that it ends with) and NAME.json (each case's options, as a job's `OptimizerSpec`). With names
of optimizers behind it, it writes these only.

All cases start from the same two parameters and see the same 20 gradients of each; the second parameter gets none at
steps 4 and 5. Each is run in float32, and in float64, where another order of operations would still be seen.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

FIGURES = Path(__file__).parent / "optimizers"
STEPS = 20
SKIPPED = [4, 5]
SHAPES = [(3, 4), (5,)]
SPARSE_SHAPE = (6, 2)



class Lion(torch.optim.Optimizer):
    """Algorithm 2 of Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, line by line."""

    def __init__(self, params, lr, betas, weight_decay, maximize):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay, maximize=maximize))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for theta in group["params"]:
                if theta.grad is None:
                    continue
                m = self.state[theta].get("exp_avg", torch.zeros_like(theta))
                g = -theta.grad if group["maximize"] else theta.grad
                c = beta1 * m + (1 - beta1) * g
                theta -= group["lr"] * (c.sign() + group["weight_decay"] * theta)
                self.state[theta]["exp_avg"] = beta2 * m + (1 - beta2) * g


OPTIMIZERS = {
    "sgd": (
        torch.optim.SGD,
        dict(lr=0.1, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False, maximize=False),
        dict(
            momentum=dict(momentum=0.9),
            dampening=dict(momentum=0.9, dampening=0.4),
            weight_decay=dict(weight_decay=0.1),
            nesterov=dict(momentum=0.8, nesterov=True),
            all=dict(lr=0.03, momentum=0.8, dampening=0.3, weight_decay=0.05, maximize=True),
        ),
    ),
    "adam": (
        torch.optim.Adam,
        dict(lr=0.01, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.0, amsgrad=False, maximize=False),
        dict(
            betas=dict(betas=[0.5, 0.7]),
            eps=dict(eps=0.1),
            weight_decay=dict(weight_decay=0.1),
            amsgrad=dict(amsgrad=True, betas=[0.9, 0.5]),
            all=dict(lr=0.1, betas=[0.8, 0.6], eps=1e-3, weight_decay=0.05, amsgrad=True, maximize=True),
        ),
    ),
    "adamw": (
        torch.optim.AdamW,
        dict(lr=0.01, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.01, amsgrad=False, maximize=False),
        dict(
            betas=dict(betas=[0.5, 0.7]),
            eps=dict(eps=0.1),
            weight_decay=dict(weight_decay=0.3),
            no_weight_decay=dict(weight_decay=0.0),
            amsgrad=dict(amsgrad=True, betas=[0.9, 0.5]),
            all=dict(lr=0.1, betas=[0.8, 0.6], eps=1e-3, weight_decay=0.05, amsgrad=True, maximize=True),
        ),
    ),
    "adagrad": (
        torch.optim.Adagrad,
        dict(lr=0.1, lr_decay=0.0, weight_decay=0.0, initial_accumulator_value=0.0, eps=1e-10, maximize=False),
        dict(
            lr_decay=dict(lr_decay=0.2),
            weight_decay=dict(weight_decay=0.1),
            initial_accumulator_value=dict(initial_accumulator_value=0.5),
            eps=dict(eps=0.1),
            all=dict(lr_decay=0.1, weight_decay=0.05, initial_accumulator_value=0.1, eps=0.01, maximize=True),
        ),
    ),
    "adadelta": (
        torch.optim.Adadelta,
        dict(lr=1.0, rho=0.9, eps=1e-6, weight_decay=0.0, maximize=False),
        dict(
            lr=dict(lr=0.3),
            rho=dict(rho=0.4),
            eps=dict(eps=1e-2),
            weight_decay=dict(weight_decay=0.1),
            all=dict(lr=0.5, rho=0.7, eps=1e-3, weight_decay=0.05, maximize=True),
        ),
    ),
    "adamax": (
        torch.optim.Adamax,
        dict(lr=0.01, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.0, maximize=False),
        dict(
            betas=dict(betas=[0.5, 0.7]),
            eps=dict(eps=0.1),
            weight_decay=dict(weight_decay=0.1),
            all=dict(lr=0.1, betas=[0.8, 0.6], eps=1e-3, weight_decay=0.05, maximize=True),
        ),
    ),
    "rmsprop": (
        torch.optim.RMSprop,
        dict(lr=0.01, alpha=0.99, eps=1e-8, weight_decay=0.0, momentum=0.0, centered=False, maximize=False),
        dict(
            alpha=dict(alpha=0.6),
            eps=dict(eps=0.1),
            weight_decay=dict(weight_decay=0.1),
            momentum=dict(momentum=0.8),
            centered=dict(centered=True),
            centered_momentum=dict(centered=True, momentum=0.5),
            all=dict(
                lr=0.03, alpha=0.8, eps=1e-3, weight_decay=0.05, momentum=0.3, centered=True, maximize=True
            ),
        ),
    ),
    "rprop": (
        torch.optim.Rprop,
        dict(lr=0.01, etas=[0.5, 1.2], step_sizes=[1e-6, 50.0], maximize=False),
        dict(
            etas=dict(etas=[0.3, 2.0]),
            step_sizes=dict(step_sizes=[0.005, 0.02]),
            all=dict(lr=0.1, etas=[0.7, 1.5], step_sizes=[0.05, 0.3], maximize=True),
        ),
    ),
    "nadam": (
        torch.optim.NAdam,
        dict(
            lr=0.01,
            betas=[0.9, 0.999],
            eps=1e-8,
            weight_decay=0.0,
            momentum_decay=4e-3,
            decoupled_weight_decay=False,
            maximize=False,
        ),
        dict(
            betas=dict(betas=[0.5, 0.7]),
            eps=dict(eps=0.1),
            weight_decay=dict(weight_decay=0.1),
            decoupled_weight_decay=dict(weight_decay=0.1, decoupled_weight_decay=True),
            momentum_decay=dict(momentum_decay=0.3),
            all=dict(
                lr=0.1, betas=[0.8, 0.6], eps=1e-3, weight_decay=0.05, momentum_decay=0.02, maximize=True
            ),
        ),
    ),
    "radam": (
        torch.optim.RAdam,
        dict(
            lr=0.01, betas=[0.9, 0.999], eps=1e-8, weight_decay=0.0, decoupled_weight_decay=False, maximize=False
        ),
        dict(
            betas=dict(betas=[0.5, 0.9]),
            # So short a mean is never rectified.
            short=dict(betas=[0.5, 0.6]),
            eps=dict(eps=0.1),
            weight_decay=dict(weight_decay=0.1),
            decoupled_weight_decay=dict(weight_decay=0.1, decoupled_weight_decay=True),
            all=dict(lr=0.1, betas=[0.8, 0.95], eps=1e-3, weight_decay=0.05, maximize=True),
        ),
    ),
    "lion": (
        Lion,
        dict(lr=0.01, betas=[0.9, 0.99], weight_decay=0.0, maximize=False),
        dict(
            betas=dict(betas=[0.5, 0.7]),
            weight_decay=dict(weight_decay=0.1),
            all=dict(lr=0.1, betas=[0.8, 0.6], weight_decay=0.05, maximize=True),
        ),
    ),
}

SPARSE = {
    "sgd": dict(),
    "adagrad": dict(lr_decay=0.1, initial_accumulator_value=0.2),
}


def draw():
    torch.manual_seed(11)
    start = [torch.randn(shape, dtype=torch.float64) for shape in SHAPES]
    grads = [[torch.randn(shape, dtype=torch.float64) for shape in SHAPES] for _ in range(STEPS)]
    # An element whose gradient is 0 now and then, and one that always points the same way.
    for step, (matrix, vector) in enumerate(grads):
        matrix[0, 0] = 0.0 if step % 3 == 1 else matrix[0, 0]
        vector[0] = vector[0].abs()
    # Few rows, some twice.
    rows = [torch.randint(0, SPARSE_SHAPE[0], (4,)) for _ in range(STEPS)]
    values = [torch.randn(4, SPARSE_SHAPE[1], dtype=torch.float64) for _ in range(STEPS)]
    return start, grads, torch.randn(SPARSE_SHAPE, dtype=torch.float64), rows, values


def run(optimizer, options, start, grads):
    params = [value.clone().requires_grad_() for value in start]
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    optimizer = optimizer(params, **options)
    path = []
    for step in grads:
        for param, grad in zip(params, step):
            param.grad = grad
        optimizer.step()
        path.append([param.detach().clone() for param in params])
    state = {
        f"state/{at}/{slot}": value
        for at, slots in optimizer.state_dict()["state"].items()
        for slot, value in slots.items()
        if value is not None
    }
    return {**{str(at): torch.stack(values) for at, values in enumerate(zip(*path))}, **state}


def main(wanted):
    torch.set_num_threads(1)
    start, grads, sparse_start, rows, values = draw()
    given = {"sparse/start": sparse_start, "sparse/rows": torch.stack(rows), "sparse/values": torch.stack(values)}
    for at, value in enumerate(start):
        given[f"start/{at}"] = value
        given[f"grads/{at}"] = torch.stack([step[at] for step in grads])
    FIGURES.mkdir(exist_ok=True)
    save("given", given)
    for name, (optimizer, defaults, variants) in OPTIMIZERS.items():
        if wanted and name not in wanted:
            continue
        tensors, specs = {}, {}
        for kind, dtype in [("f32", torch.float32), ("f64", torch.float64)]:
            cast = [[value.to(dtype) for value in step] for step in grads]
            for skipped in SKIPPED:
                cast[skipped - 1][1] = None
            cases = {"default": {}, "maximize": dict(maximize=True), **variants}
            for case, changes in cases.items():
                options = {**defaults, **changes}
                specs[case] = {"type": name, **options}
                figures = run(optimizer, options, [value.to(dtype) for value in start], cast)
                tensors.update({f"{case}/{kind}/{key}": value for key, value in figures.items()})
            for case, extra in {"sparse": {}, "sparse_maximize": dict(maximize=True)}.items():
                if name not in SPARSE:
                    continue
                options = {**defaults, **SPARSE[name], **extra}
                specs[case] = {"type": name, **options}
                sparse = [
                    [torch.sparse_coo_tensor(row[None], value.to(dtype), SPARSE_SHAPE)]
                    for row, value in zip(rows, values)
                ]
                figures = run(optimizer, options, [sparse_start.to(dtype)], sparse)
                tensors.update({f"{case}/{kind}/{key}": value for key, value in figures.items()})
        save(name, tensors)
        (FIGURES / f"{name}.json").write_text(json.dumps(specs, indent=1) + "\n")


def save(name, tensors):
    save_file({key: value.contiguous() for key, value in tensors.items()}, FIGURES / f"{name}.safetensors")


if __name__ == "__main__":
    main(sys.argv[1:])
