"""TorchScript that means harm, made of `torchscript/loops.pt` by writing other code into it: no PyTorch is needed.

    python tests/data/torchscript_hostile.py
"""

import zipfile
from pathlib import Path

FOLDER = Path(__file__).parent / "torchscript"
# What nobody uses is left out when a script is loaded.
HARMLESS = "    fc = self.fc\n    return torch.add((fc).forward(torch.flatten(x, 1), ), torch.sum(used, dtype=None))\n"
BODIES = {
    # Writes over a file through a map of it, and makes another.
    "writes": """\
    old = torch.from_file("victim.txt", True, 6, dtype=0, layout=None, device=None, pin_memory=None)
    written = torch.fill_(old, 88)
    new = torch.from_file("planted.txt", True, 6, dtype=0, layout=None, device=None, pin_memory=None)
    used = torch.add(written, new)
""",
    # Asks for 6.4 GB, which many a machine has, and writes to them.
    "swells": """\
    used = torch.ones([1000000, 1600], dtype=6, layout=None, device=None, pin_memory=None)
""",
    # Steers whatever terminal there is, and fails with an escape sequence.
    "shouts": """\
    print("\\033[2Jpwned")
    if torch.gt(torch.dim(x), 0):
      ops.prim.RaiseException("\\033]0;pwned\\007", "builtins.Exception")
      used = x
    else:
      used = x
""",
}


def main():
    with zipfile.ZipFile(FOLDER / "loops.pt") as source:
        entries = {info.filename: source.read(info) for info in source.infolist()}
    code = "archive/code/__torch__.py"
    head, _ = entries[code].decode().split("    turns = 1\n")
    for name, body in BODIES.items():
        with zipfile.ZipFile(FOLDER / f"{name}.pt", "w", zipfile.ZIP_STORED) as made:
            for path, content in entries.items():
                text = head + body + HARMLESS
                made.writestr(zipfile.ZipInfo(path), text.encode() if path == code else content)


main()
