"""Loads what `pstrain export --to python` has written, strictly, and compares what it gives with what was given before.

    python tests/data/export.py FOLDER...

Each folder has model.py, model.safetensors and called.safetensors: what the model is called with (by the names of its
arguments, or input0, input1, ...) and what it has to give (output).
"""

import importlib.util
import inspect
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

# Relative to the largest output, if that is above 1.
CLOSE = 1e-6


def load(folder):
    spec = importlib.util.spec_from_file_location("exported", folder / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.load(str(folder))


def off_by(folder):
    model = load(folder)
    assert not model.training
    called = load_file(folder / "called.safetensors")
    names = inspect.signature(model.forward).parameters
    inputs = [called[name] if name in called else called[f"input{nth}"] for nth, name in enumerate(names)]
    with torch.no_grad():
        output = model(*inputs)
    wanted = called["output"]
    assert output.shape == wanted.shape, f"{output.shape}, not {wanted.shape}"
    return (output - wanted).abs().max().item() / max(1.0, wanted.abs().max().item())


def main():
    torch.set_num_threads(1)
    failed, worst = 0, 0.0
    for folder in map(Path, sys.argv[1:]):
        try:
            off = off_by(folder)
        except Exception as error:
            print(f"{folder}: {type(error).__name__}: {error}")
            failed += 1
            continue
        worst = max(worst, off)
        if not off <= CLOSE:
            print(f"{folder}: off by {off:.1e}")
            failed += 1
    print(f"{len(sys.argv) - 1} models, whose outputs differ by at most {worst:.1e}; {failed} failed")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
