#!/usr/bin/env python3
"""What a parameter-server job takes besides time for its steps: memory, sockets, and seconds to its first step.

    bench/resources.py memory [--data DIR] [--python PYTHON] [--rounds 5] [--steps 100]
    bench/resources.py startup
    bench/resources.py growth [--steps 20000]
    bench/resources.py ranks [--steps 12000] [--world-sizes 2,4,8,16,32]

Steps are those of each trainer, for `ranks` of all together. A resident set is what /proc/PID/statm says while a job
trains: it counts shared pages, those of libraries, in each rank.
"""
import json
import statistics
import tempfile
from pathlib import Path

from report import ratio, table
from side_by_side import (ROOT, arguments, fail, in_turns, parse, parsed, peer, peer_command, peer_environment,
                          spawn_command)
from watch import first_step_s, last_step, watch

CONV, MLP, TINY = ROOT / "jobs/mnist_ps.toml", ROOT / "bench/jobs/mlp_ps.toml", ROOT / "bench/jobs/tiny_ps.toml"
WORLD_SIZE = 4
MIB = 1 << 20
GROWN_FROM = 2000


def watched(job, world_size, values):
    """Samples of a job of ours while it trains, and its summary."""
    with tempfile.TemporaryDirectory() as folder:
        _, samples = watch(spawn_command(job, world_size, folder, values), world_size, folder)
        end = last_step(folder)
        training = [sample for sample in samples if 0 < sample.step < end]
        if not training:
            fail(f"{job.name}, world size {world_size}: over before it was looked at", "give more --steps")
        return training, json.loads((Path(folder) / "summary.json").read_text())


def usual(samples):
    """The median of each rank's usage over the samples; then the server's, and the median of the trainers'."""
    ranks = [[statistics.median(each) for each in zip(*usages, strict=True)]
             for usages in zip(*(sample.ranks for sample in samples), strict=True)]
    return ranks[0], [statistics.median(each) for each in zip(*ranks[1:], strict=True)]


def memory(args):
    steps = args.steps or 100

    def ours():
        values = [f"data.root={args.data}", f"train.steps={steps}", "log.every=1"]
        return residents(watched(CONV, WORLD_SIZE, values)[0])

    def theirs():
        command = peer_command(args.python, "torch_ps.py", "--world-size", WORLD_SIZE, "--data", args.data, "--steps",
                               steps)
        printed, samples = watch(command, WORLD_SIZE, env=peer_environment())
        told = parsed(printed)
        return residents([sample for sample in samples if told["first_step_s"] < sample.seconds < told["last_step_s"]])

    measured = in_turns({"`pstrain`": ours, "PyTorch": theirs}, args.rounds)
    (server, trainer), (peer_server, peer_trainer) = measured.values()
    rows = [["server", server, peer_server, ratio(server, peer_server)],
            ["a trainer", trainer, peer_trainer, ratio(trainer, peer_trainer)]]
    return table(["resident MiB", *measured, "ours/theirs"], rows)


def residents(samples):
    return [usage[0] / MIB for usage in usual(samples)]


def growth(args):
    steps = args.steps or 20_000
    early = min(GROWN_FROM, steps // 2)

    def ours():
        values = [f"data.root={args.data}", "train.epochs=1000", f"train.steps={steps}", "log.every=20"]
        samples, _ = watched(MLP, 2, values)
        after = next((sample for sample in samples if sample.step >= early), None)
        if after is None:
            fail(f"no sample after step {early}", "give more --steps")
        return [[after.ranks[rank].resident / MIB, samples[-1].ranks[rank].resident / MIB] for rank in (0, 1)]

    measured = in_turns({"pstrain": ours}, args.rounds)["pstrain"]
    rows = [[name, early, late, late - early] for name, (early, late) in zip(("server", "trainer"), measured)]
    return table(["resident MiB", f"after {early:,} steps", f"after {steps:,}", "difference"], rows)


def startup(args):
    def ours():
        values = [f"data.root={args.data}", "train.steps=1", "log.every=1"]
        with tempfile.TemporaryDirectory() as folder:
            return first_step_s(spawn_command(CONV, WORLD_SIZE, folder, values), folder)

    def theirs():
        return peer(args.python, "torch_ps.py", "--world-size", WORLD_SIZE, "--steps", 21, "--data",
                    args.data)["first_step_s"]

    measured = in_turns({"`pstrain`": ours, "PyTorch": theirs}, args.rounds)
    ours, theirs = measured.values()
    rows = [[f"seconds to the first step, {WORLD_SIZE} ranks", ours, theirs, ratio(ours, theirs)]]
    return table(["", *measured, "ours/theirs"], rows)


def ranks(args):
    def ours(world_size):
        trainers = world_size - 1
        samples, summary = watched(TINY, world_size, [f"train.steps={(args.steps or 12_000) // trainers}"])
        (server, server_sockets), (trainer, trainer_sockets) = usual(samples)
        return [summary["steps_per_s"] / trainers, server / MIB, trainer / MIB, server_sockets, trainer_sockets]

    sizes = [int(size) for size in args.world_sizes.split(",")]
    measured = in_turns({size: lambda size=size: ours(size) for size in sizes}, args.rounds)
    rows = [[f"{size}", rate, (size - 1) * rate, *rest[:2], *(f"{sockets:.0f}" for sockets in rest[2:])]
            for size, (rate, *rest) in measured.items()]
    return table(["ranks", "steps/s of a trainer", "of all", "server, resident MiB", "a trainer", "server, sockets",
                  "a trainer"], rows)


def main():
    parser = arguments(__doc__)
    measures = {measure.__name__: measure for measure in (memory, startup, growth, ranks)}
    parser.add_argument("what", choices=measures)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--world-sizes", default="2,4,8,16,32")
    args = parse(parser)
    print(measures[args.what](args))


if __name__ == "__main__":
    main()
