//! What a guest may do in one call, done (W-5): how long it and its backward take, and that more is refused.

use std::time::{Duration, Instant};

use tch::{Kind, Tensor};
use wasmtime::component::Resource;

use super::Made;
use crate::job::PluginLimits;
use crate::plugin::bindings::tensors::HostTensor;
use crate::plugin::state::State;

type Handle = Resource<Tensor>;
/// An operation on the call's input.
type Op = dyn Fn(&mut State, u32) -> Made;

fn limits() -> PluginLimits {
    let whole = PluginLimits { max_files: 1 << 20, ..PluginLimits::default() };
    match std::env::var_os("TEST_ALL") {
        Some(_) => whole,
        None => PluginLimits { work_bytes: whole.work_bytes / 16, ..whole },
    }
}

/// A state whose call has this input, with a gradient.
fn begin(input: &Tensor) -> (State, u32) {
    let mut state = State::new("greedy", None, &limits(), Default::default()).unwrap();
    state.budget.begin([input].into_iter());
    let handle = state.table.push(input.shallow_clone()).unwrap().rep();
    (state, handle)
}

fn borrowed(handle: u32) -> Handle {
    Resource::new_borrow(handle)
}

/// Repeats an operation until it is refused, adds up what it gave, and finds the gradient. How long these took.
fn exhaust(input: &Tensor, op: impl Fn(&mut State, u32) -> Made) -> (usize, Duration, Duration) {
    let (mut state, handle) = begin(input);
    let began = Instant::now();
    let mut made = Vec::new();
    let refused = loop {
        match op(&mut state, handle).and_then(|result| state.sum(borrowed(result.rep()), Vec::new(), false)) {
            Ok(sum) => made.push(sum.rep()),
            Err(refused) => break refused.to_string(),
        }
    };
    assert!(refused.contains("`plugins."), "{refused}");
    let forward = began.elapsed();
    let sums: Vec<Tensor> =
        made.iter().map(|sum| state.table.get(&borrowed(*sum)).unwrap().shallow_clone()).collect();
    let loss = Tensor::stack(&sums, 0).sum(Kind::Float);
    let began = Instant::now();
    loss.backward();
    (made.len(), forward, began.elapsed())
}

#[test]
fn a_backward_of_all_that_is_allowed_comes_to_an_end() {
    // 16 MB, as the scores of 1,024 samples over 4,096 classes.
    let input = Tensor::ones([1024, 4096], tch::kind::FLOAT_CPU).set_requires_grad(true);
    let rows = Tensor::arange(1024, tch::kind::INT64_CPU);
    let cases: [(&str, Box<Op>); 8] = [
        ("narrow", Box::new(|s, a| s.narrow(borrowed(a), 0, 0, 1))),
        ("select", Box::new(|s, a| s.select(borrowed(a), 1, 7))),
        ("transpose", Box::new(|s, a| s.transpose(borrowed(a), 0, 1))),
        ("mul", Box::new(|s, a| s.mul(borrowed(a), borrowed(a)))),
        ("pow", Box::new(|s, a| s.pow(borrowed(a), borrowed(a)))),
        ("logsumexp", Box::new(|s, a| s.logsumexp(borrowed(a), vec![1], false))),
        ("cumsum", Box::new(|s, a| s.cumsum(borrowed(a), 0))),
        (
            "index_select",
            Box::new(move |s, a| {
                let index = s.table.push(rows.shallow_clone())?.rep();
                s.index_select(borrowed(a), 0, borrowed(index))
            }),
        ),
    ];
    for (name, op) in cases {
        let (times, forward, backward) = exhaust(&input, op);
        println!("{name}: {times} times, {forward:?} forward, {backward:?} backward");
        assert!(forward + backward < Duration::from_secs(90), "{name}: {forward:?}, {backward:?}");
    }
}

#[test]
fn a_product_that_broadcasts_is_refused_before_it_is_made() {
    let rows = Tensor::ones([1 << 12, 1, 1, 1 << 10], tch::kind::FLOAT_CPU);
    let (mut state, rows) = begin(&rows);
    let columns = state.transpose(borrowed(rows), 2, 3).unwrap().rep();
    let columns = state.transpose(borrowed(columns), 0, 1).unwrap().rep();
    let began = Instant::now();
    let refused = state.matmul(borrowed(rows), borrowed(columns)).unwrap_err().to_string();
    assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
    assert!(refused.starts_with("matmul: it makes 128.1 GiB, after "), "{refused}");
}
