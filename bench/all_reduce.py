#!/usr/bin/env python3
"""The time of an all-reduce by size, two ranks over Gloo on this machine, ours and PyTorch's in turns.

    bench/all_reduce.py [--python PYTHON_WITH_TORCH] [--rounds 5] [--sizes 4K,64K,1M,16M,64M]

Both sides are measured alike: a barrier, one all-reduce, the time of the slowest rank, the median of many.
"""
import argparse
import json
import statistics
import sys

from side_by_side import PSTRAIN, in_turns, output

RANK = r'''
import json, os, sys, tempfile, time
import torch, torch.distributed as dist, torch.multiprocessing as mp

def rank(own, path, sizes):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=own, world_size=2)
    medians = []
    for size in sizes:
        tensor = torch.ones(size // 4)
        times = []
        repeats = min(max(64_000_000 // size, 15), 300)
        for turn in range(5 + repeats):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
            if turn >= 5:
                times.append((time.perf_counter() - start) * 1e3)
        slowest = torch.tensor(times)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        medians.append(sorted(slowest.tolist())[len(times) // 2])
    if own == 0:
        print(json.dumps(medians))
    dist.destroy_process_group()

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank, args=(os.path.join(folder, "meet"), json.loads(sys.argv[1])), nprocs=2)
'''


def bytes_of(text):
    return int(text.rstrip("KM")) * {"K": 1 << 10, "M": 1 << 20}.get(text[-1], 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="a Python that has torch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="4K,64K,1M,16M,64M")
    args = parser.parse_args()
    sizes = args.sizes.split(",")

    def ours():
        told = output(PSTRAIN, "bench", "collectives", "--operations", "all_reduce", "--sizes", args.sizes, "--json")
        return [row["median_ms"] for row in json.loads(told)["rows"]]

    import tempfile
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(RANK)
        script.flush()

        def theirs():
            return json.loads(output(args.python, script.name, json.dumps([bytes_of(size) for size in sizes])))

        values = in_turns({"pstrain": ours, "torch": theirs}, args.rounds)
    print(f"{'size':>6} {'pstrain ms':>11} {'torch ms':>11} {'ours/theirs':>12}")
    for nth, size in enumerate(sizes):
        own, other = (statistics.median(each[nth] for each in values[name]) for name in ("pstrain", "torch"))
        print(f"{size:>6} {own:11.3f} {other:11.3f} {own / other:12.2f}", flush=True)


if __name__ == "__main__":
    main()
