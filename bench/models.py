#!/usr/bin/env python3
"""Steps per second of one trainer on models of `jobs/`, beside the same model in one process of PyTorch.

    bench/models.py [--python PYTHON] [--rounds 5] [--only char_lm,images] [--scale 1.0]

Both compute on all cores. `pstrain` reads its samples as the job says; PyTorch has them in memory, each batch made up before
it is measured.
"""
from report import ratio, table
from side_by_side import ROOT, arguments, fail, in_turns, parse, peer, spawn

# Name, job, steps, samples of a batch.
MODELS = {
    "char_lm": ("a transformer of characters", 200, 32),
    "images": ("ResNet-18 on images of 32 x 32", 60, 32),
}


def subjects(args, job, steps, batch):
    steps = max(int(steps * args.scale), 12)
    values = [f"train.batch_size={batch}", "train.epochs=1000", f"train.steps={steps}", f"data.root={ROOT}"]
    # Digits that are inside the program.
    values = values[:-1] if job == "images" else values
    return {
        "pstrain": lambda: spawn(ROOT / f"jobs/{job}.toml", 1, values)["steps_per_s"],
        "PyTorch": lambda: peer(args.python, "torch_model.py", "--model", job, "--batch", batch, "--steps", steps),
    }


def main():
    parser = arguments(__doc__, data=False)
    parser.add_argument("--only", type=lambda names: names.split(","), default=list(MODELS))
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of steps")
    args = parse(parser)
    unknown = set(args.only) - set(MODELS)
    if unknown:
        fail(f"--only: no model {', '.join(sorted(unknown))}", "there are " + ", ".join(MODELS))
    rows = []
    for job in args.only:
        name, steps, batch = MODELS[job]
        ours, theirs = in_turns(subjects(args, job, steps, batch), args.rounds).values()
        rows.append([f"{name}, batches of {batch}", ours, theirs, ratio(ours, theirs)])
    print(table(["steps/s", "`pstrain`, one trainer", "PyTorch, one process", "ours/theirs"], rows))


if __name__ == "__main__":
    main()
