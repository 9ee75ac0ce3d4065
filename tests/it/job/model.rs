//! Modules, layers, optimizers and what of them does not fit together.

use super::{SOUND, errors, load, replaced, said, set, sound};

#[test]
fn roles_that_are_not_there_are_named_with_those_that_are() {
    insta::assert_snapshot!(set(&["modules.net.place=sever", "train.role=trainers"]), @r#"
    error: job `x.toml`: `train.role` = "trainers" is not a role of this job
      from: option --set train.role=trainers
      hint: did you mean `trainer`?
    error: job `x.toml`: `modules.net.place` = "sever" is not a role of this job
      from: option --set modules.net.place=sever
      hint: did you mean `server`?
    "#);
}

#[test]
fn stages_that_cannot_be_placed_are_refused_with_the_reason() {
    let (one, two) = ("world_size = 4\n[roles]\nserver = 1", "world_size = 5\n[roles]\nserver = 2");
    insta::assert_snapshot!(replaced(one, two), @r#"
    error: job `x.toml`: `modules.net.place` = "server" is a role of 2 ranks, which 3 trainers do not share evenly
      from: x.toml, line 9
      hint: each of its ranks has a replica for its share of the trainers: give it 1 rank or 3 ranks
    "#);
    insta::assert_snapshot!(replaced("server = 1", "server = 3"), @r#"
    error: job `x.toml`: `modules.net.place` = "server" is a role of 3 ranks for 1 trainer: some would never be called
      from: x.toml, line 9
      hint: each of its ranks has a replica for its share of the trainers: give it 1 rank
    "#);
    let staged =
        |more: &str| replaced("place = \"server\"", &format!("place = [\"server\", \"trainer\"]\n{more}"));
    insta::assert_snapshot!(staged("stages = [\"fc1\", \"fc2\"]"), @r#"
    error: job `x.toml`: `modules.net.stages` = ["fc1", "fc2"] cuts the module into 3, and `place` names 2
      from: x.toml, line 10
      hint: name the first layer of each stage but the first
    "#);
    insta::assert_snapshot!(staged("stages = [\"fc9\"]"), @r#"
    error: job `x.toml`: `modules.net.stages[0]` = "fc9" is not a layer of this module
      from: x.toml, line 10
      hint: did you mean `fc1`?
    "#);
    insta::assert_snapshot!(staged("stages = [\"0\"]"), @r#"
    error: job `x.toml`: `modules.net.stages[0]` = "0" leaves a stage without a layer
      from: x.toml, line 10
      hint: name the layers in their order, none of them first
    "#);
    insta::assert_snapshot!(replaced("place = \"server\"", "place = \"server\"\nstages = [\"fc2\"]"), @r#"
    error: job `x.toml`: `modules.net.stages` = ["fc2"] cuts the module into 2, and `place` names 1
      from: x.toml, line 10
      hint: name the first layer of each stage but the first
    "#);
    insta::assert_snapshot!(replaced("place = \"server\"", "place = [\"server\", \"stage\"]"), @r#"
    error: job `x.toml`: `modules.net.place[1]` = "stage" is not a role of this job
      from: x.toml, line 9
      hint: roles: server, trainer
    "#);
    insta::assert_snapshot!(replaced("place = \"server\"", "place = []"), @r"
    error: job `x.toml`: `modules.net.place` = [] names no role
      from: x.toml, line 9
      hint: name the role of each stage, in the order in which a sample passes them
    ");
    let many = ["\"server\"", "\"trainer\""].repeat(4).join(", ");
    insta::assert_snapshot!(replaced("place = \"server\"", &format!("place = [{many}]")), @r#"
    error: job `x.toml`: `modules.net.place` = ["server", "trainer", "server", "trainer", "server", "traine ... makes 8 stages of 4 layers
      from: x.toml, line 9
      hint: a stage has at least one layer: name fewer roles
    "#);
    insta::assert_snapshot!(set(&["pipeline.micro_batches=5", "pipeline.schedule=2f2b"]), @r#"
    error: job `x.toml`: `pipeline.micro_batches` = 5 does not divide the 32 samples of a batch
      from: option --set pipeline.micro_batches=5
      hint: use one of 1, 2, 4, 8, 16, 32
    error: job `x.toml`: `pipeline.schedule` = "2f2b" is not one of 1f1b or gpipe
      from: option --set pipeline.schedule=2f2b
      hint: for example "1f1b"
    "#);
}

#[test]
fn what_replicas_cannot_do_is_said_with_a_way_on() {
    let replicas = SOUND.replace("place = \"server\"", "place = \"trainer\"");
    let with = |more: &str| errors(&format!("{replicas}\n{more}"));
    let said = with("[replicas]\naverage = \"ring\"\nhook = \"fp16\"\nbucket_cap_mb = 0");
    assert!(said.contains("`replicas.hook` = \"fp16\" is an option of average = \"ddp\""), "{said}");
    assert!(said.contains("`replicas.bucket_cap_mb` = 0 is an option of average = \"ddp\""), "{said}");
    let said = with("[replicas]\npowersgd_rank = 2\ncompare = true");
    assert!(said.contains("`replicas.powersgd_rank` = 2 is an option of another hook"), "{said}");
    assert!(
        said.contains("`replicas.compare` = true compares with the built-in all-reduce, which is used"),
        "{said}"
    );
    let said = set(&[
        "modules.net.place=trainer",
        "train.consistency=ssp",
        "train.staleness=2",
        "train.on_nan=skip",
    ]);
    assert!(said.contains("`train.consistency` = \"ssp\" is for modules that are not replicated"), "{said}");
    assert!(said.contains("`train.on_nan` = \"skip\" would leave the other replicas waiting"), "{said}");
    let said = set(&["replicas.average=ddp"]);
    assert!(said.contains("`replicas.average` = \"ddp\" is for modules placed on the trainers"), "{said}");
}

#[test]
fn batches_and_parts_that_do_not_divide_are_refused() {
    let said = set(&["train.global_batch_size=100"]);
    assert!(said.contains("`train.global_batch_size` = 100 does not divide by the 3 trainers"), "{said}");
    assert!(said.contains("hint: use 99 or 102"), "{said}");
    let said = set(&["data.fractions=[0.5, 0.4]"]);
    assert!(said.contains("`data.fractions` = [0.5, 0.4] has 2 fractions for 3 trainers"), "{said}");
    let said = set(&["data.fractions=[0.5, 0.4, 0.3]"]);
    assert!(said.contains("adds up to 1.2"), "{said}");
}

#[test]
fn splits_over_devices_name_layers_that_are_there() {
    insta::assert_snapshot!(set(&["modules.net.devices=[\"fc3\"]"]), @r#"
    error: job `x.toml`: `modules.net.devices[0]` = "fc3" is not a layer of this module
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
    error: job `x.toml`: `modules.net.layers[3].name`: `a.b` is not a valid name
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
    error: job `x.toml`: `modules.net.layers[2].kernel_size` = [3, 3, 3] has 3 values, expected 2
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
      hint: for example batch_first = true (PyTorch's default, false, would take the samples for time steps)
    ");
    insta::assert_snapshot!(layer("{ type = \"multihead_attention\", embed_dim = 32, num_heads = 5, batch_first = false }"), @r"
    error: job `x.toml`: `modules.net.layers[2].batch_first` = false does not fit: the first dimension of a batch counts the samples
      from: x.toml, line 14
      hint: write batch_first = true (PyTorch's default, false, would take the samples for time steps)
    error: job `x.toml`: `modules.net.layers[2].num_heads` = 5 does not divide embed_dim = 32
      from: x.toml, line 14
      hint: use 1, 2, 4, 8, 16 or 32
    ");
    insta::assert_snapshot!(layer("{ type = \"group_norm\", num_groups = 3, num_channels = 8 }"), @r"
    error: job `x.toml`: `modules.net.layers[2].num_groups` = 3 does not divide num_channels = 8
      from: x.toml, line 14
      hint: use 1, 2, 4 or 8
    ");
    insta::assert_snapshot!(layer("{ type = \"reshape\", shape = [-1, -1] }"), @r"
    error: job `x.toml`: `modules.net.layers[2].shape` = [-1, -1] is not a valid shape
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
      from: x.toml, line 14
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

#[test]
fn a_parameter_that_fits_no_message() {
    let settings =
        ["modules.net.layers[1].out_features=33554432", "modules.net.layers[3].in_features=33554432"];
    insta::assert_snapshot!(set(&settings), @r"
    error: job `x.toml`: `modules.net.layers[1]` has a parameter of 8589934592 bytes, and a message holds 4 GiB
      from: option --set modules.net.layers[1].out_features=33554432
      hint: make the layer smaller: a model is fetched from its rank parameter by parameter
    ");
    sound(
        SOUND,
        &[],
        &["modules.net.layers[1].out_features=16777216", "modules.net.layers[3].in_features=16777216"],
    );
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
fn sparse_gradients_go_to_optimizers_that_take_them() {
    let sparse = TWO_MODULES.replace("embedding_dim = 16", "embedding_dim = 16, sparse = true");
    sound(&sparse, &[], &[]);
    sound(&sparse, &[], &["optimizer.type=sgd", "optimizer.lr=0.1"]);
    let mut said_of = Vec::new();
    for options in [
        &["optimizer.type=adam"][..],
        &["optimizer.type=sgd", "optimizer.lr=0.1", "optimizer.momentum=0.9"],
        &["optimizer.weight_decay=0.1"],
    ] {
        said_of.push(said(load(&sparse, &[], options)));
    }
    insta::assert_snapshot!(said_of.join("\n"), @r"
    error: job `x.toml`: `modules.embed.layers[0]` has sparse gradients, which adam cannot apply
      from: x.toml, line 10
      hint: leave sparse out, or use sgd without momentum and weight decay, or adagrad without weight decay
    error: job `x.toml`: `modules.embed.layers[0]` has sparse gradients, which sgd with momentum cannot apply
      from: x.toml, line 10
      hint: leave sparse out, or use sgd without momentum and weight decay, or adagrad without weight decay
    error: job `x.toml`: `modules.embed.layers[0]` has sparse gradients, which adagrad with weight decay cannot apply
      from: x.toml, line 10
      hint: leave sparse out, or use sgd without momentum and weight decay, or adagrad without weight decay
    ");
    let replicas = ["modules.embed.place=trainer", "optimizer.type=sgd", "optimizer.lr=0.1"];
    insta::assert_snapshot!(said(load(&sparse, &[], &replicas)), @r"
    error: job `x.toml`: `modules.embed.layers[0]` has sparse gradients, which replicas cannot average
      from: x.toml, line 10
      hint: leave sparse out, or place the module on a role of one rank that does not train
    ");
}

#[test]
fn modules_in_a_chain_take_what_the_one_before_gives() {
    let job = sound(TWO_MODULES, &[], &[]).job;
    assert_eq!(job.training().unwrap().modules[1].inputs[0].shape, [16]);
    assert_eq!(job.cluster.world_size.0, 4, "roles that name every rank say how large the world is");
    insta::assert_snapshot!(errors(&TWO_MODULES.replace("in_features = 16", "in_features = 20")), @r"
    error: job `x.toml`: `modules.dense.layers[0]`: linear `0` expects 20 features (in_features) in the last dimension; [16] comes from the module's input
      from: x.toml, line 13
      hint: write in_features = 16
    ");
    insta::assert_snapshot!(errors(&TWO_MODULES.replace("place = \"server\"", "place = \"server\"\ninput = [20]")), @r"
    error: job `x.toml`: `modules.dense` expects [20], and `modules.embed` outputs [16]
      from: x.toml, line 11
      hint: leave input and input_dtype out here: they follow from the module before
    ");
    let both = TWO_MODULES.replace("place = \"server\"", "place = \"server\"\ninput = [20]");
    insta::assert_snapshot!(errors(&both.replace("in_features = 16", "in_features = 20")), @r"
    error: job `x.toml`: `modules.dense` expects [20], and `modules.embed` outputs [16]
      from: x.toml, line 11
      hint: let `modules.embed` end in what this one expects, or change input and layers here; train.forward says which comes first
    ");
    insta::assert_snapshot!(errors(&TWO_MODULES.replace("forward = [\"embed\", \"dense\"]", "")), @r#"
    error: job `x.toml`: `train.forward` is missing, and there are 2 modules
      hint: name them in the order in which a sample passes them: forward = ["embed", "dense"], or say in each what it takes: from = ...
    "#);
    insta::assert_snapshot!(errors(&TWO_MODULES.replace("\"dense\"]", "\"dens\", \"embed\"]")), @r#"
    error: job `x.toml`: `train.forward[1]` = "dens" is not a module of this job
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
