//! Every operation of the WIT with arguments that nobody would give: each ends with a value or an error, never a panic (W-6).

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tch::{Kind, Tensor};
use wasmtime::component::Resource;

use crate::job::PluginLimits;
use crate::plugin::bindings::tensors::HostTensor;
use crate::plugin::dtype::{dtype_of, is_floating};
use crate::plugin::state::State;

const KINDS: [Kind; 10] = [
    Kind::Float,
    Kind::Int64,
    Kind::Bool,
    Kind::Double,
    Kind::Half,
    Kind::BFloat16,
    Kind::Uint8,
    Kind::Int8,
    Kind::Int16,
    Kind::Int,
];
const SHAPES: [&[i64]; 6] = [&[2, 3], &[], &[3], &[0, 4], &[2, 1, 3], &[1, 7, 1, 2]];

/// One call; each operation takes of it what it wants.
#[derive(Clone, Debug)]
struct Call {
    op: usize,
    operands: [usize; 3],
    integers: [i64; 3],
    list: Vec<i64>,
    numbers: [f64; 2],
    flag: bool,
    dtype: usize,
    bytes: Vec<u8>,
}

/// The names in `resource tensor`.
fn operations() -> Vec<&'static str> {
    let (_, resource) = include_str!("../../../plugins/wit/plugin.wit")
        .split_once("resource tensor {")
        .expect("the WIT has the resource");
    let (resource, _) = resource.split_once("\n    }").expect("and its end");
    let names = resource.lines().filter_map(|line| line.trim().split_once(": "));
    names.filter(|(_, rest)| rest.contains("func(")).map(|(name, _)| name).collect()
}

fn integer() -> impl Strategy<Value = i64> {
    prop_oneof![
        8 => -4..8i64,
        1 => (0..63u32).prop_map(|bits| 1i64 << bits),
        1 => (0..63u32).prop_map(|bits| -(1i64 << bits)),
        1 => prop::sample::select(vec![i64::MIN, i64::MAX, i64::MIN + 1, u32::MAX.into(), i32::MIN.into()]),
        1 => any::<i64>(),
    ]
}

fn number() -> impl Strategy<Value = f64> {
    let famous = [
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        0.0,
        -0.0,
        1e300,
        -1e300,
        f64::MAX,
        f64::MIN,
        f64::MIN_POSITIVE,
        5e-324,
        65504.0,
        65505.0,
        -65504.0,
        3.4028234663852886e38,
        3.5e38,
        9223372036854775807.0,
        -9223372036854775808.0,
        256.0,
        1e10,
        -1.0,
    ];
    prop_oneof![4 => -3.0..3.0f64, 4 => prop::sample::select(famous.to_vec()), 1 => any::<f64>()]
}

fn call(operations: usize) -> impl Strategy<Value = Call> {
    let list = prop::collection::vec(integer(), 0..5);
    let bytes = prop::collection::vec(0..3u8, 0..65);
    let operands = prop::array::uniform3(any::<prop::sample::Index>());
    let parts = (0..operations, operands, prop::array::uniform3(integer()), list);
    let more = (prop::array::uniform2(number()), any::<bool>(), 0..KINDS.len(), bytes);
    (parts, more).prop_map(|((op, operands, integers, list), (numbers, flag, dtype, bytes))| Call {
        op,
        operands: operands.map(|operand| operand.index(usize::MAX)),
        integers,
        list,
        numbers,
        flag,
        dtype,
        bytes,
    })
}

/// A store's state, and the handles that a guest would have.
struct Guest {
    state: State,
    handles: Vec<u32>,
    /// The first handles, which are the call's own.
    inputs: usize,
}

impl Guest {
    fn new() -> Guest {
        let limits = PluginLimits {
            memory_bytes: 1 << 20,
            work_bytes: 1 << 26,
            max_files: 512,
            ..PluginLimits::default()
        };
        let mut guest = Guest {
            state: State::new("wild", None, &limits, Default::default()).unwrap(),
            handles: Vec::new(),
            inputs: 0,
        };
        let shapes = SHAPES.iter().flat_map(|shape| KINDS.map(|kind| (*shape, kind)));
        let inputs: Vec<Tensor> = shapes
            .map(|(shape, kind)| {
                let tensor = Tensor::ones(shape, (kind, tch::Device::Cpu));
                if is_floating(kind) { tensor.set_requires_grad(true) } else { tensor }
            })
            .collect();
        guest.state.budget.begin(inputs.iter());
        for input in inputs {
            guest.handles.push(guest.state.table.push(input).unwrap().rep());
        }
        guest.inputs = guest.handles.len();
        guest
    }

    fn operand(&self, pick: usize) -> Resource<Tensor> {
        Resource::new_borrow(self.handles[pick % self.handles.len()])
    }

    /// The handle that it gives, if it gives one.
    fn run(&mut self, name: &str, call: &Call) -> wasmtime::Result<Option<Resource<Tensor>>> {
        let [a, b, c] = call.operands.map(|pick| self.operand(pick));
        let ([i, j, k], [x, y]) = (call.integers, call.numbers);
        let (list, flag, dtype) = (call.list.clone(), call.flag, dtype_of(KINDS[call.dtype]).unwrap());
        let s = &mut self.state;
        let made = match name {
            "shape" => return s.shape(a).map(|_| None),
            "dtype" => return s.dtype(a).map(|_| None),
            "item" => return s.item(a).map(|_| None),
            "scalar" => s.scalar(x, a),
            "full" => s.full(list, x, a),
            "arange" => s.arange(i, a),
            "from-bytes" => s.from_bytes(dtype, list, call.bytes.clone(), a),
            "add" => s.add(a, b),
            "sub" => s.sub(a, b),
            "mul" => s.mul(a, b),
            "div" => s.div(a, b),
            "pow" => s.pow(a, b),
            "maximum" => s.maximum(a, b),
            "minimum" => s.minimum(a, b),
            "add-scalar" => s.add_scalar(a, x),
            "mul-scalar" => s.mul_scalar(a, x),
            "pow-scalar" => s.pow_scalar(a, x),
            "clamp" => s.clamp(a, flag.then_some(x), (i % 2 == 0).then_some(y)),
            "neg" => s.neg(a),
            "abs" => s.abs(a),
            "sign" => s.sign(a),
            "exp" => s.exp(a),
            "log" => s.log(a),
            "log1p" => s.log1p(a),
            "sqrt" => s.sqrt(a),
            "tanh" => s.tanh(a),
            "sigmoid" => s.sigmoid(a),
            "relu" => s.relu(a),
            "softplus" => s.softplus(a),
            "eq" => s.eq(a, b),
            "gt" => s.gt(a, b),
            "ge" => s.ge(a, b),
            "eq-scalar" => s.eq_scalar(a, x),
            "gt-scalar" => s.gt_scalar(a, x),
            "logical-and" => s.logical_and(a, b),
            "logical-not" => s.logical_not(a),
            "where" => s.where_(a, b, c),
            "sum" => s.sum(a, list, flag),
            "mean" => s.mean(a, list, flag),
            "max" => s.max(a, list, flag),
            "min" => s.min(a, list, flag),
            "logsumexp" => s.logsumexp(a, list, flag),
            "argmax" => s.argmax(a, i, flag),
            "cumsum" => s.cumsum(a, i),
            "softmax" => s.softmax(a, i),
            "log-softmax" => s.log_softmax(a, i),
            "cross-entropy" => s.cross_entropy(a, b, x),
            "gather" => s.gather(a, i, b),
            "index-select" => s.index_select(a, i, b),
            "one-hot" => s.one_hot(a, i),
            "select" => s.select(a, i, j),
            "narrow" => s.narrow(a, i, j, k),
            "cat" => s.cat(if flag { vec![a, b, c] } else { Vec::new() }, i),
            "reshape" => s.reshape(a, list),
            "transpose" => s.transpose(a, i, j),
            "unsqueeze" => s.unsqueeze(a, i),
            "squeeze" => s.squeeze(a, i),
            "matmul" => s.matmul(a, b),
            "to-dtype" => s.to_dtype(a, dtype),
            "detach" => s.detach(a),
            "copy" => s.copy(a),
            name => panic!("the operation `{name}` is not tried here"),
        };
        made.map(Some)
    }

    /// Finds the gradient of all that it made, by its sum. libtorch may refuse one.
    fn backward(&self) {
        for handle in &self.handles[self.inputs..] {
            let tensor = self.state.table.get(&Resource::<Tensor>::new_borrow(*handle)).unwrap();
            if tensor.requires_grad() {
                let _ = tensor.f_sum(tensor.kind()).unwrap().f_backward();
            }
        }
    }

    /// Forgets what it made.
    fn clear(&mut self) {
        for handle in self.handles.drain(self.inputs..) {
            let _: Tensor = self.state.table.delete(Resource::new_own(handle)).unwrap();
        }
    }
}

fn cases(part: u32, all: u32) -> TestRunner {
    let cases = if std::env::var_os("TEST_ALL").is_some() { all } else { part };
    TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() })
}

#[test]
fn no_argument_of_any_operation_panics() {
    let operations = operations();
    assert!(operations.len() > 60, "{operations:?}");
    let calls = prop::collection::vec(call(operations.len()), 1..40);
    cases(60, 4_000)
        .run(&calls, |calls| {
            let mut guest = Guest::new();
            for call in &calls {
                if let Ok(Some(made)) = guest.run(operations[call.op], call) {
                    guest.handles.push(made.rep());
                }
            }
            guest.backward();
            Ok(())
        })
        .unwrap();
}

/// Each operation alone, with each operand and number: what chance may leave out.
#[test]
fn no_operation_panics_whatever_its_first_operand_and_number() {
    let numbers = [1e300, -1e300, f64::NAN, f64::INFINITY, f64::MAX, 65505.0, 3.5e38, -1.0, 0.5];
    for name in operations() {
        let mut guest = Guest::new();
        let inputs = guest.inputs;
        let step = if std::env::var_os("TEST_ALL").is_some() { 1 } else { 11 };
        for first in (0..inputs).step_by(step) {
            for (nth, &x) in numbers.iter().enumerate() {
                let y = numbers[(nth + 1) % numbers.len()];
                let call = Call {
                    op: 0,
                    operands: [first, (first + 7 * nth) % inputs, (first + 3 * nth) % inputs],
                    integers: [nth as i64 - 2, 0, 1],
                    list: vec![nth as i64 - 1; nth % 3],
                    numbers: [x, y],
                    flag: nth % 2 == 0,
                    dtype: nth,
                    bytes: vec![1; 8 * (nth % 3)],
                };
                let made = guest.run(name, &call);
                if let Ok(Some(made)) = made {
                    guest.handles.push(made.rep());
                }
            }
            guest.backward();
            guest.clear();
        }
    }
}
