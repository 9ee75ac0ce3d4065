"""A loss plug-in: Huber's loss, squares near the target and straight lines away from it.

    [loss]
    plugin = "NAME.wasm"
    params = { delta = 0.5 }         # these keys are the arguments of __init__

The tensors stay in the host: libtorch records each operation and finds the gradient. They take
`+ - * / **` and have the methods of `wit/plugin.wit`, with PyTorch's names and meanings.
"""

from pstrain import Problem, export_loss


class Huber:
    def __init__(self, delta: float = 1.0):
        if not delta > 0.0:
            raise Problem(f"`delta` = {delta} is not above 0")
        self.delta = delta

    # The loss of a batch: a scalar made from the outputs. Dimension 0 of all tensors is the batch.
    def compute(self, outputs, targets):
        output = outputs[0]
        # An output of [n, 1] goes with targets of [n].
        error = (output - targets[0].reshape(output.shape())).abs()
        near = error.clamp(None, self.delta)
        return (near * (error - 0.5 * near)).mean([], False)

    # What else to report, as means over the batch; may be left out.
    def metrics(self, outputs, targets):
        error = outputs[0] - targets[0].reshape(outputs[0].shape())
        return {"mae": error.abs().mean([], False).item()}


# The name on the left is the one that the host looks for.
Loss = export_loss(Huber)
