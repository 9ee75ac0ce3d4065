//! Several ranks in one process, and the functions that they offer to each other.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::tensor_of;
use pstrain::autograd::{Autograd, Context, ContextState, Scope};
use pstrain::rpc::{Body, CallError, Fields, Mesh, MeshConfig, Methods, PendingReply, Value};
use pstrain::topology::{Rank, WorldSize};
use tch::{Device, Kind, Tensor};

/// Rows and columns of every tensor here.
pub const SIZE: i64 = 4;

pub struct World {
    pub ranks: Vec<Node>,
}

pub struct Node {
    pub mesh: Mesh,
    pub autograd: Arc<Autograd>,
}

impl World {
    /// `size` ranks that offer [`apply`], and what `more` adds.
    pub fn start(size: u32, more: impl Fn(&Arc<Autograd>, &mut Methods) + Sync) -> World {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let master = listener.local_addr().expect("bound").to_string();
        let listener = Mutex::new(Some(listener));
        let start = |rank: Rank| {
            let (autograd, mut methods) = (Autograd::new(), Methods::new());
            autograd.register(&mut methods);
            autograd.serve(&mut methods, apply);
            more(&autograd, &mut methods);
            let mut config = MeshConfig::new(rank, WorldSize(size), master.clone());
            config.rpc_timeout = Duration::from_secs(30);
            config.listen = if rank == Rank(0) { listener.lock().expect("whole").take() } else { None };
            let mesh = Mesh::join(config, methods).expect("all ranks come");
            autograd.bind(mesh.clone());
            Node { mesh, autograd }
        };
        let start = &start;
        let ranks = thread::scope(|scope| {
            let joining: Vec<_> = (0..size).map(|rank| scope.spawn(move || start(Rank(rank)))).collect();
            joining.into_iter().map(|rank| rank.join().expect("no panic")).collect()
        });
        World { ranks }
    }

    pub fn root(&self) -> &Arc<Autograd> {
        &self.ranks[0].autograd
    }

    /// What all ranks together have in the context. Names differ between ranks.
    pub fn gradients(&self, context: &Context) -> BTreeMap<String, Tensor> {
        let mut all = BTreeMap::new();
        for node in &self.ranks {
            // A rank that the context never touched has nothing to say.
            if let Ok(gradients) = self.root().gradients(context, node.mesh.rank()).wait() {
                all.extend(gradients);
            }
        }
        all
    }

    /// Waits until no rank has a context open: releases are not waited for.
    pub fn wait_until_no_context_is_open(&self) {
        let open = || self.ranks.iter().map(|node| node.autograd.open_contexts()).collect::<Vec<_>>();
        wait_until(
            || open().iter().all(|&open| open == 0),
            || format!("open contexts by rank: {:?}", open()),
        );
    }
}

/// Looks until it holds; after ten seconds the test fails with what is said then.
#[track_caller]
pub fn wait_until(holds: impl Fn() -> bool, says: impl Fn() -> String) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "{}", says());
        thread::yield_now();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Each waits for all, so all at once.
        thread::scope(|scope| {
            for node in &self.ranks {
                scope.spawn(|| node.mesh.shutdown());
            }
        });
    }
}

/// A matrix of values between -0.5 and 0.5 that depend on its name only.
pub fn value(name: &str) -> Tensor {
    let seed = name.bytes().fold(7u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(byte)));
    let number = |i: u64| {
        (seed.wrapping_add(i).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / f64::from(1 << 24) - 0.5
    };
    let numbers: Vec<f64> = (0..(SIZE * SIZE) as u64).map(number).collect();
    Tensor::from_slice(&numbers).reshape([SIZE, SIZE])
}

/// The parameters that a computation has used, each a leaf of its own.
#[derive(Default)]
pub struct Leaves(Mutex<BTreeMap<String, Tensor>>);

impl Leaves {
    pub fn get(&self, name: &str) -> Tensor {
        let mut leaves = self.0.lock().expect("whole");
        leaves.entry(name.into()).or_insert_with(|| value(name).set_requires_grad(true)).shallow_clone()
    }

    /// The gradients after `.backward()` in one process.
    pub fn gradients(&self) -> BTreeMap<String, Tensor> {
        let leaves = self.0.lock().expect("whole");
        let gradients = leaves.iter().map(|(name, leaf)| (name.clone(), leaf.grad()));
        gradients.filter(|(_, gradient)| gradient.defined()).collect()
    }
}

/// The context's own leaf of a parameter, watched under its name.
pub fn parameter(state: Option<&ContextState>, name: &str) -> Tensor {
    let Some(state) = state else { return value(name) };
    let leaf = state.get_or_insert_with(Leaves::default).get(name);
    state.watch(name, &leaf).expect("a leaf");
    leaf
}

/// Any values, one after the other.
#[derive(Debug)]
pub struct Values(pub Vec<Value>);

impl Body for Values {
    fn encode(self) -> Vec<Value> {
        self.0
    }

    fn decode(fields: &mut Fields) -> Result<Values, CallError> {
        fields.rest("values").map(Values)
    }
}

/// Declares a call of plain values with a reply of such.
macro_rules! call_of_values {
    ($name:ident = $method:literal) => {
        pub struct $name(pub Vec<pstrain::rpc::Value>);

        impl pstrain::rpc::Body for $name {
            fn encode(self) -> Vec<pstrain::rpc::Value> {
                self.0
            }

            fn decode(fields: &mut pstrain::rpc::Fields) -> Result<$name, pstrain::rpc::CallError> {
                fields.rest("values").map($name)
            }
        }

        impl pstrain::rpc::Call for $name {
            const NAME: &'static str = $method;
            type Reply = crate::autograd::world::Values;
        }
    };
}

pub(crate) use call_of_values;

call_of_values!(Apply = "apply");

/// What rank `rank` computes; `p` gives its parameters.
pub fn dense(p: impl Fn(&str) -> Tensor, rank: u32, x: &Tensor) -> Tensor {
    (x.matmul(&p(&format!("{rank}.w"))) + p(&format!("{rank}.b"))).tanh()
}

/// One of them twice.
pub const ROWS: [i64; 4] = [2, 0, 2, 1];

/// Offered by every rank. The first value says what to compute from the others, which are tensors:
/// - `dense`: [`dense`] of the first
/// - `both`: the dense of the first, and twice the first
/// - `sum`: all added
/// - `same`: what came
/// - `rows`: rows of the first, whose gradient is sparse
/// - `via R WHAT`: WHAT on rank R from the dense of the first; then the dense of its first result
/// - `broken`: as `dense`, but its backward fails
pub async fn apply(scope: Scope, Apply(values): Apply) -> Result<Values, CallError> {
    let mut values = values.into_iter();
    let what = values.next().unwrap_or(Value::Nil).into_text()?;
    let x = values.map(tensor_of).collect::<Result<Vec<_>, _>>()?;
    let own = scope.mesh.rank().0;
    let p = |name: &str| parameter(scope.state.as_deref(), name);
    let results = match what.split_once(' ') {
        Some(("via", there)) => {
            let (rank, what) = there.split_once(' ').expect("a rank and what to do there");
            let to = Rank(rank.parse().expect("a rank"));
            let sent = vec![what.into(), dense(p, own, &x[0]).into()];
            let there = scope.call(to, Apply(sent)).await?;
            vec![dense(p, own, &tensors(there)?[0])]
        }
        _ => match what.as_str() {
            "dense" => vec![dense(p, own, &x[0])],
            "both" => vec![dense(p, own, &x[0]), &x[0] * 2.0],
            "sum" => vec![x.iter().sum()],
            "same" => x,
            "rows" => vec![Tensor::embedding(&x[0], &Tensor::from_slice(&ROWS), -1, false, true)],
            "broken" => {
                let mut w = p(&format!("{own}.w"));
                let y = x[0].matmul(&w).sin() * &w;
                let _ = tch::no_grad(|| w.f_add_scalar_(1.0))?;
                vec![y]
            }
            other => return Err(CallError::failed(format_args!("no function `{other}`"))),
        },
    };
    Ok(Values(results.into_iter().map(Value::from).collect()))
}

/// A call of [`apply`] from the trainer.
pub fn start(
    autograd: &Autograd,
    context: &Context,
    to: u32,
    what: &str,
    x: &[&Tensor],
) -> PendingReply<Values> {
    let mut values = vec![Value::from(what)];
    values.extend(x.iter().map(|x| Value::from(x.shallow_clone())));
    autograd.call(Rank(to), Apply(values), Some(context))
}

pub fn on(autograd: &Autograd, context: &Context, to: u32, what: &str, x: &[&Tensor]) -> Vec<Tensor> {
    let answer = start(autograd, context, to, what, x).wait();
    answer.and_then(tensors).unwrap_or_else(|error| panic!("{what} on {to}: {error}"))
}

pub fn tensors(Values(values): Values) -> Result<Vec<Tensor>, CallError> {
    values.into_iter().map(tensor_of).collect()
}

pub fn input() -> Tensor {
    value("input")
}

pub fn loss(y: &Tensor) -> Tensor {
    (y * value("weights of the loss")).sum(Kind::Double)
}

/// To 1e-6 of the reference's largest number, and the same set of names.
pub fn assert_close(got: &BTreeMap<String, Tensor>, wanted: &BTreeMap<String, Tensor>, what: &str) {
    let names = |gradients: &BTreeMap<String, Tensor>| gradients.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(got), names(wanted), "{what}: which have a gradient");
    for (name, wanted) in wanted {
        let difference = largest(&(&got[name] - wanted));
        assert!(
            difference <= 1e-6 * largest(wanted),
            "{what}: `{name}` is off by {difference} of {}",
            largest(wanted)
        );
    }
}

fn largest(tensor: &Tensor) -> f64 {
    tensor.abs().max().to_device(Device::Cpu).double_value(&[])
}
