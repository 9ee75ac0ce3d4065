#!/usr/bin/env python3
"""Reads a checkpoint of pstrain with torch.distributed.checkpoint, and compares it bit for bit.

    dcp.py CHECKPOINT MODEL.safetensors

MODEL has the same parameters in one file. Two processes read each tensor cut by rows into two (DTensors), and one reads it whole;
what optimizers remember is read both ways, and put together from the files' own offsets for comparison.
"""
import json
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors import safe_open
from safetensors.torch import load_file
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

warnings.filterwarnings("ignore")


def together(folder):
    """All tensors, from the offsets that the files tell, without torch.distributed.checkpoint."""
    parts = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            offsets = json.loads(file.metadata()["DCP_SHARDING_INFO"])
            for name in file.keys():
                parts.setdefault(name, []).append((offsets[name]["saved_offsets"], file.get_tensor(name)))
    whole = {}
    for name, found in parts.items():
        dims = range(len(found[0][0]))
        shape = [max(at[dim] + part.shape[dim] for at, part in found) for dim in dims]
        tensor = torch.full(shape, float("nan"), dtype=found[0][1].dtype)
        for at, part in found:
            tensor[tuple(slice(a, a + n) for a, n in zip(at, part.shape))] = part
        whole[name] = tensor
    return whole


def load(folder, state, **more):
    dcp.load(state, storage_reader=HuggingFaceStorageReader(str(folder)), **more)


def equal(name, one, other):
    assert one.dtype == other.dtype and torch.equal(one, other), name


def cut_in_two(rank, folder, store):
    """In each of two processes: its half of the rows."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    whole = together(folder)
    state = {
        name: distribute_tensor(torch.zeros_like(tensor), mesh, [Shard(0)])
        for name, tensor in whole.items()
        if tensor.dim() > 0 and tensor.shape[0] > 1
    }
    load(folder, state)
    for name, tensor in state.items():
        equal(name, tensor.to_local(), whole[name].chunk(2)[rank])
    dist.destroy_process_group()


def main():
    folder, model = sys.argv[1:]
    whole = together(folder)
    state = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    load(folder, state, no_dist=True)
    for name, tensor in whole.items():
        assert not tensor.is_floating_point() or not tensor.isnan().any(), name
        equal(name, state[name], tensor)
    weights = load_file(model)
    for name, tensor in weights.items():
        equal(name, state[name], tensor)
        assert f"optim.{name}.exp_avg" in state, name
    with tempfile.TemporaryDirectory() as meeting:
        mp.spawn(cut_in_two, (folder, f"{meeting}/store"), nprocs=2)
    print(f"{len(weights)} parameters and {len(state) - len(weights)} slots are equal, whole and in halves")


if __name__ == "__main__":
    main()
