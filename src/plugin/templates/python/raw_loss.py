"""A raw loss plug-in: numbers in, value and gradient out, for small outputs and mathematics that
the tensor operations of a loss plug-in do not have. This one is the pinball loss of a quantile.

    [loss]
    plugin = "NAME.wasm"
    params = { quantile = 0.9 }      # these keys are the arguments of __init__

`pstrain plugin check` compares the gradient with finite differences.
"""

from pstrain import Problem, export_raw_loss


class Pinball:
    def __init__(self, quantile: float = 0.5):
        if not 0.0 < quantile < 1.0:
            raise Problem(f"`quantile` = {quantile} is not between 0 and 1")
        self.quantile = quantile

    # Outputs come as float32 (or float64 if they are that), targets as the dataset gave them.
    # Returns the loss, and for each output its gradient: as many numbers, in the same order.
    def compute(self, outputs, targets, want_gradient):
        output, target = outputs[0].values, targets[0].values
        if len(output) != len(target):
            raise Problem(f"{len(output)} outputs cannot be compared with {len(target)} targets")
        n = len(output)
        # Below the target each unit costs `quantile`, above it one minus that.
        slopes = [-self.quantile if o < t else 1.0 - self.quantile for o, t in zip(output, target)]
        loss = sum(slope * (o - t) for slope, o, t in zip(slopes, output, target)) / n
        return loss, [[slope / n for slope in slopes]]


# The name on the left is the one that the host looks for.
RawLoss = export_raw_loss(Pinball)
