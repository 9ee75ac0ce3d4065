#!/usr/bin/env python3
"""Steps per second of parameter-server jobs, beside the same model in one process and beside PyTorch's RPC.

    bench/parameter_server.py [--data DIR] [--python PYTHON] [--rounds 5] [--scale 1.0]

Steps are those of all trainers together.
"""
from side_by_side import ROOT, arguments, bench, in_turns, parse, peer, settings, spawn
from report import ratio, table

CONV, MLP = ROOT / "jobs/mnist_ps.toml", ROOT / "bench/jobs/mlp_ps.toml"
# Name, job, model of the peer, trainers, steps of each of ours, and of each of the peer's.
CASES = [("ConvNet, one trainer", CONV, "conv", 1, 300, 150), ("ConvNet, three trainers", CONV, "conv", 3, 120, 70),
         ("784-128-10, one trainer", MLP, "mlp", 1, 4000, 1500), ("784-128-10, three trainers", MLP, "mlp", 3, 2000, 800)]


def case(args, job, model, trainers, steps, peer_steps):
    values = [f"data.root={args.data}", "train.epochs=1000"]
    world_size = trainers + 1

    def of_peer():
        return peer(args.python, "torch_ps.py", "--world-size", world_size, "--model", model, "--steps", peer_steps,
                    "--data", args.data)["steps_per_s"]

    return {
        "one process": lambda: bench("step", job, "--steps", steps, *settings(values))["steps_per_s"],
        "pstrain": lambda: spawn(job, world_size, [*values, f"train.steps={steps}"])["steps_per_s"],
        "PyTorch": of_peer,
    }


def main():
    parser = arguments(__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of steps")
    args = parse(parser)
    rows = []
    for name, job, model, trainers, *steps in CASES:
        scaled = [max(int(count * args.scale), 30) for count in steps]
        alone, ours, theirs = in_turns(case(args, job, model, trainers, *scaled), args.rounds).values()
        rows.append([name, alone, ours, theirs, ratio(ours, alone), ratio(ours, theirs)])
    print(table(["steps/s", "one process", "`pstrain`", "PyTorch", "of one process", "ours/theirs"], rows))


if __name__ == "__main__":
    main()
