//! Random graphs over four ranks, each computed across ranks and in one process.

use std::collections::BTreeMap;
use std::sync::Mutex;

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use pstrain::autograd::{Context, Scope};
use pstrain::rpc::{CallError, PendingReply, Value};
use pstrain::topology::Rank;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tch::{Kind, Tensor};

use crate::support::{tensor_of, times};

use super::world::{Leaves, Values, World, assert_close, call_of_values, loss, parameter, tensors, value};

call_of_values!(ResultOf = "result");
call_of_values!(Compute = "compute");

const RANKS: u32 = 4;

/// What a node computes from its inputs. Each is bounded, so that deep graphs keep sensible numbers.
#[derive(Clone, Copy, Debug)]
enum Op {
    /// A parameter of its home rank: a few are shared by many nodes.
    Parameter(u32),
    /// Needs no gradient.
    Constant,
    Dense(u32),
    Add,
    Multiply,
    /// Two outputs.
    SinCos,
    /// The same tensor, not a copy.
    Same,
    Detach,
}

#[derive(Debug)]
struct Node {
    /// Keeps the result and gives it to whoever asks.
    home: u32,
    /// Computes it: the home sends the inputs there and gets the result back.
    worker: u32,
    op: Op,
    /// Node and output.
    inputs: Vec<(usize, usize)>,
    /// Whether ranks that ask for it keep their copy, or ask each time.
    keep: bool,
}

#[derive(Debug)]
struct Graph {
    nodes: Vec<Node>,
    roots: Vec<(usize, usize)>,
    /// Computed, and not used.
    unused: Vec<usize>,
}

impl Graph {
    /// The same on every rank.
    fn new(seed: u64) -> Graph {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut nodes: Vec<Node> = Vec::new();
        for index in 0..rng.random_range(10..28) {
            let home = rng.random_range(0..RANKS);
            let worker = if rng.random_bool(0.3) { rng.random_range(0..RANKS) } else { home };
            let op = match rng.random_range(0..12) {
                _ if index < 3 => Op::Parameter(index as u32),
                0 => Op::Parameter(rng.random_range(0..3)),
                1 => Op::Constant,
                2..5 => Op::Dense(rng.random_range(0..3)),
                5 | 6 => Op::Add,
                7 | 8 => Op::Multiply,
                9 => Op::SinCos,
                10 => Op::Same,
                _ if rng.random_bool(0.3) => Op::Detach,
                _ => Op::Add,
            };
            let arity = match op {
                Op::Parameter(_) | Op::Constant => 0,
                Op::Add => rng.random_range(2..4),
                Op::Multiply => 2,
                _ => 1,
            };
            let pick = |rng: &mut ChaCha8Rng| {
                // Recent ones more often, so that graphs get deep.
                let nearest = if rng.random_bool(0.6) { index.max(5) - 5 } else { 0 };
                let node = rng.random_range(nearest..index);
                (node, rng.random_range(0..outputs(nodes[node].op)))
            };
            let inputs = (0..arity).map(|_| pick(&mut rng)).collect();
            nodes.push(Node { home, worker, op, inputs, keep: rng.random_bool(0.5) });
        }
        let count = nodes.len();
        let any = |rng: &mut ChaCha8Rng, from: usize| {
            let node = rng.random_range(from..count);
            (node, rng.random_range(0..outputs(nodes[node].op)))
        };
        let roots = (0..rng.random_range(1..4)).map(|_| any(&mut rng, count / 2)).collect();
        let unused = (0..rng.random_range(0..3)).map(|_| any(&mut rng, 0).0).collect();
        Graph { nodes, roots, unused }
    }
}

fn outputs(op: Op) -> usize {
    if matches!(op, Op::SinCos) { 2 } else { 1 }
}

fn compute(op: Op, name: &str, home: u32, p: impl Fn(&str) -> Tensor, x: &[Tensor]) -> Vec<Tensor> {
    match op {
        Op::Parameter(k) => vec![p(&format!("{home}.p{k}"))],
        Op::Constant => vec![value(name)],
        Op::Dense(k) => vec![x[0].matmul(&p(&format!("{home}.w{k}"))).tanh()],
        Op::Add => vec![x.iter().sum::<Tensor>() / x.len() as f64],
        Op::Multiply => vec![&x[0] * &x[1]],
        Op::SinCos => vec![x[0].sin(), x[0].cos()],
        Op::Same => vec![x[0].shallow_clone()],
        Op::Detach => vec![x[0].detach()],
    }
}

/// In one process. Nodes that no root needs are computed too, as they may be across ranks.
fn reference(graph: &Graph, seed: u64, leaves: &Leaves) -> Vec<Tensor> {
    let mut results: Vec<Vec<Tensor>> = Vec::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let inputs: Vec<Tensor> = node.inputs.iter().map(|&(i, o)| results[i][o].shallow_clone()).collect();
        let name = format!("{seed}.{index}");
        results.push(compute(node.op, &name, node.worker, |name| leaves.get(name), &inputs));
    }
    graph.roots.iter().map(|&(node, output)| scalar(&results[node][output])).collect()
}

/// A root must require grad, whatever its node is.
fn scalar(result: &Tensor) -> Tensor {
    let bias = Tensor::from(1.0).set_requires_grad(true);
    loss(result).to_kind(Kind::Double) * bias
}

/// What a rank has of a graph within a context: results of its own nodes, and copies of others'.
#[derive(Default)]
struct Results(Mutex<BTreeMap<usize, Vec<Tensor>>>);

impl Results {
    fn get(&self, node: usize) -> Option<Vec<Tensor>> {
        Some(copies(self.0.lock().expect("whole").get(&node)?))
    }

    fn put(&self, node: usize, result: &[Tensor]) {
        self.0.lock().expect("whole").insert(node, copies(result));
    }
}

fn copies(tensors: &[Tensor]) -> Vec<Tensor> {
    tensors.iter().map(Tensor::shallow_clone).collect()
}

/// The result of a node, seen from any rank: from its home, which asks for its inputs in the same way.
fn result_of(
    scope: Scope,
    seed: u64,
    index: usize,
) -> LocalBoxFuture<'static, Result<Vec<Tensor>, CallError>> {
    async move {
        let graph = Graph::new(seed);
        let (node, own) = (&graph.nodes[index], scope.mesh.rank().0);
        let state = scope.state.clone().expect("called in a context");
        let results = state.get_or_insert_with(Results::default);
        if let Some(result) = results.get(index) {
            return Ok(result);
        }
        let numbers = vec![Value::Int(seed as i64), Value::Int(index as i64)];
        if node.home != own {
            let result = tensors(scope.call(Rank(node.home), ResultOf(numbers)).await?)?;
            if node.keep {
                results.put(index, &result);
            }
            return Ok(result);
        }
        let mut values = numbers;
        for &(input, output) in &node.inputs {
            values.push(result_of(scope.clone(), seed, input).await?.swap_remove(output).into());
        }
        let result = tensors(scope.call(Rank(node.worker), Compute(values)).await?)?;
        results.put(index, &result);
        Ok(result)
    }
    .boxed_local()
}

async fn serve_result(scope: Scope, ResultOf(mut values): ResultOf) -> Result<Values, CallError> {
    let (index, seed) = (values.remove(1).into_int()? as usize, values.remove(0).into_int()? as u64);
    Ok(Values(result_of(scope, seed, index).await?.into_iter().map(Value::from).collect()))
}

async fn serve_compute(scope: Scope, Compute(mut values): Compute) -> Result<Values, CallError> {
    let (index, seed) = (values.remove(1).into_int()? as usize, values.remove(0).into_int()? as u64);
    let inputs = values.into_iter().map(tensor_of).collect::<Result<Vec<_>, _>>()?;
    let own = scope.mesh.rank().0;
    let p = |name: &str| parameter(scope.state.as_deref(), name);
    let result = compute(Graph::new(seed).nodes[index].op, &format!("{seed}.{index}"), own, p, &inputs);
    Ok(Values(result.into_iter().map(Value::from).collect()))
}

/// The roots' values, all asked for at the same time.
fn distributed(world: &World, graph: &Graph, seed: u64, context: &Context) -> Vec<Tensor> {
    let ask = |node: usize| {
        let numbers = vec![Value::Int(seed as i64), Value::Int(node as i64)];
        world.root().call(Rank(graph.nodes[node].home), ResultOf(numbers), Some(context))
    };
    let unused: Vec<_> = graph.unused.iter().map(|&node| ask(node)).collect();
    let roots: Vec<_> = graph.roots.iter().map(|&(node, output)| (ask(node), output)).collect();
    unused.into_iter().for_each(|unused| drop(unused.wait().expect("served")));
    let take = |(root, output): (PendingReply<Values>, usize)| {
        scalar(&tensors(root.wait().expect("served")).expect("tensors")[output])
    };
    roots.into_iter().map(take).collect()
}

#[test]
fn random_graphs_over_four_ranks_have_the_gradients_of_one_process() {
    let world = World::start(RANKS, |autograd, methods| {
        autograd.serve(methods, serve_result);
        autograd.serve(methods, serve_compute);
    });
    for seed in 0..times(15, 51) as u64 {
        let graph = Graph::new(seed);
        let context = world.root().context();
        let leaves = Leaves::default();
        let expected = reference(&graph, seed, &leaves);
        let roots = distributed(&world, &graph, seed, &context);
        let what = format!("graph {seed}: {graph:#?}");
        match seed % 3 {
            // One backward for all roots.
            0 => world.root().backward(&context, &roots, false).wait().expect("no rank fails"),
            // Twice the same.
            1 => (0..2)
                .for_each(|_| world.root().backward(&context, &roots, true).wait().expect("no rank fails")),
            // One backward for each root, all under way together; they share parts of the graph.
            _ => {
                let each = |root: &Tensor| world.root().backward(&context, &[root.shallow_clone()], true);
                let under_way: Vec<_> = roots.iter().map(each).collect();
                under_way.into_iter().for_each(|backward| backward.wait().expect("no rank fails"));
            }
        }
        let times = if seed % 3 == 1 { 2.0 } else { 1.0 };
        (expected.iter().sum::<Tensor>() * times).backward();
        assert_close(&world.gradients(&context), &leaves.gradients(), &what);
    }
    world.wait_until_no_context_is_open();
}
