//! A module on another rank, as its users see it.

use std::sync::{Arc, Mutex, mpsc};

use crate::parallel::collected;
use crate::support::{shut_down, values, within, world_with};
use pstrain::autograd::Autograd;
use pstrain::job::{self, Consistency, Filter, JobText, ModuleSpec, Sources};
use pstrain::model::{Mode, Module};
use pstrain::parallel::{
    Forward, Hosting, Input, ModuleServer, RangeServer, RemoteModule, RowChoice, ShardServer, StateServer,
    StateSnapshot,
};
use pstrain::rpc::{Mesh, MeshConfig, Message, Methods};
use pstrain::topology::Rank;

const SEED: u64 = 7;

/// The built-in job's model, and its name.
fn spec() -> ModuleSpec {
    let file = JobText { name: "digits_ps", text: include_str!("../../../jobs/digits_ps.toml") };
    let job = job::load(&Sources { file, env: Vec::new(), overrides: &[] }).unwrap().job;
    let job = job.training().unwrap();
    job.modules[0].clone()
}

/// Ranks of which the first hosts the module for the second.
fn hosting(
    spec: &ModuleSpec,
    ranks: u32,
    more: impl Fn(&mut Methods),
    config: impl Fn(&mut MeshConfig),
) -> (Vec<Mesh>, Vec<Arc<Autograd>>) {
    let autograds = Mutex::new(Vec::new());
    let methods = |rank| {
        let (autograd, mut methods) = (Autograd::new(), Methods::new());
        autograd.register(&mut methods);
        let hosting = Hosting {
            spec: spec.clone(),
            seed: SEED,
            trainers: vec![Rank(1)],
            consistency: Consistency::Async,
        };
        let placed = if rank == 0 { vec![hosting] } else { Vec::new() };
        let server = ModuleServer::new(placed, vec![tch::Device::Cpu]);
        server.register(&autograd, &mut methods);
        let shards = ShardServer::new(Rank(rank), Vec::new(), Vec::new(), Consistency::Async);
        let ranges = RangeServer::new(Vec::new(), Vec::new(), Consistency::Async, Filter::None);
        StateServer::new(&server, &shards, &ranges).register(&autograd, &mut methods);
        more(&mut methods);
        autograds.lock().unwrap().push(autograd);
        methods
    };
    let meshes = world_with(ranks, methods, config);
    let autograds: Vec<Arc<Autograd>> = autograds.into_inner().unwrap();
    for (autograd, mesh) in autograds.iter().zip(&meshes) {
        autograd.bind(mesh.clone());
    }
    (meshes, autograds)
}

#[test]
fn a_model_larger_than_a_message_comes_tensor_by_tensor() {
    let spec = spec();
    let module = Module::build(&spec, &[tch::Device::Cpu], SEED).unwrap();
    let initial = module.initial_parameters().unwrap();
    let bytes = |tensor: &tch::Tensor| 4 * tensor.numel() as u64;
    let largest = initial.iter().map(bytes).max().unwrap();
    assert!(initial.iter().map(bytes).sum::<u64>() > largest + 1024, "one message would do");

    // With a little room for what is not the tensor.
    let (meshes, autograds) = hosting(&spec, 2, |_| {}, |config| config.max_payload_bytes = largest + 1024);
    // Over the wire, and on the owner itself.
    for autograd in autograds.iter().rev() {
        let (autograd, name) = (autograd.clone(), spec.name.clone());
        let state = crate::support::later(move || {
            let _module = RemoteModule::get(&autograd, Rank(0), &name).unwrap();
            let snapshot = StateSnapshot::take(&autograd, Rank(0), &name, RowChoice::Used).unwrap();
            collected(&[snapshot])
        });
        let state = within(state);
        for (info, sent) in module.parameters().iter().zip(&initial) {
            assert_eq!(state.value(&info.name), Some(sent), "{}", info.name);
        }
    }
    drop(autograds);
    shut_down(meshes);
}

/// As the master of PyTorch's tutorial on DDP and RPC makes the embedding that its trainers use.
#[test]
fn a_module_made_by_one_rank_on_another_serves_a_third_that_got_its_reference() {
    let spec = spec();
    let (given, taken) = mpsc::channel();
    let more = |methods: &mut Methods| {
        let given = given.clone();
        methods.add("give", move |incoming| {
            let [rref] = values(incoming.message);
            given.send(rref.into_rref().expect("a reference")).expect("the test waits");
            std::future::ready(Ok(Message::default()))
        });
    };
    let (meshes, autograds) = hosting(&spec, 3, more, |_| {});
    let (maker, user, master) = (autograds[2].clone(), autograds[1].clone(), meshes[2].clone());
    let (output, parameters) = within(crate::support::later(move || {
        let made = RemoteModule::get(&maker, Rank(0), "net").unwrap();
        master.call(Rank(1), "give", Message::new(vec![made.rref().clone().into()])).wait().unwrap();
        // Its maker may let go of it.
        drop(made);
        let module = RemoteModule::new(&user, taken.recv().unwrap());
        assert_eq!(module.owner(), Rank(0));
        let input = tch::Tensor::ones([2, 1, 8, 8], (tch::Kind::Float, tch::Device::Cpu));
        let mut outputs = module.start(None, vec![Input::Tensor(input)], Forward::PREDICT).wait().unwrap();
        (outputs.remove(0), module.parameters().unwrap())
    }));
    let module = Module::build(&spec, &[tch::Device::Cpu], SEED).unwrap();
    let initial = module.initial_parameters().unwrap();
    let input = tch::Tensor::ones([2, 1, 8, 8], (tch::Kind::Float, tch::Device::Cpu));
    let expected = tch::no_grad(|| module.forward(&initial, &[input], Mode::EVAL)).unwrap();
    assert_eq!(output, expected);
    assert_eq!(parameters.len(), initial.len());
    assert!(parameters.iter().all(|parameter| parameter.owner() == Rank(0)));
    drop((parameters, autograds));
    shut_down(meshes);
}
