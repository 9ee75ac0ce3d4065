use super::*;
use crate::job::{self, JobText, Override, Sources};

fn shipped(name: &str, settings: &[&str]) -> Plan {
    let text = match name {
        "mnist_ps" => include_str!("../../../jobs/mnist_ps.toml"),
        _ => include_str!("../../../jobs/digits_ps.toml"),
    };
    let overrides: Vec<_> =
        settings.iter().map(|setting| Override::set(setting).expect("a setting")).collect();
    let sources = Sources { file: JobText { name, text }, env: Vec::new(), overrides: &overrides };
    let job = job::load(&sources).unwrap_or_else(|errors| panic!("{errors}")).job;
    plan(&job, job.training().expect("it trains"), &BTreeMap::new())
}

#[test]
fn the_tutorials_network_on_two_gpus() {
    insta::assert_snapshot!(shipped("mnist_ps", &["cluster.num_gpus=2"]));
}

#[test]
fn without_gpus_the_plan_says_so() {
    insta::assert_snapshot!(shipped(
        "mnist_ps",
        &["optimizer.momentum=0.9", "train.consistency=ssp", "train.staleness=3"]
    ));
}

#[test]
fn bytes_of_a_step_are_those_of_the_tensors() {
    let plan = shipped("mnist_ps", &[]);
    let (images, outputs) = (32 * 28 * 28 * 4, 32 * 10 * 4);
    let of = |from: &str| plan.links.iter().find(|link| link.from == from).map(|link| link.bytes);
    assert_eq!(of("trainer"), Some(images + outputs));
    assert_eq!(of("server"), Some(outputs));
    // python -c "import torch.nn as n; print(sum(p.numel() for m in (n.Conv2d(1,32,3), n.Conv2d(32,64,3),
    //            n.Linear(9216,128), n.Linear(128,10)) for p in m.parameters()))"
    assert_eq!(plan.modules[0].parameters, Some(1_199_882));
}

#[test]
fn one_rank_that_holds_and_trains_sends_nothing() {
    let plan = shipped("digits_ps", &["cluster.world_size=2", "modules.net.place=trainer"]);
    assert!(plan.links.is_empty());
    assert!(plan.to_string().contains("nothing travels"));
}

#[test]
fn the_plan_as_json_names_devices_as_people_do() {
    let json = serde_json::to_value(shipped("mnist_ps", &["cluster.num_gpus=2"])).expect("JSON");
    assert_eq!(json["modules"][0]["layers"][10]["device"], "cuda:1");
    assert_eq!(json["modules"][0]["layers"][0]["output"]["shape"], serde_json::json!([32, 26, 26]));
}
