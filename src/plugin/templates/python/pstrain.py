"""What a pstrain plug-in in Python needs: it turns plain classes into the exports that the host calls.

A dataset is a class with `__init__(self, ...)`, `__len__`, `fields` and `batch`; a loss one with `__init__`,
`compute` and, if it likes, `metrics`; a metric one with `__init__`, `update`, `state`, `merge` and `value`. The
plug-in's keys in the job file arrive as keyword arguments of `__init__`: one without a default must be given, one that it does not take is an error.

What the training samples settle for all others, such as a vocabulary, a dataset leaves as bytes in `self.state`; its
`__init__` then has the argument `state`, which is None for the first instance of the training samples, and for all
others what that has settled.

To tell the person who runs the job what is wrong, raise `Problem("...")`; a last line "hint: ..." says what to do.
Any other exception is reported with its message and its place in the source.

The worlds themselves are described in `wit/plugin.wit`.
"""

import array
import inspect
import json
from dataclasses import dataclass, field

try:  # There inside a plug-in only: a class can be tried by any Python without it.
    from componentize_py_types import Err
    from wit_world.imports import log as _log
    from wit_world.imports.types import Dtype
except ImportError:
    Err = Dtype = _log = None

# dtype -> the letter of `array`; the 16-bit floats have none and are given as bytes.
_LETTERS = {
    "bool": "B", "uint8": "B", "int8": "b", "int16": "h", "int32": "i", "int64": "q",
    "float16": None, "bfloat16": None, "float32": "f", "float64": "d",
}  # fmt: skip
_PLAIN = {str: "text", int: "a whole number", float: "a number", bool: "true or false", list: "a list", dict: "a table"}


class Problem(Exception):
    """Something that the person who runs the job can put right."""


@dataclass
class Field:
    """One part of a sample. `dtype` is PyTorch's name of one, as "float32"; `shape` is that of one sample, without the
    batch; empty for a scalar."""

    name: str
    dtype: str
    shape: list = field(default_factory=list)


@dataclass
class Batch:
    """Which samples are wanted, in the order of their rows, and what for."""

    indices: list
    train: bool  # Whether the model learns from them. If not, nothing is to be random.
    epoch: int  # The pass over the training samples, counted from 0.
    seed: int  # The job's.

    def random(self, index):
        """A `random.Random` for a sample in this pass: the same whenever it is asked for."""
        from random import Random

        return Random(f"{self.seed} {self.epoch} {index}")


def info(message):
    """A line in the host's log."""
    _log.log(_log.Level.INFO, str(message))


def warn(message):
    """A warning in the host's log."""
    _log.log(_log.Level.WARN, str(message))


def to_bytes(dtype, values):
    """Numbers as little-endian bytes. An `array` or `bytes` of the right type is taken as it is."""
    if isinstance(values, (bytes, bytearray, memoryview)):
        return bytes(values)
    letter = _LETTERS[dtype]
    if letter is None:
        raise TypeError(f"values of {dtype} must be given as bytes")
    if not (isinstance(values, array.array) and values.typecode == letter):
        values = array.array(letter, values)
    return values.tobytes()


def from_bytes(dtype, data):
    """The numbers in little-endian bytes, as an `array`."""
    letter = _LETTERS[dtype]
    if letter is None:
        raise TypeError(f"{dtype} cannot be read as numbers")
    values = array.array(letter)
    values.frombytes(data)
    return values


def export_dataset(cls):
    """`Dataset = export_dataset(MyDataset)` in the plug-in's module makes it a dataset plug-in."""
    from wit_world.exports.dataset import Field as WitField
    from wit_world.exports.dataset import Info
    from wit_world.imports import output

    # Here and not in `self`: the host's calls each come to a new `Dataset`.
    dataset, fields = None, []

    class Dataset:
        def open(self, config, state):
            nonlocal dataset, fields
            with _Problems():
                takes_state = "state" in inspect.signature(cls.__init__).parameters
                dataset = _make(cls, config, {"state": state} if takes_state else {})
                fields = dataset.fields()
                settled = _settled(dataset) if takes_state and state is None else None
                return Info(len(dataset), [_told(WitField, f) for f in fields], settled)

        def batch(self, indices, purpose):
            with _Problems():
                parts = dataset.batch(Batch(indices, purpose.train, purpose.epoch, purpose.seed))
                if len(parts) != len(fields):
                    raise TypeError(f"batch gave {len(parts)} parts, and there are {len(fields)} fields")
                for number, (f, part) in enumerate(zip(fields, parts)):
                    shape = [len(indices), *f.shape]
                    output.emit(number, _dtype(f.dtype), shape, _bytes_of(f, part))

    return Dataset


def export_loss(cls):
    """`Loss = export_loss(MyLoss)` in the plug-in's module makes it a loss plug-in."""
    from wit_world.exports.loss import Computed

    loss = None

    class Loss:
        def open(self, config):
            nonlocal loss
            with _Problems():
                loss = _make(cls, config)

        def compute(self, outputs, targets, want_metrics):
            with _Problems():
                value = loss.compute(outputs, targets)
                if not isinstance(value, Tensor):
                    raise TypeError(f"`compute` gave {_kind(value)}, and a tensor is wanted")
                return Computed(value, _metrics(loss, outputs, targets, want_metrics))

    return Loss


@dataclass
class Buffer:
    """A tensor's numbers, for a raw loss or a metric: `values` is an `array` in row-major order."""

    dtype: str
    shape: list
    values: array.array


def export_raw_loss(cls):
    """`RawLoss = export_raw_loss(MyLoss)` makes it a raw loss: `compute(outputs, targets, want_gradient)` takes lists
    of `Buffer` and returns (loss, gradients) with a sequence of numbers for each output, None for one without."""
    from wit_world.exports.raw_loss import Computed

    loss = None

    class RawLoss:
        def open(self, config):
            nonlocal loss
            with _Problems():
                loss = _make(cls, config)

        def compute(self, outputs, targets, want_gradient, want_metrics):
            with _Problems():
                outputs, targets = _buffers(outputs), _buffers(targets)
                value, gradients = loss.compute(outputs, targets, want_gradient)
                pairs = zip(outputs, gradients or [])
                parts = [b"" if part is None else to_bytes(output.dtype, part) for output, part in pairs]
                return Computed(float(value), parts, _metrics(loss, outputs, targets, want_metrics))

    return RawLoss


def export_metric(cls):
    """`Metric = export_metric(MyMetric)` makes it a metric: `update(outputs, targets)` counts lists of `Buffer`, `state()`
    gives what has been counted as bytes, `merge(state)` counts that of another instance, `value()` is a number, or a dict of
    names and numbers."""
    from wit_world.exports.metric import Figure_Number, Figure_Several

    metric = None

    class Metric:
        def open(self, config):
            nonlocal metric
            with _Problems():
                metric = _make(cls, config)

        def update(self, outputs, targets):
            with _Problems():
                metric.update(_buffers(outputs), _buffers(targets))

        def state(self):
            with _Problems():
                state = metric.state()
                if not isinstance(state, (bytes, bytearray)):
                    raise TypeError(f"`state` gave {_kind(state)}, and bytes are wanted")
                return bytes(state)

        def merge(self, state):
            with _Problems():
                metric.merge(state)

        def value(self):
            with _Problems():
                value = metric.value()
                if isinstance(value, dict):
                    return Figure_Several([(str(name), float(number)) for name, number in value.items()])
                return Figure_Number(float(value))

    return Metric


def _told(WitField, f):
    """The field as the host is told of it; what it would not take is named here."""
    if not isinstance(f, Field):
        raise TypeError(f"`fields` gave {_kind(f)} where a Field is wanted")
    try:
        dtype = _dtype(f.dtype)
    except TypeError as error:
        raise TypeError(f"field `{f.name}`: {error}") from None
    if not all(isinstance(size, int) and size >= 0 for size in f.shape):
        raise TypeError(f"field `{f.name}`: the shape {f.shape!r} has more than whole numbers in it")
    return WitField(f.name, dtype, list(f.shape))


def _bytes_of(f, part):
    try:
        return to_bytes(f.dtype, part)
    except (TypeError, OverflowError) as error:
        raise TypeError(f"field `{f.name}` is {f.dtype}, and what `batch` gave for it is not: {error}") from None


def _buffers(given):
    return [Buffer(_name(b.dtype), b.shape, from_bytes(_name(b.dtype), b.bytes)) for b in given]


def _metrics(loss, outputs, targets, wanted):
    metrics = loss.metrics(outputs, targets) if wanted and hasattr(loss, "metrics") else {}
    return [(name, float(number)) for name, number in metrics.items()]


class _Problems:
    """Hands problems, and files that cannot be read, to the host as errors."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if isinstance(error, Problem):
            raise Err(str(error)) from None
        if isinstance(error, OSError):
            raise Err(f"cannot read `{error.filename}`: {error.strerror} (os error {error.errno})") from None


def _settled(dataset):
    """What the training samples have settled."""
    state = getattr(dataset, "state", None)
    if state is not None and not isinstance(state, (bytes, bytearray)):
        raise TypeError(f"`self.state` is {_kind(state)}, and bytes are wanted")
    return state and bytes(state)


def _make(cls, config, more={}):
    """The author's object from the job's keys, with errors that name the key; and from `more`, which is no key."""
    given = json.loads(config)
    known = {name: p for name, p in inspect.signature(cls.__init__).parameters.items() if name not in ("self", *more)}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in known.values())
    for name, value in given.items():
        if name not in known and not takes_all:
            raise Problem(f"unknown key `{name}`, expected one of `{'`, `'.join(known)}`")
        wanted = known[name].annotation if name in known else None
        if wanted in _PLAIN and not _fits(wanted, value):
            raise Problem(f"key `{name}`: {json.dumps(value)} is not {_PLAIN[wanted]}")
        if wanted is float:
            given[name] = float(value)
    for name, p in known.items():
        if name not in given and p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            raise Problem(f"missing key `{name}`")
    return cls(**given, **more)


def _fits(wanted, value):
    if isinstance(value, bool):
        return wanted is bool
    return isinstance(value, (int, float) if wanted is float else wanted)


def _kind(value):
    return f"a value of type {type(value).__name__}"


def _dtype(name):
    if name not in _LETTERS:
        raise TypeError(f"there is no dtype {name!r}; there are {', '.join(map(repr, _LETTERS))}")
    return Dtype["BOOLEAN" if name == "bool" else name.upper()]


def _handed(dtype):
    """A dtype for the host, from its name or as the host gave it."""
    return dtype if isinstance(dtype, Dtype) else _dtype(dtype)


def _name(dtype):
    return "bool" if dtype is Dtype.BOOLEAN else dtype.name.lower()


def _operators():
    """`+ - * / **` and unary minus for tensors and numbers, as in PyTorch."""
    from wit_world.imports.tensors import Tensor

    def number(value):
        return isinstance(value, (int, float))

    def lift(value, like):
        return Tensor.scalar(float(value), like) if number(value) else value

    Tensor.__add__ = lambda a, b: a.add_scalar(float(b)) if number(b) else a.add(b)
    Tensor.__radd__ = Tensor.__add__
    Tensor.__sub__ = lambda a, b: a.add_scalar(-float(b)) if number(b) else a.sub(b)
    Tensor.__rsub__ = lambda a, b: a.neg().add_scalar(float(b))
    Tensor.__mul__ = lambda a, b: a.mul_scalar(float(b)) if number(b) else a.mul(b)
    Tensor.__rmul__ = Tensor.__mul__
    Tensor.__truediv__ = lambda a, b: a.div(lift(b, a))
    Tensor.__rtruediv__ = lambda a, b: lift(b, a).div(a)
    Tensor.__pow__ = lambda a, b: a.pow_scalar(float(b)) if number(b) else a.pow(b)
    Tensor.__neg__ = Tensor.neg
    Tensor.__matmul__ = Tensor.matmul

    # By their names here, too; what is not a dtype ends the plug-in in the runtime, without a word of what it was.
    to_dtype, from_bytes = Tensor.to_dtype, Tensor.from_bytes
    Tensor.to_dtype = lambda a, dtype: to_dtype(a, _handed(dtype))
    Tensor.from_bytes = staticmethod(lambda dtype, *others: from_bytes(_handed(dtype), *others))
    return Tensor


try:
    Tensor = _operators()
except ImportError:
    Tensor = None
