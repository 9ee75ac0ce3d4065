"""What the SDK for Python says of an author's mistakes, with stand-ins for the host: `python3 plugins/testing/test_python_sdk.py`."""

import array
import enum
import pathlib
import sys
import types
import unittest

NAMES = "BOOLEAN UINT8 INT8 INT16 INT32 INT64 FLOAT16 BFLOAT16 FLOAT32 FLOAT64"
Dtype = enum.Enum("Dtype", NAMES)


class Tensor:
    """The host's, as far as the SDK touches it: a dtype that is none ends a real plug-in without a word."""

    neg = matmul = None

    def to_dtype(self, dtype):
        return dtype.name

    @classmethod
    def from_bytes(cls, dtype, shape, data, like):
        return dtype.name


def stand_in(name, **content):
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(content)


emitted = []
stand_in("componentize_py_types", Err=Exception)
stand_in("wit_world")
stand_in("wit_world.imports", log=None, output=types.SimpleNamespace(emit=lambda *all: emitted.append(all)))
stand_in("wit_world.imports.types", Dtype=Dtype)
stand_in("wit_world.imports.tensors", Tensor=Tensor)
stand_in("wit_world.exports")
stand_in("wit_world.exports.dataset", Field=lambda *all: all, Info=lambda *all: all)
stand_in("wit_world.exports.loss", Computed=lambda *all: all)
stand_in("wit_world.exports.metric", Figure_Number=lambda one: one, Figure_Several=lambda several: several)
sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "src/plugin/templates/python"))
from pstrain import Field, export_dataset, export_loss, export_metric  # noqa: E402

EVALUATION = types.SimpleNamespace(train=False, epoch=0, seed=7)
ALLOWED = "'bool', 'uint8', 'int8', 'int16', 'int32', 'int64', 'float16', 'bfloat16', 'float32', 'float64'"


def dataset(field, part):
    class One:
        def __len__(self):
            return 1

        def fields(self):
            return [field]

        def batch(self, batch):
            return [part]

    return export_dataset(One)()


class Mistakes(unittest.TestCase):
    def says(self, message, run, *arguments):
        with self.assertRaises(TypeError) as caught:
            run(*arguments)
        self.assertEqual(str(caught.exception), message)

    def test_an_unknown_dtype_of_a_field_is_told_with_the_field_and_the_known_ones(self):
        wrong = dataset(Field("target", "float"), [])
        self.says(f"field `target`: there is no dtype 'float'; there are {ALLOWED}", wrong.open, "{}", None)

    def test_values_of_another_dtype_are_told_with_the_field(self):
        wrong = dataset(Field("target", "int64"), array.array("f", [0.5]))
        wrong.open("{}", None)
        message = "field `target` is int64, and what `batch` gave for it is not: "
        self.says(message + "'float' object cannot be interpreted as an integer", wrong.batch, [0], EVALUATION)

    def test_a_shape_of_anything_but_whole_numbers_is_told_with_the_field(self):
        wrong = dataset(Field("x", "float32", [1.5]), [])
        self.says("field `x`: the shape [1.5] has more than whole numbers in it", wrong.open, "{}", None)

    def test_tensors_take_a_dtype_by_its_name_or_as_the_host_gave_it(self):
        self.assertEqual(Tensor().to_dtype("bfloat16"), "BFLOAT16")
        self.assertEqual(Tensor().to_dtype(Dtype.BOOLEAN), "BOOLEAN")
        self.assertEqual(Tensor.from_bytes("int64", [0], b"", None), "INT64")
        self.says(f"there is no dtype 'float'; there are {ALLOWED}", Tensor().to_dtype, "float")

    def test_a_loss_that_gives_no_tensor_is_told_what_it_gave(self):
        class Two:
            def compute(self, outputs, targets):
                return 2.0

        loss = export_loss(Two)()
        loss.open("{}")
        self.says("`compute` gave a value of type float, and a tensor is wanted", loss.compute, [], [], False)

    def test_a_metric_counts_buffers_and_tells_one_figure_or_several(self):
        class Sum:
            def __init__(self, several: bool = False):
                self.several, self.sum = several, 0.0

            def update(self, outputs, targets):
                self.sum += sum(outputs[0].values) + len(targets)

            def state(self):
                return [self.sum] if self.several else array.array("d", [self.sum]).tobytes()

            def merge(self, state):
                self.sum += array.array("d", state)[0]

            def value(self):
                return {"sum": self.sum, "half": self.sum / 2} if self.several else self.sum

        output = types.SimpleNamespace(dtype=Dtype.FLOAT32, shape=[2], bytes=array.array("f", [1, 2]).tobytes())
        one, several = export_metric(Sum)(), export_metric(Sum)()
        one.open("{}")
        several.open('{"several": true}')
        for metric in (one, several):
            metric.update([output], [])
        one.merge(one.state())
        self.assertEqual(one.value(), 6.0)
        self.assertEqual(several.value(), [("sum", 3.0), ("half", 1.5)])
        self.says("`state` gave a value of type list, and bytes are wanted", several.state)

    def test_right_values_reach_the_host(self):
        right = dataset(Field("x", "int32", [2]), [1, 2])
        emitted.clear()
        self.assertEqual(right.open("{}", None), (1, [("x", Dtype.INT32, [2])], None))
        right.batch([0], EVALUATION)
        self.assertEqual(emitted, [(0, Dtype.INT32, [1, 2], array.array("i", [1, 2]).tobytes())])

    def test_a_state_reaches_those_who_are_opened_with_it(self):
        class Words:
            def __init__(self, file, state=None):
                self.state = state if state is not None else b"seen in " + file.encode()

            def __len__(self):
                return len(self.state)

            def fields(self):
                return [Field("x", "uint8")]

        self.assertEqual(export_dataset(Words)().open('{"file": "a"}', None)[::2], (9, b"seen in a"))
        self.assertEqual(export_dataset(Words)().open('{"file": "a"}', b"xy")[::2], (2, None))
        with self.assertRaises(Exception) as caught:
            export_dataset(Words)().open('{"file": "a", "state": "b"}', None)
        self.assertEqual(str(caught.exception), "unknown key `state`, expected one of `file`")

    def test_a_batch_knows_what_it_is_for_and_draws_the_same_numbers_again(self):
        class Told:
            def __len__(self):
                return 1

            def fields(self):
                return [Field("x", "int32", [3])]

            def batch(self, batch):
                drawn = batch.random(batch.indices[0]).randrange(1 << 30)
                return [[int(batch.train), batch.epoch, drawn]]

        told = export_dataset(Told)()
        told.open("{}", None)
        emitted.clear()
        for epoch in (4, 5, 4):
            told.batch([0], types.SimpleNamespace(train=True, epoch=epoch, seed=7))
        first, other, again = (array.array("i", part) for _, _, _, part in emitted)
        self.assertEqual(list(first[:2]), [1, 4])
        self.assertEqual(first, again)
        self.assertNotEqual(first[2], other[2])


if __name__ == "__main__":
    unittest.main()
