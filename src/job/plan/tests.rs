use super::*;
use crate::job::{self, JobText, Override, Sources};

fn shipped(name: &str, settings: &[&str]) -> Plan {
    shipped_for(name, settings, None)
}

/// `steps`: of a trainer.
fn shipped_for(name: &str, settings: &[&str], steps: Option<u64>) -> Plan {
    let text = match name {
        "char_lm" => include_str!("../../../jobs/char_lm.toml"),
        "mnist_ps" => include_str!("../../../jobs/mnist_ps.toml"),
        _ => include_str!("../../../jobs/digits_ps.toml"),
    };
    // Tests have schedules of their own.
    let text: Vec<_> = text.lines().filter(|line| !line.starts_with("schedule = ")).collect();
    let text = &text.join("\n");
    let overrides: Vec<_> =
        settings.iter().map(|setting| Override::set(setting).expect("a setting")).collect();
    let sources = Sources { file: JobText { name, text }, env: Vec::new(), overrides: &overrides };
    let job = job::load(&sources).unwrap_or_else(|errors| panic!("{errors}")).job;
    plan(&job, job.training().expect("it trains"), &BTreeMap::new(), steps)
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

fn optimized(settings: &[&str], steps: Option<u64>) -> String {
    shipped_for("char_lm", settings, steps).optimized.to_string()
}

#[test]
fn the_plan_tells_each_group_what_is_frozen_and_draws_the_learning_rate() {
    let told = optimized(
        &[
            "optimizer={ type = \"adamw\", lr = 0.003, weight_decay = 0.1, clip_norm = 1.0, \
             schedule = { type = \"cosine\", warmup = 0.1 }, \
             groups = [{ match = [\"*.bias\", \"net.8.*\"], weight_decay = 0.0 }, { match = [\"net.places.*\"], lr = 1e-3 }] }",
            "modules.net.freeze=[\"net.bytes.*\"]",
        ],
        Some(216),
    );
    insta::assert_snapshot!(told, @r"
    optimizer adamw, of net
      group           parameters  options
      *.bias net.8.*       2,752  weight_decay 0
      net.places.*         6,144  lr 0.001
      the others         357,792  lr 0.003, betas [0.9, 0.999], eps 1e-8
                                  weight_decay 0.1
      gradients are scaled down to a norm of 1 over all parameters of the job
      of net are frozen net.bytes.*: 24,576 parameters in 1 tensor

    learning rate, over the 216 steps of a trainer
      cosine, behind a warm-up of 22 steps, from 0.003
      0.003 |      -'''''---...
            |     -            ''--..
            |    .                   ''-..
            |                             '--.
            |   -                             ''-..
            |  -                                   '--.
            | .                                        ''--...
          0 |.                                                ''----.....
             step 1                                                   216
      0 in step 1, 0.003 in step 23, 1.967e-7 in step 216
    ");
    assert!(told.lines().all(|line| line.len() <= 80), "{told}");
}

#[test]
fn what_is_not_known_of_the_learning_rate_is_not_drawn() {
    let schedule = |schedule: &str, steps| {
        let text = optimized(
            &[&format!("optimizer={{ type = \"sgd\", lr = 0.1, {schedule} }}"), "eval.every_epochs=1"],
            steps,
        );
        text.split_once("\n\n").expect("the rate is apart").1.to_owned()
    };
    insta::assert_snapshot!(schedule("", Some(216)), @"the learning rate stays as it is over the 216 steps of a trainer");
    insta::assert_snapshot!(schedule("schedule = { type = \"cosine\" }", None), @r"
    learning rate, over a trainer's steps, which are not counted
      cosine, from 0.1
    ");
    insta::assert_snapshot!(
        schedule("schedule = { type = \"plateau\", metric = \"loss\", warmup_steps = 20, warmup_from = 0.5 }", Some(216)),
        @r"
    learning rate, over the 216 steps of a trainer
      plateau, behind a warm-up of 20 steps, from 0.1
      when it comes down, `loss` of validations says
      0.1 |                                                ......-----'
          |                                 ......---''''''
          |                  ...------''''''
          |......------''''''
          |
          |
          |
        0 |
           step 1                                                    21
      0.05 in step 1, 0.1 in step 21
    "
    );
}

#[test]
fn each_optimizer_of_a_job_is_told_and_a_module_that_is_frozen_is_in_none() {
    let job = include_str!("../../../jobs/dlrm.toml");
    let settings = ["modules.tables.optimizer={ type = \"sgd\", lr = 0.5 }", "modules.bottom.freeze=[\"*\"]"]
        .map(|setting| Override::set(setting).expect("a setting"));
    let sources =
        Sources { file: JobText { name: "dlrm", text: job }, env: Vec::new(), overrides: &settings };
    let job = job::load(&sources).unwrap_or_else(|errors| panic!("{errors}")).job;
    let plan = plan(&job, job.training().expect("it trains"), &BTreeMap::new(), None);
    insta::assert_snapshot!(plan.optimized, @r"
    optimizer sgd, of tables
      group  parameters  options
      all     9,865,536  lr 0.5

    optimizer adagrad, of top
      group  parameters  options
      all        25,665  lr 0.02, eps 1e-10
      bottom is frozen: 1,936 parameters in 4 tensors

    the learning rates stay as they are over a trainer's steps, which are not counted
    ");
    let json = serde_json::to_value(&plan).expect("JSON");
    assert_eq!(json["optimizers"][0]["groups"][0]["options"]["lr"], 0.5);
    assert_eq!(json["frozen"][0]["module"], "bottom");
}

#[test]
fn a_rate_that_ends_at_its_highest_is_drawn_to_its_last_step() {
    let plan = shipped_for(
        "char_lm",
        &[
            "optimizer.lr=0.003",
            "optimizer.schedule={ type = \"linear\", end_factor = 1.0, start_factor = 0.5, steps = 10 }",
        ],
        Some(12),
    );
    let rate = plan.optimized.learning_rate.expect("it trains");
    let curve = rate.curve.expect("it changes");
    assert_eq!((curve.first.lr, curve.last.step), (0.0015, 12));
    assert_eq!((curve.highest.lr, curve.rates.last().map(|rate| rate.step)), (0.003, Some(12)));
}
