//! What bad job files get: every message that a person sees, and that they come all at once.

use pstrain::job::{self, JobErrors, JobText, Override, Resolved, Sources};

/// A small sound job; the tests break it.
const SOUND: &str = r#"
name = "x"
[cluster]
world_size = 4
[roles]
server = 1
trainer = "rest"
[modules.net]
place = "server"
input = [1, 8, 8]
layers = [
  "flatten",
  { type = "linear", name = "fc1", in_features = 64, out_features = 32 },
  "relu",
  { type = "linear", name = "fc2", in_features = 32, out_features = 10 },
]
[data]
root = "data"
plugin = "idx"
[loss]
plugin = "cross_entropy"
[optimizer]
type = "sgd"
lr = 0.1
[train]
epochs = 2
"#;

fn load(text: &str, env: &[(&str, &str)], settings: &[&str]) -> Result<Resolved, JobErrors> {
    let overrides: Vec<_> =
        settings.iter().map(|setting| Override::set(setting).expect("a setting")).collect();
    let env = env.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    job::load(&Sources { file: JobText { name: "x.toml", text }, env, overrides: &overrides })
}

fn sound(text: &str, env: &[(&str, &str)], settings: &[&str]) -> Resolved {
    load(text, env, settings).unwrap_or_else(|errors| panic!("{errors}"))
}

fn errors(text: &str) -> String {
    said(load(text, &[], &[]))
}

fn said(result: Result<Resolved, JobErrors>) -> String {
    result.expect_err("the job is wrong").to_string()
}

/// What the sound job says after one piece of its text has been replaced.
fn replaced(from: &str, to: &str) -> String {
    assert!(SOUND.contains(from), "{from}");
    errors(&SOUND.replace(from, to))
}

/// What the sound job says after a setting.
fn set(settings: &[&str]) -> String {
    said(load(SOUND, &[], settings))
}

#[test]
fn the_sound_job_is_sound() {
    sound(SOUND, &[], &[]);
}

#[test]
fn all_errors_come_at_once_in_the_order_of_the_file() {
    let text = SOUND
        .replace("world_size = 4", "world_size = 4\nnum_gpu = 2")
        .replace("in_features = 32", "in_features = 23")
        .replace("lr = 0.1", "lr = -0.1\nmomentem = 0.9")
        .replace("epochs = 2", "epochs = \"2\"\nbatch_size = 0\nconsistency = \"asinc\"");
    insta::assert_snapshot!(errors(&text), @r#"
    error: job `x.toml`: unknown key `cluster.num_gpu`
      from: x.toml, line 5
      hint: did you mean `num_gpus`?
    error: job `x.toml`: `modules.net.layers[3]`: linear `fc2` wants 23 features (in_features) in the last dimension; [32] comes from relu `2`
      from: x.toml, line 16
      hint: write in_features = 32
    error: job `x.toml`: `optimizer.lr` = -0.1 is not above 0
      from: x.toml, line 25
      hint: use a number above 0
    error: job `x.toml`: unknown key `optimizer.momentem`
      from: x.toml, line 26
      hint: did you mean `momentum`?
    error: job `x.toml`: `train.epochs` = "2" is a string, where a whole number is wanted
      from: x.toml, line 28
      hint: write it without quotes: 2
    error: job `x.toml`: `train.batch_size` = 0 is below 1
      from: x.toml, line 29
      hint: use a whole number from 1 to 16777216
    error: job `x.toml`: `train.consistency` = "asinc" is none of async, bsp, ssp or hogwild
      from: x.toml, line 30
      hint: did you mean "async"?
    "#);
}

#[test]
fn unknown_keys_are_met_with_what_was_meant() {
    insta::assert_snapshot!(replaced("epochs = 2", "epoch = 2"), @r"
    error: job `x.toml`: unknown key `train.epoch`
      from: x.toml, line 26
      hint: did you mean `epochs`?
    ");
    insta::assert_snapshot!(replaced("name = \"x\"", "name = \"x\"\nepochs = 3"), @r"
    error: job `x.toml`: unknown key `epochs`
      from: x.toml, line 3
      hint: did you mean `train.epochs`?
    ");
    insta::assert_snapshot!(replaced("[train]", "[training]"), @r"
    error: job `x.toml`: unknown key `training`
      from: x.toml, line 25
      hint: did you mean `train`?
    ");
    insta::assert_snapshot!(replaced("lr = 0.1", "lr = 0.1\nbetas = [0.9, 0.99]"), @r"
    error: job `x.toml`: unknown key `optimizer.betas`
      from: x.toml, line 25
      hint: known keys: type, lr, momentum, dampening, weight_decay, nesterov, maximize
    ");
    insta::assert_snapshot!(replaced("out_features = 32 }", "out_features = 32, activation = \"relu\" }"), @r"
    error: job `x.toml`: unknown key `modules.net.layers[1].activation`
      from: x.toml, line 13
      hint: known keys: type, name, in_features, out_features, bias
    ");
}

#[test]
fn missing_keys_are_met_with_an_example() {
    insta::assert_snapshot!(replaced("plugin = \"idx\"", ""), @r#"
    error: job `x.toml`: `data.plugin` is missing
      hint: for example plugin = "idx"
    "#);
    insta::assert_snapshot!(replaced("root = \"data\"", ""), @r#"
    error: job `x.toml`: `data.root` is missing
      hint: for example root = "data/mnist"
    "#);
    insta::assert_snapshot!(replaced("type = \"sgd\"", ""), @r#"
    error: job `x.toml`: `optimizer.type` is missing
      hint: for example type = "sgd"
    "#);
    insta::assert_snapshot!(replaced("input = [1, 8, 8]", ""), @r"
    error: job `x.toml`: `modules.net.input` is missing
      from: x.toml, line 8
      hint: the shape of one sample, for example input = [1, 28, 28]
    ");
    insta::assert_snapshot!(replaced(", out_features = 32", ""), @r"
    error: job `x.toml`: `modules.net.layers[1].out_features` is missing
      hint: for example out_features = 64
    ");
    insta::assert_snapshot!(errors(""), @r#"
    error: job `x.toml`: `roles` is missing
      hint: for example [roles] with server = 1 and trainer = "rest"
    error: job `x.toml`: `modules` is missing
      hint: a model is made of modules: [modules.net] with place, input and layers
    error: job `x.toml`: `data.plugin` is missing
      hint: for example plugin = "idx"
    error: job `x.toml`: `loss.plugin` is missing
      hint: for example plugin = "cross_entropy"
    error: job `x.toml`: `optimizer.type` is missing
      hint: for example type = "sgd"
    "#);
}

#[test]
fn mistyped_values_are_met_with_the_type() {
    insta::assert_snapshot!(replaced("epochs = 2", "epochs = \"2\""), @r#"
    error: job `x.toml`: `train.epochs` = "2" is a string, where a whole number is wanted
      from: x.toml, line 26
      hint: write it without quotes: 2
    "#);
    insta::assert_snapshot!(replaced("epochs = 2", "epochs = 2.5"), @r"
    error: job `x.toml`: `train.epochs` = 2.5 is a number with a fraction, where a whole number is wanted
      from: x.toml, line 26
      hint: for example 4
    ");
    insta::assert_snapshot!(replaced("epochs = 2", "epochs = [2]"), @r"
    error: job `x.toml`: `train.epochs` = [2] is a list, where a whole number is wanted
      from: x.toml, line 26
      hint: for example 4
    ");
    insta::assert_snapshot!(replaced("place = \"server\"", "place = 0"), @r#"
    error: job `x.toml`: `modules.net.place` = 0 is a whole number, where a string is wanted
      from: x.toml, line 9
      hint: for example "text"
    "#);
    insta::assert_snapshot!(replaced("[train]", "[data.normalize]\nmean = \"grey\"\n[train]\non_nan = true"), @r#"
    error: job `x.toml`: `data.normalize.mean` = "grey" is a string, where a number is wanted
      from: x.toml, line 26
      hint: for example 0.1
    error: job `x.toml`: `train.on_nan` = true is a boolean, where a string is wanted
      from: x.toml, line 28
      hint: for example "text"
    "#);
    insta::assert_snapshot!(replaced("[train]\nepochs = 2", "[log]\nevery = 1\n[[train]]"), @r#"
    error: job `x.toml`: `train` = [{}] is a list, where a table is wanted
      from: x.toml, line 27
      hint: for example { key = "value" }
    "#);
    insta::assert_snapshot!(replaced("\"relu\"", "7"), @r#"
    error: job `x.toml`: `modules.net.layers[2]` = 7 is no layer
      from: x.toml, line 14
      hint: write "relu", or { type = "linear", in_features = 784, out_features = 10 }
    "#);
}

#[test]
fn numbers_out_of_range_are_met_with_the_limit() {
    insta::assert_snapshot!(replaced("epochs = 2", "batch_size = 0"), @r"
    error: job `x.toml`: `train.batch_size` = 0 is below 1
      from: x.toml, line 26
      hint: use a whole number from 1 to 16777216
    ");
    insta::assert_snapshot!(replaced("epochs = 2", "epochs = 99999999999999999999"), @r"
    error: job `x.toml`: `train.epochs` = 99999999999999999999 is above 1000000
      from: x.toml, line 26
      hint: use a whole number from 1 to 1000000
    ");
    insta::assert_snapshot!(replaced("world_size = 4", "master_port = 70000"), @r"
    error: job `x.toml`: `cluster.master_port` = 70000 is above 65535
      from: x.toml, line 4
      hint: use a whole number from 0 to 65535
    ");
    insta::assert_snapshot!(replaced("\"relu\"", "{ type = \"dropout\", p = 1.5 }"), @r"
    error: job `x.toml`: `modules.net.layers[2].p` = 1.5 is not from 0 to 1
      from: x.toml, line 14
      hint: use a number from 0 to 1
    ");
    insta::assert_snapshot!(replaced("lr = 0.1", "lr = 0"), @r"
    error: job `x.toml`: `optimizer.lr` = 0 is not above 0
      from: x.toml, line 24
      hint: use a number above 0
    ");
    insta::assert_snapshot!(replaced("name = \"x\"", "name = \"x\"\nseed = -1"), @r"
    error: job `x.toml`: `seed` = -1 is below 0
      from: x.toml, line 3
      hint: use at least 0
    ");
}

#[test]
fn numbers_that_are_none_are_refused_everywhere() {
    insta::assert_snapshot!(replaced("lr = 0.1", "lr = nan\nmomentum = inf\nweight_decay = -inf"), @r"
    error: job `x.toml`: `optimizer.lr` = nan is not a finite number
      from: x.toml, line 24
      hint: a job has no use for nan and inf
    error: job `x.toml`: `optimizer.momentum` = inf is not a finite number
      from: x.toml, line 25
      hint: a job has no use for nan and inf
    error: job `x.toml`: `optimizer.weight_decay` = -inf is not a finite number
      from: x.toml, line 26
      hint: a job has no use for nan and inf
    ");
    insta::assert_snapshot!(replaced("[loss]", "[data.train]\nnoise = [0.5, nan]\n[loss]\nparams = { gamma = inf }"), @r"
    error: job `x.toml`: `data.train.noise[1]` = nan is not a finite number
      from: x.toml, line 21
      hint: a job has no use for nan and inf
    error: job `x.toml`: `loss.params.gamma` = inf is not a finite number
      from: x.toml, line 23
      hint: a job has no use for nan and inf
    ");
    insta::assert_snapshot!(replaced("lr = 0.1", "lr = 1e999"), @r"
    error: job `x.toml`: `optimizer.lr` = inf is not a finite number
      from: x.toml, line 24
      hint: a job has no use for nan and inf
    ");
}

#[test]
fn words_that_are_no_choice_are_met_with_the_choices() {
    insta::assert_snapshot!(replaced("epochs = 2", "consistency = \"hogwyld\""), @r#"
    error: job `x.toml`: `train.consistency` = "hogwyld" is none of async, bsp, ssp or hogwild
      from: x.toml, line 26
      hint: did you mean "hogwild"?
    "#);
    insta::assert_snapshot!(replaced("type = \"sgd\"", "type = \"lion\""), @r#"
    error: job `x.toml`: `optimizer.type` = "lion" is none of sgd, adam, adamw, adagrad, adadelta, adamax, rmsprop or rprop
      from: x.toml, line 23
      hint: for example "sgd"
    "#);
    insta::assert_snapshot!(replaced("\"relu\"", "\"Conv2d\""), @r"
    error: job `x.toml`: `modules.net.layers[2]`: there is no layer of type `Conv2d`
      from: x.toml, line 14
      hint: did you mean `conv2d`?
    ");
    insta::assert_snapshot!(replaced("\"relu\"", "\"nn.ReLUU\""), @r"
    error: job `x.toml`: `modules.net.layers[2]`: there is no layer of type `nn.ReLUU`
      from: x.toml, line 14
      hint: did you mean `relu`?
    ");
    insta::assert_snapshot!(replaced("\"relu\"", "\"transformer\""), @r"
    error: job `x.toml`: `modules.net.layers[2]`: there is no layer of type `transformer`
      from: x.toml, line 14
      hint: known layers: linear, conv1d, conv2d, embedding, embedding_bag, batch_norm1d, batch_norm2d, layer_norm, group_norm, relu, gelu, silu, tanh, sigmoid, softmax, log_softmax, max_pool2d, avg_pool2d, adaptive_avg_pool2d, dropout, dropout2d, flatten, reshape, residual, lstm, multihead_attention
    ");
    insta::assert_snapshot!(replaced("plugin = \"idx\"", "plugin = \"mnist\""), @r#"
    error: job `x.toml`: `data.plugin` = "mnist" is no builtin plug-in and no path that ends in .wasm
      from: x.toml, line 19
      hint: builtin ones: idx, csv, synthetic
    "#);
    insta::assert_snapshot!(replaced("plugin = \"cross_entropy\"", "plugin = \"cross-entropy\""), @r#"
    error: job `x.toml`: `loss.plugin` = "cross-entropy" is no builtin plug-in and no path that ends in .wasm
      from: x.toml, line 21
      hint: did you mean `cross_entropy`?
    "#);
    insta::assert_snapshot!(replaced("root = \"data\"", "root = \"builtin:mnist\""), @r#"
    error: job `x.toml`: `data.root` = "builtin:mnist" is not inside the program
      from: x.toml, line 18
      hint: builtin data: digits
    "#);
}

#[test]
fn worlds_that_do_not_fit_the_roles() {
    insta::assert_snapshot!(replaced("trainer = \"rest\"", "trainer = 2"), @r#"
    error: job `x.toml`: `cluster.world_size` = 4 does not fit the roles, which take 3 ranks
      from: x.toml, line 4
      hint: use 3, or let one role take "rest"
    "#);
    insta::assert_snapshot!(set(&["cluster.world_size=1"]), @r"
    error: job `x.toml`: `cluster.world_size` = 1 leaves nobody for the role that takes the rest: the others take 1 rank
      from: option --set cluster.world_size=1
      hint: use at least 2
    ");
    insta::assert_snapshot!(replaced("server = 1", "server = \"rest\""), @r#"
    error: job `x.toml`: `roles.trainer` = "rest" is the second "rest": role `server` takes it already
      from: x.toml, line 7
      hint: give one of them a number of ranks
    "#);
    insta::assert_snapshot!(replaced("trainer = \"rest\"", "trainer = \"others\""), @r#"
    error: job `x.toml`: `roles.trainer` = "others" is no number of ranks
      from: x.toml, line 7
      hint: use a number, or "rest" for one role
    "#);
    insta::assert_snapshot!(replaced("server = 1", "server = 0"), @r"
    error: job `x.toml`: `roles.server` = 0 is below 1
      from: x.toml, line 6
      hint: use a whole number from 1 to 4096
    ");
    insta::assert_snapshot!(replaced("server = 1", "server2 = 1"), @r"
    error: job `x.toml`: `server2` is no name for a role
      from: x.toml, line 6
      hint: a name is a letter, then letters, `_` and `-`, with no digit at the end, at most 32
    ");
    insta::assert_snapshot!(replaced("[roles]\nserver = 1\ntrainer = \"rest\"", ""), @r#"
    error: job `x.toml`: `roles` is missing
      hint: for example [roles] with server = 1 and trainer = "rest"
    "#);
}

#[test]
fn ranks_outside_the_world_and_ranks_in_the_file() {
    insta::assert_snapshot!(said(load(SOUND, &[("RANK", "4")], &[])), @r"
    error: job `x.toml`: `cluster.rank` = 4 is outside the world of 4 ranks
      from: environment variable RANK
      hint: ranks count from 0 to 3
    ");
    insta::assert_snapshot!(said(load(SOUND, &[("RANK", "one")], &[])), @r#"
    error: job `x.toml`: `cluster.rank` = "one" is a string, where a whole number is wanted
      from: environment variable RANK
      hint: for example 4
    "#);
    insta::assert_snapshot!(replaced("world_size = 4", "rank = 1"), @r"
    error: job `x.toml`: `cluster.rank` = 1 stands in the job file, which all ranks share
      from: x.toml, line 4
      hint: give it with --rank or the environment variable RANK
    ");
}

#[test]
fn each_value_is_traced_to_where_it_came_from() {
    insta::assert_snapshot!(said(load(SOUND, &[("PSTRAIN_TRAIN__BATCH_SIZE", "0")], &[])), @r"
    error: job `x.toml`: `train.batch_size` = 0 is below 1
      from: environment variable PSTRAIN_TRAIN__BATCH_SIZE
      hint: use a whole number from 1 to 16777216
    ");
    insta::assert_snapshot!(said(load(SOUND, &[("PSTRAIN_TRAIN__BATCHSIZE", "8")], &[])), @r"
    error: job `x.toml`: unknown key `train.batchsize`
      from: environment variable PSTRAIN_TRAIN__BATCHSIZE
      hint: did you mean `batch_size`?
    ");
    insta::assert_snapshot!(said(load(SOUND, &[("WORLD_SIZE", "four")], &[])), @r#"
    error: job `x.toml`: `cluster.world_size` = "four" is a string, where a whole number is wanted
      from: environment variable WORLD_SIZE
      hint: for example 4
    "#);
    insta::assert_snapshot!(said(load(SOUND, &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")], &[])), @r"
    error: job `x.toml`: `cluster.world_size` = 1 leaves nobody for the role that takes the rest: the others take 1 rank
      from: environment variable SLURM_NTASKS
      hint: use at least 2
    ");
    insta::assert_snapshot!(set(&["train.epochs=none", "optimizer.lr=-1"]), @r#"
    error: job `x.toml`: `train.epochs` = "none" is a string, where a whole number is wanted
      from: option --set train.epochs=none
      hint: for example 4
    error: job `x.toml`: `optimizer.lr` = -1 is not above 0
      from: option --set optimizer.lr=-1
      hint: use a number above 0
    "#);
    insta::assert_snapshot!(set(&["modules.net.layers[1].in_features=65"]), @r"
    error: job `x.toml`: `modules.net.layers[1]`: linear `fc1` wants 65 features (in_features) in the last dimension; [64] comes from flatten `0`
      from: option --set modules.net.layers[1].in_features=65
      hint: write in_features = 64
    ");
    let overrides = [Override::option("--world-size", "cluster.world_size", 1)];
    let file = JobText { name: "x.toml", text: SOUND };
    insta::assert_snapshot!(said(job::load(&Sources { file, env: vec![], overrides: &overrides })), @r"
    error: job `x.toml`: `cluster.world_size` = 1 leaves nobody for the role that takes the rest: the others take 1 rank
      from: option --world-size 1
      hint: use at least 2
    ");
}

#[test]
fn settings_that_cannot_be_placed() {
    insta::assert_snapshot!(set(&["train..epochs=1", "modules.net.layers[9].p=1", "train.epochs[0]=1", "data.train=[1, 2"]), @r"
    error: job `x.toml`: `train..epochs`: this is no key: write it like train.batch_size or modules.net.layers[1].p
      from: option --set train..epochs=1
    error: job `x.toml`: `modules.net.layers[9].p`: the list has 4 entries, counted from 0; there is no 9
      from: option --set modules.net.layers[9].p=1
    error: job `x.toml`: `train.epochs[0]`: there is no list here
      from: option --set train.epochs[0]=1
    error: job `x.toml`: `data.train`: the value is no TOML: unclosed array, expected `]`
      from: option --set data.train=[1, 2
    ");
}

#[test]
fn consistency_and_staleness_go_together() {
    insta::assert_snapshot!(set(&["train.consistency=ssp"]), @r#"
    error: job `x.toml`: `train.staleness` is missing, and `train.consistency` = "ssp" needs it
      from: option --set train.consistency=ssp
      hint: how many steps a trainer may be ahead of the slowest, for example staleness = 4
    "#);
    insta::assert_snapshot!(set(&["train.staleness=4"]), @r#"
    error: job `x.toml`: `train.staleness` = 4 bounds nothing: `train.consistency` = "async" does not use it
      from: option --set train.staleness=4
      hint: leave it out, or use consistency = "ssp"
    "#);
    sound(SOUND, &[], &["train.consistency=ssp", "train.staleness=4"]);
}

#[test]
fn two_ways_to_rank_0_have_to_agree() {
    let tcp = "world_size = 4\ninit = \"tcp://10.0.0.1:29500\"\nmaster_addr = \"10.0.0.2\"";
    insta::assert_snapshot!(replaced("world_size = 4", tcp), @r#"
    error: job `x.toml`: `cluster.master_addr` = "10.0.0.2" disagrees with `cluster.init` = "tcp://10.0.0.1:29500"
      from: x.toml, line 6
      hint: leave one of them out, or write cluster.init = "env://"
    "#);
    let tcp = SOUND.replace("world_size = 4", "world_size = 4\ninit = \"tcp://10.0.0.1:29500\"");
    assert_eq!(sound(&tcp, &[], &[]).job.cluster.master(), "10.0.0.1:29500");
    insta::assert_snapshot!(set(&["cluster.init=file:///tmp/x"]), @r#"
    error: job `x.toml`: `cluster.init` = "file:///tmp/x" is not in this version
      from: option --set cluster.init=file:///tmp/x
      hint: use "env://" or "tcp://HOST:PORT"
    "#);
    insta::assert_snapshot!(set(&["cluster.init=tcp://nowhere"]), @r#"
    error: job `x.toml`: `cluster.init` = "tcp://nowhere" is no way to meet
      from: option --set cluster.init=tcp://nowhere
      hint: use "env://" or "tcp://HOST:PORT", for example "tcp://10.0.0.1:29500"
    "#);
    insta::assert_snapshot!(set(&["cluster.backend=nccl", "cluster.lost_after_ms=600"]), @r#"
    error: job `x.toml`: `cluster.backend` = "nccl" is not in this version
      from: option --set cluster.backend=nccl
      hint: use "gloo" or "auto"
    error: job `x.toml`: `cluster.lost_after_ms` = 600 is less than two heartbeats of 500 ms
      from: option --set cluster.lost_after_ms=600
      hint: use at least 1000, or a shorter heartbeat_ms
    "#);
}

#[test]
fn placements_of_later_versions_are_refused_with_a_way_on() {
    insta::assert_snapshot!(set(&["modules.net.place=trainer"]), @r#"
    error: job `x.toml`: `modules.net.place` = "trainer" is a role of 3 ranks; this version does not train a replica on each of them
      from: option --set modules.net.place=trainer
      hint: place it on a role of one rank, such as `server`
    "#);
    insta::assert_snapshot!(replaced("server = 1", "server = 2"), @r#"
    error: job `x.toml`: `modules.net.place` = "server" is a role of 2 ranks; this version does not train a part on each of them
      from: x.toml, line 9
      hint: give one role a single rank, for example server = 1, and place it there
    "#);
    insta::assert_snapshot!(replaced("place = \"server\"", "place = \"server\"\nrun = \"caller\"\nshards = 4"), @r#"
    error: job `x.toml`: `modules.net.run` = "caller" is an option that this version does not have
      from: x.toml, line 10
      hint: leave it out: this version runs a module where it is placed
    error: job `x.toml`: `modules.net.shards` = 4 is an option that this version does not have
      from: x.toml, line 11
      hint: leave it out: this version keeps a module whole, on one rank
    "#);
    insta::assert_snapshot!(replaced("place = \"server\"", "place = [\"server\", \"trainer\"]"), @r#"
    error: job `x.toml`: `modules.net.place` = ["server", "trainer"] are the stages of a pipeline, which this version does not train
      from: x.toml, line 9
      hint: place the module on one role
    "#);
    insta::assert_snapshot!(set(&["modules.net.place=sever", "train.role=trainers"]), @r#"
    error: job `x.toml`: `train.role` = "trainers" is no role of this job
      from: option --set train.role=trainers
      hint: did you mean `trainer`?
    error: job `x.toml`: `modules.net.place` = "sever" is no role of this job
      from: option --set modules.net.place=sever
      hint: did you mean `server`?
    "#);
}

#[test]
fn splits_over_devices_name_layers_that_are_there() {
    insta::assert_snapshot!(set(&["modules.net.devices=[\"fc3\"]"]), @r#"
    error: job `x.toml`: `modules.net.devices[0]` = "fc3" is no layer of this module's list
      from: option --set modules.net.devices=["fc3"]
      hint: did you mean `fc1`?
    "#);
    insta::assert_snapshot!(set(&["modules.net.devices=[\"0\"]"]), @r#"
    error: job `x.toml`: `modules.net.devices[0]` = "0" is the first layer, where the first device starts anyway
      from: option --set modules.net.devices=["0"]
      hint: name the layers at which the second device starts, the third, and so on
    "#);
    insta::assert_snapshot!(set(&["modules.net.devices=[\"fc2\", \"fc1\"]"]), @r#"
    error: job `x.toml`: `modules.net.devices[1]` = "fc1" does not come after the one before it
      from: option --set modules.net.devices=["fc2", "fc1"]
      hint: name the layers at which the second device starts, the third, and so on
    "#);
    insta::assert_snapshot!(set(&["modules.net.devices=9"]), @r"
    error: job `x.toml`: `modules.net.devices` = 9 is more than the module's 4 layers
      from: option --set modules.net.devices=9
      hint: use at most 4
    ");
}

#[test]
fn two_layers_of_one_name() {
    insta::assert_snapshot!(replaced("name = \"fc2\"", "name = \"fc1\""), @r"
    error: job `x.toml`: `modules.net.layers[1]` and `modules.net.layers[3]` are both named `fc1`
      from: x.toml, line 15
      hint: parameters carry the names of their layers; a layer without a name is called by its position
    ");
    insta::assert_snapshot!(replaced("name = \"fc2\"", "name = \"a.b\""), @r"
    error: job `x.toml`: `modules.net.layers[3].name`: `a.b` is no name
      from: x.toml, line 15
      hint: a name is 1 to 64 letters, digits, `_` and `-`
    ");
}

#[test]
fn layers_by_their_own_rules() {
    let layer = |layer: &str| replaced("\"relu\"", layer);
    let conv = "{ type = \"conv2d\", in_channels = 4, out_channels = 6, kernel_size = 2, groups = 3, padding = \"same\" }";
    insta::assert_snapshot!(layer(conv), @r#"
    error: job `x.toml`: `modules.net.layers[2].padding` = "same" would pad one side more than the other with an even kernel
      from: x.toml, line 14
      hint: use an odd kernel_size
    error: job `x.toml`: `modules.net.layers[2].groups` = 3 does not divide both in_channels = 4 and out_channels = 6
      from: x.toml, line 14
      hint: use 1 or 2
    "#);
    insta::assert_snapshot!(layer("{ type = \"conv2d\", in_channels = 1, out_channels = 2, kernel_size = [3, 3, 3], padding_mode = \"reflect\" }"), @r#"
    error: job `x.toml`: `modules.net.layers[2].kernel_size` = [3, 3, 3] has 3 entries, where 2 are wanted
      from: x.toml, line 14
      hint: write one number or a list of 2
    error: job `x.toml`: `modules.net.layers[2].padding_mode` = "reflect" is an option that this version does not have
      from: x.toml, line 14
      hint: leave it out: padding is with zeros, as is PyTorch's default
    "#);
    insta::assert_snapshot!(layer("{ type = \"max_pool2d\", kernel_size = 2, padding = 2 }"), @r"
    error: job `x.toml`: `modules.net.layers[2].padding` = 2 is more than half of kernel_size = [2, 2]
      from: x.toml, line 14
      hint: use at most [1, 1]
    ");
    insta::assert_snapshot!(layer("{ type = \"lstm\", input_size = 8, hidden_size = 8 }"), @r"
    error: job `x.toml`: `modules.net.layers[2].batch_first` is missing
      from: x.toml, line 14
      hint: write batch_first = true (PyTorch's default, false, would take the samples for time steps)
    ");
    insta::assert_snapshot!(layer("{ type = \"multihead_attention\", embed_dim = 32, num_heads = 5, batch_first = false }"), @r"
    error: job `x.toml`: `modules.net.layers[2].num_heads` = 5 does not divide embed_dim = 32
      from: x.toml, line 14
      hint: use 1, 2, 4, 8, 16 or 32
    error: job `x.toml`: `modules.net.layers[2].batch_first` = false does not fit: the first dimension of a batch counts the samples
      from: x.toml, line 14
      hint: write batch_first = true (PyTorch's default, false, would take the samples for time steps)
    ");
    insta::assert_snapshot!(layer("{ type = \"group_norm\", num_groups = 3, num_channels = 8 }"), @r"
    error: job `x.toml`: `modules.net.layers[2].num_groups` = 3 does not divide num_channels = 8
      from: x.toml, line 14
      hint: use 1, 2, 4 or 8
    ");
    insta::assert_snapshot!(layer("{ type = \"reshape\", shape = [-1, -1] }"), @r"
    error: job `x.toml`: `modules.net.layers[2].shape` = [-1, -1] is no shape
      from: x.toml, line 14
      hint: sizes are at least 1, and one of them may be -1 (whatever is left)
    ");
    insta::assert_snapshot!(layer("{ type = \"residual\", layers = [] }"), @r#"
    error: job `x.toml`: `modules.net.layers[2].layers` = [] has no layers
      from: x.toml, line 14
      hint: for example layers = ["flatten", { type = "linear", in_features = 784, out_features = 10 }]
    "#);
    insta::assert_snapshot!(layer("\"log_softmax\""), @r"
    error: job `x.toml`: `modules.net.layers[2].dim` is missing
      hint: for example dim = 1
    ");
    insta::assert_snapshot!(layer("{ type = \"relu\", inplace = true }"), @r"
    error: job `x.toml`: `modules.net.layers[2].inplace` = true is an option that this version does not have
      from: x.toml, line 14
      hint: leave it out: the runner decides where results go
    ");
}

#[test]
fn optimizers_by_their_own_rules() {
    insta::assert_snapshot!(set(&["optimizer.nesterov=true"]), @r"
    error: job `x.toml`: `optimizer.nesterov` = true needs a momentum and no dampening; there are 0 and 0
      from: option --set optimizer.nesterov=true
      hint: for example momentum = 0.9, and leave dampening out
    ");
    insta::assert_snapshot!(set(&["optimizer.type=adam", "optimizer.betas=[0.9, 1.0]"]), @r"
    error: job `x.toml`: `optimizer.betas` = [0.9, 1.0] is not two numbers of at least 0 and below 1
      from: option --set optimizer.betas=[0.9, 1.0]
      hint: PyTorch's default is [0.9, 0.999]
    ");
    insta::assert_snapshot!(set(&["optimizer.type=rprop", "optimizer.etas=[1.2, 0.5]"]), @r"
    error: job `x.toml`: `optimizer.etas` = [1.2, 0.5] is not one number between 0 and 1 and one above 1
      from: option --set optimizer.etas=[1.2, 0.5]
      hint: PyTorch's default is [0.5, 1.2]
    ");
    insta::assert_snapshot!(set(&["optimizer.fused=true"]), @r"
    error: job `x.toml`: `optimizer.fused` = true is an option that this version does not have
      from: option --set optimizer.fused=true
      hint: leave it out: it changes how PyTorch computes, not what
    ");
}

#[test]
fn normalisation_has_to_fit_the_samples() {
    insta::assert_snapshot!(set(&["data.normalize={ mean = [0.1, 0.2, 0.3], std = [1, 1, 1] }"]), @r"
    error: job `x.toml`: `data.normalize` is for 3 channels, and a sample of `modules.net` is [1, 8, 8]
      from: option --set data.normalize={ mean = [0.1, 0.2, 0.3], std = [1, 1, 1] }
      hint: give one value for each channel, or one for all
    ");
    insta::assert_snapshot!(set(&["data.normalize={ mean = [0.1, 0.2], std = [1, 1, 1] }"]), @r"
    error: job `x.toml`: `data.normalize` = { mean = [0.1, 0.2], std = [1, 1, 1] } has 2 means and 3 deviations
      from: option --set data.normalize={ mean = [0.1, 0.2], std = [1, 1, 1] }
      hint: give as many of each, or one for all channels
    ");
    insta::assert_snapshot!(set(&["data.normalize={ scale = 0, std = 0 }"]), @r"
    error: job `x.toml`: `data.normalize.scale` = 0 is not other than 0
      from: option --set data.normalize={ scale = 0, std = 0 }
      hint: use a number other than 0
    error: job `x.toml`: `data.normalize` = { scale = 0, std = 0 } divides by a deviation of 0
      from: option --set data.normalize={ scale = 0, std = 0 }
      hint: use deviations other than 0
    ");
    insta::assert_snapshot!(set(&["data.normalize={ std = 0.0 }"]), @r"
    error: job `x.toml`: `data.normalize` = { std = 0.0 } divides by a deviation of 0
      from: option --set data.normalize={ std = 0.0 }
      hint: use deviations other than 0
    ");
}

#[test]
fn batches_that_fit_no_message() {
    insta::assert_snapshot!(set(&["train.batch_size=16777216", "modules.net.input=[2, 8, 8]", "modules.net.layers[1].in_features=128"]), @r"
    error: job `x.toml`: `train.batch_size` = 16777216 makes messages of more than 4 GiB into `modules.net`
      from: option --set train.batch_size=16777216
      hint: a sample has 512 bytes there; use at most 8388608
    ");
}

const TWO_MODULES: &str = r#"
[roles]
embedder = 1
server = 1
trainer = 2
[modules.embed]
place = "embedder"
input = [20]
input_dtype = "int64"
layers = [{ type = "embedding_bag", num_embeddings = 100, embedding_dim = 16 }]
[modules.dense]
place = "server"
layers = [{ type = "linear", in_features = 16, out_features = 8 }]
[data]
plugin = "mine.wasm"
[loss]
plugin = "cross_entropy"
[optimizer]
type = "adagrad"
[train]
forward = ["embed", "dense"]
"#;

#[test]
fn modules_in_a_chain_take_what_the_one_before_gives() {
    let job = sound(TWO_MODULES, &[], &[]).job;
    assert_eq!(job.modules[1].input, [16]);
    assert_eq!(job.cluster.world_size.0, 4, "roles that name every rank say how large the world is");
    insta::assert_snapshot!(errors(&TWO_MODULES.replace("in_features = 16", "in_features = 20")), @r"
    error: job `x.toml`: `modules.dense.layers[0]`: linear `0` wants 20 features (in_features) in the last dimension; [16] comes from the module's input
      from: x.toml, line 13
      hint: write in_features = 16
    ");
    insta::assert_snapshot!(errors(&TWO_MODULES.replace("place = \"server\"", "place = \"server\"\ninput = [20]")), @r"
    error: job `x.toml`: `modules.dense` takes [20], and `modules.embed` gives [16]
      from: x.toml, line 11
      hint: leave input and input_dtype out here: they follow from the module before
    error: job `x.toml`: `modules.dense.layers[0]`: linear `0` wants 16 features (in_features) in the last dimension; [20] comes from the module's input
      from: x.toml, line 14
      hint: write in_features = 20
    ");
    insta::assert_snapshot!(errors(&TWO_MODULES.replace("forward = [\"embed\", \"dense\"]", "")), @r#"
    error: job `x.toml`: `train.forward` is missing, and there are 2 modules
      hint: name them in the order in which a sample passes them: forward = ["embed", "dense"]
    "#);
    insta::assert_snapshot!(errors(&TWO_MODULES.replace("\"dense\"]", "\"dens\", \"embed\"]")), @r#"
    error: job `x.toml`: `train.forward[1]` = "dens" is no module of this job
      from: x.toml, line 21
      hint: did you mean `dense`?
    error: job `x.toml`: `train.forward[2]` = "embed" comes twice
      from: x.toml, line 21
      hint: a sample passes each module once
    error: job `x.toml`: `train.forward` = ["embed", "dens", "embed"] leaves out module `dense`
      from: x.toml, line 21
      hint: name it too, or remove its section
    "#);
}

#[test]
fn text_that_is_no_toml_names_line_and_column() {
    insta::assert_snapshot!(replaced("lr = 0.1", "lr = 0.1.2"), @r"
    error: job `x.toml`: line 24, column 9 is no TOML: invalid float
      hint: look at: lr = 0.1.2
    ");
    insta::assert_snapshot!(replaced("lr = 0.1", "lr ="), @r"
    error: job `x.toml`: line 24, column 5 is no TOML: string values must be quoted, expected literal string
      hint: look at: lr =
    ");
    insta::assert_snapshot!(replaced("[train]", "[train"), @r"
    error: job `x.toml`: line 25, column 7 is no TOML: unclosed table, expected `]`
      hint: look at: [train
    ");
    insta::assert_snapshot!(replaced("epochs = 2", "epochs = 2\nepochs = 3"), @r"
    error: job `x.toml`: line 27, column 1 is no TOML: duplicate key
      hint: look at: epochs = 3
    ");
}

#[test]
fn a_name_that_can_be_no_folder() {
    insta::assert_snapshot!(replaced("name = \"x\"", "name = \"../x\""), @r#"
    error: job `x.toml`: `name` = "../x" is no name for a job
      from: x.toml, line 2
      hint: use letters, digits, `_`, `-` and `.`, at most 64
    "#);
}
