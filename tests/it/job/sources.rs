//! Where a job's values come from, and what a resolved job is worth: the same job again, and the same hash
//! wherever the ranks have to agree.

use proptest::prelude::*;
use pstrain::job::{
    self, Consistency, DataRoot, Devices, Init, JobText, Override, Partition, PluginRef, Resolved, Sources,
    Training,
};
use pstrain::topology::{Rank, WorldSize};

const DIGITS: &str = include_str!("../../../jobs/digits_ps.toml");
const MNIST: &str = include_str!("../../../jobs/mnist_ps.toml");

fn load(text: &str, env: &[(&str, &str)], overrides: &[Override]) -> Resolved {
    let env = env.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    let sources = Sources { file: JobText { name: "jobs/mine.toml", text }, env, overrides };
    job::load(&sources).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

fn training(resolved: &Resolved) -> &Training {
    resolved.job.training().expect("it trains")
}

fn set(settings: &[&str]) -> Vec<Override> {
    settings.iter().map(|setting| Override::set(setting).expect("a setting")).collect()
}

#[test]
fn the_tutorials_job_is_what_the_tutorial_does() {
    let resolved = load(MNIST, &[], &[]);
    let (job, training) = (&resolved.job, training(&resolved));
    assert_eq!((job.name.as_str(), training.seed, job.cluster.world_size), ("mnist_ps", 1234, WorldSize(4)));
    assert_eq!(job.cluster.init, Init::Env);
    assert_eq!(job.cluster.master(), "localhost:29500");
    assert_eq!(job.roles[0].ranks, [Rank(0)]);
    assert_eq!(job.roles[1].ranks, [Rank(1), Rank(2), Rank(3)]);
    assert_eq!(job.role_of(Rank(2)).name, "trainer");
    assert_eq!(training.modules[0].place, job.roles[0]);
    assert_eq!(training.modules[0].devices, Devices::At(vec!["fc1".into()]));
    let named =
        training.modules[0].layers().iter().filter(|layer| pstrain::layers::size::parameters(&layer.op) > 0);
    assert_eq!(named.map(|layer| layer.name.as_str()).collect::<Vec<_>>(), ["conv1", "conv2", "fc1", "fc2"]);
    assert_eq!(training.data.root, DataRoot::Folder("data/mnist".into()));
    assert_eq!(training.data.plugin, PluginRef::Builtin("idx".into()));
    assert_eq!(training.data.train["images"], "train-images-idx3-ubyte");
    assert_eq!(training.data.partition, Partition::Split);
    assert_eq!(training.train.batch_size, 32);
    assert_eq!(training.train.consistency, Consistency::Async);
    assert_eq!(training.log.every, 5);
}

#[test]
fn the_builtin_job_needs_no_folder() {
    let resolved = load(DIGITS, &[], &[]);
    let training = training(&resolved);
    assert_eq!(training.data.root, DataRoot::Builtin("digits".into()));
    assert_eq!(training.loss.params["label_smoothing"], 0.1);
}

#[test]
fn options_beat_the_environment_and_the_environment_beats_the_file() {
    let env = [
        ("RANK", "2"),
        ("WORLD_SIZE", "8"),
        ("MASTER_ADDR", "10.0.0.1"),
        ("LOCAL_RANK", "1"),
        ("PSTRAIN_TRAIN__EPOCHS", "7"),
    ];
    let resolved = load(MNIST, &env, &[]);
    assert_eq!((resolved.rank, resolved.local_rank), (Some(Rank(2)), Some(1)));
    assert_eq!(resolved.job.cluster.world_size, WorldSize(8));
    assert_eq!(resolved.job.cluster.master(), "10.0.0.1:29500");
    assert_eq!(training(&resolved).train.epochs, 7);
    let options = [
        Override::option("--rank", "cluster.rank", 1),
        Override::option("--world-size", "cluster.world_size", 2),
        Override::text("--master-addr", "cluster.master_addr", "::1"),
        Override::set("train.epochs=3").expect("a setting"),
    ];
    let resolved = load(MNIST, &env, &options);
    assert_eq!(resolved.rank, Some(Rank(1)));
    assert_eq!(resolved.job.cluster.world_size, WorldSize(2));
    assert_eq!(resolved.job.cluster.master(), "[::1]:29500");
    assert_eq!(training(&resolved).train.epochs, 3);
}

#[test]
fn of_two_ways_to_rank_0_the_later_source_wins() {
    let master = |text: &str, env: &[(&str, &str)], settings: &[&str]| {
        load(text, env, &set(settings)).job.cluster.master()
    };
    assert_eq!(master(MNIST, &[], &["cluster.init=tcp://10.0.0.1:4000"]), "10.0.0.1:4000");
    let env = [("MASTER_ADDR", "10.0.0.2")];
    assert_eq!(master(MNIST, &env, &["cluster.init=tcp://10.0.0.1:4000"]), "10.0.0.1:4000");
    let tcp = MNIST.replace("master_addr = \"localhost\"", "init = \"tcp://10.0.0.1:29500\"");
    assert_eq!(master(&tcp, &[], &[]), "10.0.0.1:29500");
    assert_eq!(master(&tcp, &env, &["cluster.master_port=1"]), "10.0.0.2:1");
}

#[test]
fn a_job_without_a_name_has_that_of_its_file() {
    assert_eq!(load(&MNIST.replace("name = \"mnist_ps\"", ""), &[], &[]).job.name, "mine");
}

#[test]
fn the_hash_is_of_what_ranks_must_agree_on_and_of_nothing_else() {
    let hash = |overrides: &[Override]| load(MNIST, &[], overrides).hash;
    let plain = hash(&[]);
    for same in [
        "data.root=/elsewhere",
        "cluster.master_addr=10.0.0.1",
        "cluster.master_port=4000",
        "cluster.num_gpus=2",
        "cluster.rank=1",
        "cluster.local_rank=1",
        "optimizer.lr=3e-2",
        "optimizer.momentum=0",
    ] {
        assert_eq!(hash(&set(&[same])), plain, "{same}");
    }
    for different in [
        "seed=1",
        "cluster.world_size=3",
        "train.batch_size=16",
        "train.consistency=bsp",
        "optimizer.lr=0.04",
        "modules.net.layers[4].p=0.3",
        "data.train.images=other",
        "data.partition=whole",
        "loss.params.reduction=mean",
    ] {
        assert_ne!(hash(&set(&[different])), plain, "{different}");
    }
    // The same roles in another order give each rank another part.
    let swapped = MNIST.replace("server = 1\ntrainer = \"rest\"", "trainer = \"rest\"\nserver = 1");
    assert_ne!(load(&swapped, &[], &[]).hash, plain);
}

/// The job in the run folder is the job that ran, to the last default.
fn comes_back(resolved: &Resolved) {
    let again = load(&resolved.toml, &[], &[]);
    assert_eq!(again.job, resolved.job, "{}", resolved.toml);
    assert_eq!(again.toml, resolved.toml);
    assert_eq!(again.hash, resolved.hash);
}

#[test]
fn a_resolved_job_loads_as_the_same_job() {
    comes_back(&load(MNIST, &[], &[]));
    comes_back(&load(DIGITS, &[], &[]));
    comes_back(&load(job::starter(), &[("RANK", "1"), ("MASTER_ADDR", "::1")], &[]));
    comes_back(&load(MNIST, &[], &set(&["cluster.init=tcp://[::1]:4000", "cluster.world_size=2"])));
    let swapped = MNIST.replace("server = 1\ntrainer = \"rest\"", "trainer = \"rest\"\nserver = 1");
    comes_back(&load(&swapped, &[], &[]));
}

/// What says how it is optimised, judged and computed, too.
#[test]
fn all_of_a_training_comes_back_from_its_resolved_text() {
    let schedules = [
        "{type=\"constant\", warmup_steps=3}",
        "{type=\"linear\"}",
        "{type=\"cosine\", warmup=0.1, warmup_from=0.5}",
        "{type=\"cosine_restarts\", first_steps=5}",
        "{type=\"step\", every=5, gamma=0.5}",
        "{type=\"multi_step\", milestones=[3, 7], gamma=0.5}",
        "{type=\"exponential\", gamma=0.9}",
        "{type=\"polynomial\"}",
        "{type=\"one_cycle\"}",
        "{type=\"inverse_sqrt\", warmup_steps=4}",
        "{type=\"plateau\", metric=\"accuracy\", mode=\"max\"}",
    ];
    for schedule in schedules {
        let more = [
            &format!("optimizer.schedule={schedule}"),
            "optimizer.clip_norm=1.0",
            "optimizer.groups=[{match=[\"*.bias\"], lr=0.2}]",
            "modules.net.freeze=[\"net.conv1.*\"]",
            "ema.decay=0.9",
            "precision.autocast=fp16",
            "precision.growth_interval=100",
            "checkpoint.every_seconds=9.5",
            "checkpoint.keep=3",
            "eval.every_epochs=1",
            "eval.metrics=[\"perplexity\", {type=\"top_k\", k=3}]",
            "eval.best=ema.top_3",
            "eval.stop={metric=\"perplexity\"}",
        ];
        comes_back(&load(DIGITS, &[], &set(&more)));
    }
}

#[test]
fn the_resolved_text_tells_every_value_in_force() {
    insta::assert_snapshot!(load(DIGITS, &[], &set(&["train.epochs=1"])).toml);
}

/// TOML strings with everything that has to be escaped.
fn text() -> impl Strategy<Value = String> {
    proptest::collection::vec(proptest::char::any(), 1..12).prop_map(|chars| chars.into_iter().collect())
}

fn free(key: String, number: f64, whole: i64) -> serde_json::Value {
    serde_json::json!({ "texts": [key.clone()], "nested": { key: number }, "whole": whole, "flag": true })
}

/// JSON as an inline TOML table, by another writer than the one under test.
fn as_toml(value: &serde_json::Value) -> String {
    toml::Value::try_from(value).expect("no nulls").to_string()
}

proptest! {
    #[test]
    fn any_job_comes_back_from_its_resolved_text(
        seed in 0..=i64::MAX,
        lr in 1e-12..1e12f64,
        number in proptest::num::f64::NORMAL | proptest::num::f64::ZERO,
        whole: i64,
        key in text(),
        trainers in 1u32..100,
        batch in 1u32..5000,
        port: u16,
        staleness in 0u32..1000,
        kind in prop::sample::select(vec!["sgd", "adam", "adamw", "adagrad", "adadelta", "adamax", "rmsprop", "rprop"]),
    ) {
        let table = free(key.clone(), number, whole);
        let root = toml::Value::String(format!("x{key}"));
        let overrides = set(&[
            &format!("seed={seed}"),
            &format!("optimizer={{ type = \"{kind}\", lr = {lr:?} }}"),
            "data.plugin=own.wasm",
            &format!("data.train={}", as_toml(&table)),
            &format!("data.root={root}"),
            &format!("cluster.world_size={}", trainers + 1),
            &format!("cluster.master_port={port}"),
            &format!("train.batch_size={batch}"),
            "train.consistency=ssp",
            &format!("train.staleness={staleness}"),
        ]);
        let text = MNIST.replace("type = \"sgd\"\nlr = 0.03", "");
        let resolved = load(&text, &[], &overrides);
        let Training { seed: read, train, data, .. } = training(&resolved);
        prop_assert_eq!(*read, seed as u64);
        prop_assert_eq!(train.trainers.ranks.len(), trainers as usize);
        prop_assert_eq!(&data.train["texts"], &table["texts"]);
        prop_assert_eq!(&data.train["nested"], &table["nested"]);
        prop_assert_eq!(&data.train["whole"], &table["whole"]);
        comes_back(&resolved);
    }

    #[test]
    fn no_text_makes_the_reader_panic(text in "[a-z\\[\\]{}=\"'0-9.,#\n -]{0,80}", at in 0usize..4000) {
        // Anything in the middle of a sound job: errors or a job, and never silence about both.
        let at = MNIST.char_indices().map(|(i, _)| i).rfind(|i| *i <= at).unwrap_or(0);
        let broken = format!("{}{text}{}", &MNIST[..at], &MNIST[at..]);
        let file = JobText { name: "x.toml", text: &broken };
        if let Err(errors) = job::load(&Sources { file, env: Vec::new(), overrides: &[] }) {
            prop_assert!(!errors.errors.is_empty());
            prop_assert!(!errors.to_string().contains("was not named"), "{errors}\n{broken}");
        }
    }

    #[test]
    fn no_value_makes_the_reader_panic(
        key in prop::sample::select(job_keys()),
        value in prop::sample::select(vec![
            "0", "-1", "1", "2", "3.5", "nan", "9223372036854775807", "1e308", "true", "\"\"", "\"rest\"", "\"net\"",
            "[]", "[1]", "[0, -1]", "[9223372036854775807, 9223372036854775807]", "{}", "{ type = 1 }", "[{}]",
            "[\"relu\"]", "2147483647", "[2147483647, 2147483647, 2147483647]", "1979-05-27",
        ]),
    ) {
        let overrides = set(&[&format!("{key}={value}")]);
        let file = JobText { name: "x.toml", text: MNIST };
        match job::load(&Sources { file, env: Vec::new(), overrides: &overrides }) {
            Ok(resolved) => {
                comes_back(&resolved);
                prop_assert!(!job::plan(&resolved.job, training(&resolved), &Default::default(), None).to_string().is_empty());
            }
            Err(errors) => prop_assert!(!errors.to_string().contains("was not named"), "{errors}"),
        }
    }
}

/// Every key of the resolved job, and every option of its layers.
fn job_keys() -> Vec<String> {
    fn collect(path: &str, value: &toml::Value, keys: &mut Vec<String>) {
        if !path.is_empty() {
            keys.push(path.into());
        }
        match value {
            toml::Value::Table(table) => {
                for (key, value) in table {
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    collect(&path, value, keys);
                }
            }
            toml::Value::Array(entries) => {
                for (index, value) in entries.iter().enumerate() {
                    collect(&format!("{path}[{index}]"), value, keys);
                }
            }
            _ => {}
        }
    }
    let resolved: toml::Table = load(MNIST, &[], &[]).toml.parse().expect("TOML");
    let mut keys = Vec::new();
    collect("", &toml::Value::Table(resolved), &mut keys);
    for option in ["stride", "padding", "dilation", "groups"] {
        keys.push(format!("modules.net.layers[2].{option}"));
        keys.push(format!("modules.net.layers[3].{option}"));
    }
    keys
}
