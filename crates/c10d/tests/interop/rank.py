"""One rank of a group whose other ranks may be Rust's; see examples/rank.rs, which prints the same."""

import datetime
import os
import sys

import torch
import torch.distributed as dist


def main(url, rank=-1, size=-1):
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=url, rank=int(rank), world_size=int(size), timeout=limit)
    rank, size = dist.get_rank(), dist.get_world_size()

    total = torch.tensor([rank, 1.0], dtype=torch.float64)
    dist.all_reduce(total)
    print(f"rank {rank}: all_reduce {total.tolist()}")

    from_last = torch.tensor(rank)
    dist.broadcast(from_last, size - 1)
    print(f"rank {rank}: broadcast {from_last.item()}")

    sent = dist.isend(torch.tensor(rank), (rank + 1) % size, tag=3)
    received = torch.tensor(0)
    dist.recv(received, (rank + size - 1) % size, tag=3)
    sent.wait()
    print(f"rank {rank}: ring {received.item()}")

    ends, everyone = dist.new_group([0, size - 1]), dist.new_group(list(range(size)))
    for name, group in (("ends", ends), ("all", everyone)):
        if name == "all" or rank in (0, size - 1):
            most = torch.tensor(rank)
            dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
            print(f"rank {rank}: {name} {most.item()}")
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    # Past the destructors, in which libtorch's own threads end the process at times.
    os._exit(0)


main(*sys.argv[1:])
