//! Values and tensors of every kind and size arrive as they were sent.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::support::{LIMIT, echo, error, message, one, shut_down, tensor_of, values, world, world_with};
use proptest::prelude::*;
use pstrain::rpc::{CallErrorKind, ContextId, Mesh, Message, Methods, SentTensor, Value};
use pstrain::topology::Rank;
use tch::{Device, Kind, Tensor};

/// Both ranks of a world that lives as long as the tests.
fn pair() -> &'static [Mesh] {
    static PAIR: OnceLock<Vec<Mesh>> = OnceLock::new();
    PAIR.get_or_init(|| world(2, |_| echo()))
}

#[track_caller]
fn round_trip(tensor: &Tensor) -> Tensor {
    let sent = message([tensor.shallow_clone().into()]);
    tensor_of(one(pair()[0].call(Rank(1), "echo", sent))).expect("a tensor")
}

/// The same shape, dtype and bits.
#[track_caller]
fn assert_same(came: &Tensor, sent: &Tensor) {
    assert_eq!((came.size(), came.kind(), came.device()), (sent.size(), sent.kind(), Device::Cpu));
    assert!(came.is_contiguous() && !came.requires_grad());
    assert_eq!(bits(came), bits(sent));
}

fn bits(tensor: &Tensor) -> Vec<u8> {
    let tensor = tensor.detach().resolve_conj().resolve_neg().contiguous();
    let mut bytes = vec![0; tensor.numel() * tensor.kind().elt_size_in_bytes()];
    if !bytes.is_empty() {
        tensor.copy_data_u8(&mut bytes, tensor.numel());
    }
    bytes
}

#[test]
fn every_dtype_travels() {
    use Kind::*;
    let kinds = [
        Uint8,
        Int8,
        Int16,
        Int,
        Int64,
        Half,
        Float,
        Double,
        BFloat16,
        Bool,
        ComplexHalf,
        ComplexFloat,
        ComplexDouble,
        Float8e5m2,
        Float8e4m3fn,
        Float8e5m2fnuz,
        Float8e4m3fnuz,
    ];
    for kind in kinds {
        let bytes: Vec<u8> = (0..4 * 16).map(|n| if kind == Bool { n % 2 } else { n }).collect();
        let tensor = Tensor::from_data_size(&bytes[..4 * kind.elt_size_in_bytes()], &[2, 2], kind);
        assert_same(&round_trip(&tensor), &tensor);
    }
}

#[test]
fn special_floats_keep_their_bits() {
    let tensor = Tensor::from_slice(&[
        f32::NAN,
        -0.0,
        f32::INFINITY,
        f32::MIN_POSITIVE / 2.,
        f32::from_bits(0xffc1_2345),
    ]);
    assert_same(&round_trip(&tensor), &tensor);
}

#[test]
fn scalars_empty_tensors_and_views_travel() {
    let base = Tensor::arange(60, (Kind::Float, Device::Cpu)).reshape([3, 4, 5]);
    let complex = Tensor::complex(&base, &base);
    let views = [
        Tensor::from(3.5f32),
        Tensor::zeros([0], (Kind::Int64, Device::Cpu)),
        Tensor::zeros([3, 0, 2], (Kind::Float, Device::Cpu)),
        base.transpose(0, 2),
        base.slice(1, 1, 4, 2),
        base.select(2, 3),
        base.expand([2, 3, 4, 5], false),
        complex.conj(),
        complex.conj().imag(),
        base.set_requires_grad(true) * 2.,
        Tensor::zeros([1; 16], (Kind::Uint8, Device::Cpu)),
    ];
    for view in &views {
        assert_same(&round_trip(view), view);
    }
}

/// Rows 4, 0 and 4 of five, each of `width` elements.
fn sparse(width: i64, coalesced: bool) -> Tensor {
    let values = Tensor::arange(3 * width, (Kind::Float, Device::Cpu)).reshape([3, width]);
    let (indices, options) = (Tensor::from_slice(&[4i64, 0, 4]).unsqueeze(0), (Kind::Float, Device::Cpu));
    let tensor = Tensor::sparse_coo_tensor_indices_size(&indices, &values, [5, width], options, false);
    if coalesced { tensor.coalesce() } else { tensor }
}

#[test]
fn sparse_tensors_travel_coalesced_or_not() {
    // Inside the message, and fetched.
    for (width, coalesced) in [(2, false), (2, true), (200_000, false), (200_000, true)] {
        let sent = sparse(width, coalesced);
        let came = round_trip(&sent);
        assert!(came.is_sparse() && came.size() == sent.size());
        assert_eq!(came.is_coalesced(), coalesced);
        assert_same(&came.internal_indices(), &sent.internal_indices());
        assert_same(&came.internal_values(), &sent.internal_values());
    }
    let (indices, values) = (sparse(2, false).internal_indices(), sparse(2, false).internal_values());
    let (indices, values) = (indices.slice(1, 0, 0, 1), values.slice(0, 0, 0, 1));
    let options = (Kind::Float, Device::Cpu);
    let none = Tensor::sparse_coo_tensor_indices_size(&indices, &values, [5, 2], options, false);
    assert_eq!(round_trip(&none).to_dense(None, false), none.to_dense(None, false));
}

#[test]
fn what_cannot_travel_is_said_to_the_caller() {
    let deep = (0..20).fold(Value::Nil, |inner, _| Value::List(vec![inner]));
    let cases = [
        (Tensor::new().into(), CallErrorKind::BadValue),
        (Tensor::zeros([1; 17], (Kind::Uint8, Device::Cpu)).into(), CallErrorKind::BadValue),
        (deep, CallErrorKind::TooLarge),
        (Value::List((0..20_000).map(|_| Value::Nil).collect()), CallErrorKind::TooLarge),
    ];
    for (value, kind) in cases {
        let failed = error(pair()[0].call(Rank(1), "echo", message([value])));
        assert_eq!(failed.kind, kind, "{failed}");
    }
}

#[test]
fn a_message_over_the_limit_is_refused_where_it_is_sent_and_where_it_comes() {
    let limits = |config: &mut pstrain::rpc::MeshConfig| {
        config.max_payload_bytes = if config.rank == Rank(0) { 1 << 20 } else { 1000 };
    };
    let meshes = world_with(2, |_| echo(), limits);
    let bytes = |len| message([Value::Bytes(vec![1; len])]);
    let sent = error(meshes[1].call(Rank(0), "echo", bytes(1001)));
    assert!(sent.message.contains("1001 bytes for one message, which carries at most 1000 bytes"), "{sent}");
    for len in [1001, 600_000] {
        let came = error(meshes[0].call(Rank(1), "echo", bytes(len)));
        assert_eq!(came.kind, CallErrorKind::TooLarge, "{came}");
    }
    one(meshes[0].call(Rank(1), "echo", bytes(1000)));
    shut_down(meshes);
}

#[test]
fn sixteen_mebibytes_travel_both_ways() {
    let tensor = Tensor::arange(4 << 20, (Kind::Int, Device::Cpu)).reshape([1 << 10, 4 << 10]).tr();
    assert_same(&round_trip(&tensor), &tensor);
}

#[test]
fn three_hundred_megabytes_travel() {
    let tensor = Tensor::arange(75_000_000, (Kind::Int, Device::Cpu));
    let sent = message([tensor.shallow_clone().into()]);
    let mut methods = Methods::new();
    methods.add("check", async |incoming| {
        let [came] = values(incoming.message);
        let tensor = tensor_of(came)?;
        let expected = Tensor::arange(75_000_000, (Kind::Int, Device::Cpu));
        Ok(message([Value::Bool(tensor == expected)]))
    });
    let meshes = world(2, |_| methods.clone());
    assert_eq!(one(meshes[0].call(Rank(1), "check", sent)).into_bool(), Ok(true));
    shut_down(meshes);
}

#[test]
fn many_payloads_of_one_message_keep_their_places() {
    let values = (0..40).map(|n: i64| match n % 3 {
        0 => Tensor::full([n * 5000], n, (Kind::Int64, Device::Cpu)).into(),
        1 => Value::Bytes(vec![n as u8; n as usize * 10_000]),
        _ => Value::Text("é".repeat(n as usize * 5_000)),
    });
    let back = pair()[0].call(Rank(1), "echo", message(values)).wait().expect("an answer");
    for (n, value) in (0..).zip(back.values) {
        match value {
            Value::Tensor(sent) => {
                assert_same(&sent.tensor, &Tensor::full([n * 5000], n, (Kind::Int64, Device::Cpu)))
            }
            Value::Bytes(bytes) => assert_eq!(bytes, vec![n as u8; n as usize * 10_000]),
            Value::Text(text) => assert_eq!(text, "é".repeat(n as usize * 5_000)),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_small_call_does_not_wait_for_a_large_tensor() {
    let meshes = world(2, |_| echo());
    let tensor = Tensor::zeros([64 << 20], (Kind::Uint8, Device::Cpu));
    let large = |_| meshes[0].call(Rank(1), "echo", message([tensor.shallow_clone().into()]));
    let mut under_way: Vec<_> = (0..2).map(large).collect();
    let start = Instant::now();
    let mut slowest = Duration::ZERO;
    for _ in 0..10 {
        let sent = Instant::now();
        one(meshes[0].call(Rank(1), "echo", message([5.into()])));
        slowest = slowest.max(sent.elapsed());
    }
    let small = start.elapsed();
    for large in under_way.drain(..) {
        one(large);
    }
    let large = start.elapsed();
    assert!(small < large, "ten small calls took {small:?}, of {large:?} in all, the slowest {slowest:?}");
    shut_down(meshes);
}

/// In bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = statm.split(' ').nth(1).expect("a number").parse().expect("a number");
    pages * 4096
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn neither_side_keeps_what_has_travelled() {
    let meshes = world(2, |_| {
        let mut methods = Methods::new();
        methods.add("sink", async |_| Ok(Message::default()));
        methods
    });
    let before = resident();
    for _ in 0..300 {
        let tensor = Tensor::ones([16 << 20], (Kind::Uint8, Device::Cpu));
        meshes[0].call(Rank(1), "sink", message([tensor.into()])).wait().expect("an answer");
    }
    // 4.8 GB have travelled; other tests, with up to a gigabyte of their own, run beside this one.
    let grown = resident().saturating_sub(before);
    assert!(grown < 2_400_000_000, "{grown} bytes");
    shut_down(meshes);
}

#[derive(Clone, Debug)]
enum Plan {
    Nil,
    Bool(bool),
    Int(i64),
    Float(u64),
    Text(String),
    Bytes(Vec<u8>),
    Tensor(Vec<i64>, Option<u64>),
    List(Vec<Plan>),
}

fn plan() -> impl Strategy<Value = Plan> {
    let leaf = prop_oneof![
        Just(Plan::Nil),
        any::<bool>().prop_map(Plan::Bool),
        any::<i64>().prop_map(Plan::Int),
        any::<u64>().prop_map(Plan::Float),
        any::<String>().prop_map(Plan::Text),
        prop::collection::vec(any::<u8>(), 0..2000).prop_map(Plan::Bytes),
        (300_000usize..600_000).prop_map(|len| Plan::Bytes(vec![7; len])),
        (prop::collection::vec(0i64..6, 0..5), any::<Option<u64>>())
            .prop_map(|(shape, edge)| Plan::Tensor(shape, edge)),
    ];
    leaf.prop_recursive(5, 40, 6, |inner| prop::collection::vec(inner, 0..6).prop_map(Plan::List))
}

fn build(plan: &Plan) -> Value {
    match plan {
        Plan::Nil => Value::Nil,
        Plan::Bool(value) => Value::Bool(*value),
        Plan::Int(value) => Value::Int(*value),
        Plan::Float(bits) => Value::Float(f64::from_bits(*bits)),
        Plan::Text(text) => Value::Text(text.clone()),
        Plan::Bytes(bytes) => Value::Bytes(bytes.clone()),
        Plan::Tensor(shape, edge) => Value::Tensor(SentTensor { tensor: counted(shape), edge: *edge }),
        Plan::List(plans) => Value::List(plans.iter().map(build).collect()),
    }
}

fn counted(shape: &[i64]) -> Tensor {
    Tensor::arange(shape.iter().product::<i64>(), (Kind::Double, Device::Cpu)).reshape(shape)
}

fn is(value: &Value, plan: &Plan) -> bool {
    match (value, plan) {
        (Value::Nil, Plan::Nil) => true,
        (Value::Bool(value), Plan::Bool(plan)) => value == plan,
        (Value::Int(value), Plan::Int(plan)) => value == plan,
        (Value::Float(value), Plan::Float(plan)) => value.to_bits() == *plan,
        (Value::Text(value), Plan::Text(plan)) => value == plan,
        (Value::Bytes(value), Plan::Bytes(plan)) => value == plan,
        (Value::Tensor(value), Plan::Tensor(shape, edge)) => {
            value.tensor == counted(shape) && value.edge == *edge
        }
        (Value::List(values), Plan::List(plans)) => {
            values.len() == plans.len() && values.iter().zip(plans).all(|(value, plan)| is(value, plan))
        }
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_message_comes_back_as_it_was(
        plans in prop::collection::vec(plan(), 0..6),
        context in any::<Option<(u32, u64)>>(),
    ) {
        let context = context.map(|(rank, number)| ContextId { rank: Rank(rank), number });
        let sent = Message { values: plans.iter().map(build).collect(), context };
        let back = pair()[0].call_within(Rank(1), "echo", sent, LIMIT).wait().expect("an answer");
        prop_assert_eq!(back.context, context);
        prop_assert_eq!(back.values.len(), plans.len());
        for (value, plan) in back.values.iter().zip(&plans) {
            prop_assert!(is(value, plan), "{:?} is not {:?}", value, plan);
        }
    }
}
