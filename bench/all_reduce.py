#!/usr/bin/env python3
"""The time of an all-reduce by size, two ranks over Gloo on this machine, beside PyTorch's.

    bench/all_reduce.py [--python PYTHON] [--rounds 5] [--sizes 4K,64K,1M,16M,64M]

Both sides are measured alike: a barrier, one all-reduce, the time of the slower rank, the median of many.
"""
from side_by_side import arguments, bench, in_turns, parse, peer
from report import ratio, table


def bytes_of(text):
    return int(text.rstrip("KM")) * {"K": 1 << 10, "M": 1 << 20}.get(text[-1], 1)


def main():
    parser = arguments(__doc__, data=False)
    parser.add_argument("--sizes", default="4K,64K,1M,16M,64M")
    args = parse(parser)
    sizes = args.sizes.split(",")

    def ours():
        told = bench("collectives", "--operations", "all_reduce", "--sizes", args.sizes)
        return [row["median_ms"] for row in told["rows"]]

    measured = in_turns({
        "pstrain": ours,
        "PyTorch": lambda: peer(args.python, "torch_all_reduce.py", *map(bytes_of, sizes)),
    }, args.rounds)
    rows = [[size, f"{own:.3f}", f"{other:.3f}", ratio(own, other)]
            for size, own, other in zip(sizes, *measured.values(), strict=True)]
    print(table(["bytes", "`pstrain` ms", "PyTorch ms", "ours/theirs"], rows))


if __name__ == "__main__":
    main()
