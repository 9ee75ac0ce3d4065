#!/usr/bin/env python3
"""Calls between two ranks of this machine, small ones and with tensors, beside PyTorch's RPC over TensorPipe.

    bench/rpc.py [--python PYTHON] [--rounds 5] [--sizes 4K,100K,1M,16M,64M,256M]

`cma` and TensorPipe's default copy tensors from memory to memory; `bulk` and its `tcp` send them as between machines.
"""
from side_by_side import arguments, bench, in_turns, parse, peer
from report import ratio, table

COLUMNS = "`pstrain`, cma", "TensorPipe, default", "`pstrain`, bulk", "TensorPipe, tcp"


def rows_of(measured, sizes):
    """A row has its name, one value for each of the four, and whether more is better."""
    yield ["a small call, us", [each["small"]["median_us"] for each in measured], False]
    beside = [each["small_beside_large"]["median_us"] for each in measured]
    yield ["a small call while 64 MiB are on their way, us", beside, False]
    for nth, rate in enumerate(measured[0]["rates"]):
        rates = [each["rates"][nth]["calls_per_s"] for each in measured]
        yield [f"small calls/s, {rate['in_flight']:.0f} in flight", rates, True]
    for nth, size in enumerate(sizes.split(",")):
        times = [each["tensors"][nth]["median_us"] for each in measured]
        yield [f"a tensor of {size[:-1]} {size[-1]}iB, one way, us", times, False]


def main():
    parser = arguments(__doc__, data=False)
    parser.add_argument("--sizes", default="4K,100K,1M,16M,64M,256M")
    args = parse(parser)
    subjects = {}
    for form, transport in (("cma", "default"), ("bulk", "tcp")):
        subjects[form] = lambda form=form: bench("rpc", "--transport", form, "--sizes", args.sizes)
        subjects[transport] = lambda transport=transport: peer(args.python, "torch_rpc.py", "--transport", transport,
                                                               "--sizes", args.sizes)
    measured = list(in_turns(subjects, args.rounds).values())
    rows = []
    for name, values, more_is_better in rows_of(measured, args.sizes):
        near, near_peer, far, far_peer = values
        times_as_fast = [ratio(*pair if more_is_better else pair[::-1]) for pair in ((near, near_peer), (far, far_peer))]
        rows.append([name, near, near_peer, times_as_fast[0], far, far_peer, times_as_fast[1]])
    print(table(["", *COLUMNS[:2], "times as fast", *COLUMNS[2:], "times as fast"], rows))


if __name__ == "__main__":
    main()
