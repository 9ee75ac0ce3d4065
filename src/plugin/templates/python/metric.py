"""A metric plug-in: the part of the outputs that are within a tolerance of their targets.

    [eval]
    metrics = [{ plugin = "NAME.wasm", name = "within", params = { tolerance = 0.1 }, mode = "max" }]

The `params` are the arguments of __init__. Each trainer counts its own batches; the first one merges
what the others have counted.
"""

import struct

from pstrain import Problem, export_metric


class Within:
    def __init__(self, tolerance: float = 0.1):
        if not tolerance > 0.0:
            raise Problem(f"`tolerance` = {tolerance} is not above 0")
        self.tolerance = tolerance
        self.hits = self.count = 0

    # Counts a batch. Outputs come as float32 (or float64 if they are that), targets as the dataset
    # gave them.
    def update(self, outputs, targets):
        output, target = outputs[0].values, targets[0].values
        if len(output) != len(target):
            raise Problem(f"{len(output)} outputs cannot be compared with {len(target)} targets")
        self.hits += sum(abs(o - t) <= self.tolerance for o, t in zip(output, target))
        self.count += len(output)

    # What has been counted so far, as bytes, for `merge` of another instance.
    def state(self):
        return struct.pack("<qq", self.hits, self.count)

    # It came from another machine: look at it before it counts.
    def merge(self, state):
        hits, count = struct.unpack("<qq", state)
        if not 0 <= hits <= count:
            raise Problem(f"{hits} hits of {count} came")
        self.hits += hits
        self.count += count

    # One number, or several by their names: {"near": 0.9, "far": 0.1}.
    def value(self):
        return self.hits / self.count if self.count else float("nan")


# The name on the left is the one that the host looks for.
Metric = export_metric(Within)
