//! Keys and values, each by itself.

use super::{SOUND, errors, load, replaced, said, set, sound};

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
    error: job `x.toml`: `modules.net.layers[3]`: linear `fc2` expects 23 features (in_features) in the last dimension; [32] comes from relu `2`
      from: x.toml, line 16
      hint: write in_features = 32
    error: job `x.toml`: `optimizer.lr` = -0.1 is not above 0
      from: x.toml, line 26
      hint: use a number above 0
    error: job `x.toml`: unknown key `optimizer.momentem`
      from: x.toml, line 27
      hint: did you mean `momentum`?
    error: job `x.toml`: `train.epochs`: expected an integer from 1 to 1000000, found "2"
      from: x.toml, line 29
      hint: write it without quotes: 2
    error: job `x.toml`: `train.batch_size` = 0 is below 1
      from: x.toml, line 30
      hint: use an integer from 1 to 16777216
    error: job `x.toml`: `train.consistency` = "asinc" is not one of async, bsp, ssp, hogwild or sequential
      from: x.toml, line 31
      hint: did you mean "async"?
    "#);
}

#[test]
fn unknown_keys_are_met_with_what_was_meant() {
    insta::assert_snapshot!(replaced("epochs = 2", "epoch = 2"), @r"
    error: job `x.toml`: unknown key `train.epoch`
      from: x.toml, line 27
      hint: did you mean `epochs`?
    ");
    insta::assert_snapshot!(replaced("name = \"x\"", "name = \"x\"\nepochs = 3"), @r"
    error: job `x.toml`: unknown key `epochs`
      from: x.toml, line 3
      hint: did you mean `train.epochs` or `log.epochs`?
    ");
    insta::assert_snapshot!(replaced("[train]", "[training]"), @r"
    error: job `x.toml`: unknown key `training`
      from: x.toml, line 26
      hint: did you mean `train`?
    ");
    insta::assert_snapshot!(replaced("lr = 0.1", "lr = 0.1\nbetas = [0.9, 0.99]"), @r"
    error: job `x.toml`: unknown key `optimizer.betas`
      from: x.toml, line 26
      hint: known keys: type, schedule, clip_norm, clip_value, groups, lr, momentum, dampening, weight_decay, nesterov, maximize
    ");
    insta::assert_snapshot!(replaced("out_features = 32 }", "out_features = 32, activation = \"relu\" }"), @r"
    error: job `x.toml`: unknown key `modules.net.layers[1].activation`
      from: x.toml, line 13
      hint: known keys: type, name, in_features, out_features, bias
    ");
}

#[test]
fn known_keys_are_those_of_the_section_each_once() {
    insta::assert_snapshot!(replaced("epochs = 2", "zzz = 2"), @r"
    error: job `x.toml`: unknown key `train.zzz`
      from: x.toml, line 27
      hint: known keys: role, epochs, steps, batch_size, global_batch_size, accumulate, local_steps, consistency, staleness, on_nan, most_skipped, scale_lr, forward, driver
    ");
    insta::assert_snapshot!(replaced("epochs = 2", "plugin = 2"), @r"
    error: job `x.toml`: unknown key `train.plugin`
      from: x.toml, line 27
      hint: did you mean `data.plugin` or `loss.plugin`?
    ");
}

#[test]
fn a_variable_with_one_underscore_is_told_of_the_second() {
    let with = |variable: &str| said(load(SOUND, &[(variable, "3")], &[]));
    insta::assert_snapshot!(with("PSTRAIN_TRAIN_EPOCHS"), @r"
    error: job `x.toml`: unknown key `train_epochs`
      from: environment variable PSTRAIN_TRAIN_EPOCHS
      hint: two underscores separate section and key: PSTRAIN_TRAIN__EPOCHS
    ");
    insta::assert_snapshot!(with("PSTRAIN_CLUSTER_WORLD_SIZE"), @r"
    error: job `x.toml`: unknown key `cluster_world_size`
      from: environment variable PSTRAIN_CLUSTER_WORLD_SIZE
      hint: two underscores separate section and key: PSTRAIN_CLUSTER__WORLD_SIZE
    ");
    insta::assert_snapshot!(with("PSTRAIN_STALENESS"), @r"
    error: job `x.toml`: unknown key `staleness`
      from: environment variable PSTRAIN_STALENESS
      hint: two underscores separate section and key: PSTRAIN_TRAIN__STALENESS
    ");
    insta::assert_snapshot!(with("PSTRAIN_TRAIN__EPOCH"), @r"
    error: job `x.toml`: unknown key `train.epoch`
      from: environment variable PSTRAIN_TRAIN__EPOCH
      hint: did you mean `epochs`?
    ");
}

#[test]
fn missing_keys_are_met_with_an_example() {
    insta::assert_snapshot!(replaced("plugin = \"idx\"", ""), @r#"
    error: job `x.toml`: `data.plugin` is missing
      from: x.toml, line 17
      hint: for example plugin = "idx"
    "#);
    insta::assert_snapshot!(replaced("root = \"data\"", ""), @r#"
    error: job `x.toml`: `data.root` is missing
      from: x.toml, line 17
      hint: for example root = "data/mnist"
    "#);
    insta::assert_snapshot!(replaced("type = \"sgd\"", ""), @r#"
    error: job `x.toml`: `optimizer.type` is missing
      from: x.toml, line 23
      hint: for example type = "sgd"
    "#);
    insta::assert_snapshot!(replaced("input = [1, 8, 8]", ""), @r"
    error: job `x.toml`: `modules.net.input` is missing
      from: x.toml, line 8
      hint: the shape of one sample, for example input = [1, 28, 28]
    ");
    insta::assert_snapshot!(replaced(", out_features = 32", ""), @r"
    error: job `x.toml`: `modules.net.layers[1].out_features` is missing
      from: x.toml, line 13
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
    error: job `x.toml`: `train.epochs`: expected an integer from 1 to 1000000, found "2"
      from: x.toml, line 27
      hint: write it without quotes: 2
    "#);
    insta::assert_snapshot!(replaced("epochs = 2", "epochs = 2.5"), @r"
    error: job `x.toml`: `train.epochs`: expected an integer from 1 to 1000000, found 2.5
      from: x.toml, line 27
      hint: for example 4
    ");
    insta::assert_snapshot!(replaced("epochs = 2", "epochs = [2]"), @r"
    error: job `x.toml`: `train.epochs`: expected an integer from 1 to 1000000, found [2]
      from: x.toml, line 27
      hint: for example 4
    ");
    insta::assert_snapshot!(replaced("place = \"server\"", "place = 0"), @r#"
    error: job `x.toml`: `modules.net.place`: expected a string, found 0
      from: x.toml, line 9
      hint: for example "text"
    "#);
    insta::assert_snapshot!(replaced("[train]", "[data.normalize]\nmean = \"grey\"\n[train]\non_nan = true"), @r#"
    error: job `x.toml`: `data.normalize.mean`: expected a number, found "grey"
      from: x.toml, line 27
      hint: for example 0.1
    error: job `x.toml`: `train.on_nan`: expected a string, found true
      from: x.toml, line 29
      hint: for example "text"
    "#);
    insta::assert_snapshot!(replaced("[train]\nepochs = 2", "[log]\nevery = 1\n[[train]]"), @r#"
    error: job `x.toml`: `train`: expected a table, found [{}]
      from: x.toml, line 28
      hint: for example { key = "value" }
    "#);
    insta::assert_snapshot!(replaced("\"relu\"", "7"), @r#"
    error: job `x.toml`: `modules.net.layers[2]` = 7 is not a valid layer
      from: x.toml, line 14
      hint: write "relu", or { type = "linear", in_features = 784, out_features = 10 }
    "#);
}

#[test]
fn numbers_out_of_range_are_met_with_the_limit() {
    insta::assert_snapshot!(replaced("epochs = 2", "batch_size = 0"), @r"
    error: job `x.toml`: `train.batch_size` = 0 is below 1
      from: x.toml, line 27
      hint: use an integer from 1 to 16777216
    ");
    insta::assert_snapshot!(replaced("epochs = 2", "epochs = 99999999999999999999"), @r"
    error: job `x.toml`: `train.epochs` = 99999999999999999999 is above 1000000
      from: x.toml, line 27
      hint: use an integer from 1 to 1000000
    ");
    insta::assert_snapshot!(replaced("world_size = 4", "master_port = 70000"), @r"
    error: job `x.toml`: `cluster.master_port` = 70000 is above 65535
      from: x.toml, line 4
      hint: use an integer from 0 to 65535
    ");
    insta::assert_snapshot!(replaced("\"relu\"", "{ type = \"dropout\", p = 1.5 }"), @r"
    error: job `x.toml`: `modules.net.layers[2].p` = 1.5 is not from 0 to 1
      from: x.toml, line 14
      hint: use a number from 0 to 1
    ");
    insta::assert_snapshot!(replaced("lr = 0.1", "lr = 0"), @r"
    error: job `x.toml`: `optimizer.lr` = 0 is not above 0
      from: x.toml, line 25
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
      from: x.toml, line 25
      hint: a job has no use for nan and inf
    error: job `x.toml`: `optimizer.momentum` = inf is not a finite number
      from: x.toml, line 26
      hint: a job has no use for nan and inf
    error: job `x.toml`: `optimizer.weight_decay` = -inf is not a finite number
      from: x.toml, line 27
      hint: a job has no use for nan and inf
    ");
    insta::assert_snapshot!(replaced("plugin = \"idx\"\ntrain = { images = \"images\" }\n[loss]\nplugin = \"cross_entropy\"", "plugin = \"own.wasm\"\n[data.train]\nnoise = [0.5, nan]\n[loss]\nplugin = \"own.wasm\"\nparams = { gamma = inf }"), @r"
    error: job `x.toml`: `data.train.noise[1]` = nan is not a finite number
      from: x.toml, line 21
      hint: a job has no use for nan and inf
    error: job `x.toml`: `loss.params.gamma` = inf is not a finite number
      from: x.toml, line 24
      hint: a job has no use for nan and inf
    ");
    insta::assert_snapshot!(replaced("lr = 0.1", "lr = 1e999"), @r"
    error: job `x.toml`: `optimizer.lr` = inf is not a finite number
      from: x.toml, line 25
      hint: a job has no use for nan and inf
    ");
}

#[test]
fn words_that_are_no_choice_are_met_with_the_choices() {
    insta::assert_snapshot!(replaced("epochs = 2", "consistency = \"hogwyld\""), @r#"
    error: job `x.toml`: `train.consistency` = "hogwyld" is not one of async, bsp, ssp, hogwild or sequential
      from: x.toml, line 27
      hint: did you mean "hogwild"?
    "#);
    // Not the whole list: it grows.
    let optimizer = replaced("type = \"sgd\"", "type = \"sgdm\"");
    assert!(
        optimizer
            .starts_with("error: job `x.toml`: `optimizer.type` = \"sgdm\" is not one of sgd, adam, adamw, ")
            && optimizer.ends_with("\n  from: x.toml, line 24\n  hint: did you mean \"sgd\"?"),
        "{optimizer}"
    );
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
    let layer = replaced("\"relu\"", "\"transformer\"");
    let beginning = "error: job `x.toml`: `modules.net.layers[2]`: there is no layer of type `transformer`\n  \
                     from: x.toml, line 14\n  hint: known layers: linear, conv1d, conv2d, ";
    assert!(layer.starts_with(beginning), "{layer}");
    insta::assert_snapshot!(replaced("plugin = \"idx\"", "plugin = \"mnist\""), @r#"
    error: job `x.toml`: `data.plugin` = "mnist" is neither a builtin plug-in nor a path that ends in .wasm
      from: x.toml, line 19
      hint: builtin ones: idx, csv, images, text, criteo, npy, parquet, synthetic, bags, clicks
    "#);
    insta::assert_snapshot!(replaced("plugin = \"cross_entropy\"", "plugin = \"cross-entropy\""), @r#"
    error: job `x.toml`: `loss.plugin` = "cross-entropy" is neither a builtin plug-in nor a path that ends in .wasm
      from: x.toml, line 22
      hint: did you mean `cross_entropy`?
    "#);
    insta::assert_snapshot!(replaced("root = \"data\"", "root = \"builtin:mnist\""), @r#"
    error: job `x.toml`: `data.root` = "builtin:mnist" is not inside the program
      from: x.toml, line 18
      hint: builtin data: digits, digit_images
    "#);
}

#[test]
fn text_that_is_no_toml_names_line_and_column() {
    insta::assert_snapshot!(replaced("lr = 0.1", "lr = 0.1.2"), @r"
    error: job `x.toml`: line 25, column 9 is not valid TOML: invalid float
      hint: look at: lr = 0.1.2
    ");
    insta::assert_snapshot!(replaced("lr = 0.1", "lr ="), @r"
    error: job `x.toml`: line 25, column 5 is not valid TOML: string values must be quoted, expected literal string
      hint: look at: lr =
    ");
    insta::assert_snapshot!(replaced("[train]", "[train"), @r"
    error: job `x.toml`: line 26, column 7 is not valid TOML: unclosed table, expected `]`
      hint: look at: [train
    ");
    insta::assert_snapshot!(replaced("epochs = 2", "epochs = 2\nepochs = 3"), @r"
    error: job `x.toml`: line 28, column 1 is not valid TOML: duplicate key
      hint: look at: epochs = 3
    ");
}

#[test]
fn a_name_that_can_be_no_folder() {
    insta::assert_snapshot!(replaced("name = \"x\"", "name = \"../x\""), @r#"
    error: job `x.toml`: `name` = "../x" is not a valid name for a job
      from: x.toml, line 2
      hint: use letters, digits, `_`, `-` and `.`, at most 64
    "#);
}

#[test]
fn parameters_that_a_shipped_plug_in_does_not_have_are_refused() {
    insta::assert_snapshot!(set(&["loss.params={ weight = [1.0, 2.0], smoothing = 0.1, size_average = true }"]), @r"
    error: job `x.toml`: `loss.params.size_average` = true is an option that this version does not have
      from: option --set loss.params={ weight = [1.0, 2.0], smoothing = 0.1, size_average = true }
      hint: leave it out: PyTorch has replaced it by reduction
    error: job `x.toml`: unknown key `loss.params.smoothing`
      from: option --set loss.params={ weight = [1.0, 2.0], smoothing = 0.1, size_average = true }
      hint: known keys: label_smoothing, reduction, weight, ignore_index
    ");
    insta::assert_snapshot!(set(&["loss.params.reduction=none"]), @r#"
    error: job `x.toml`: `loss.params.reduction` = "none" is not one of mean or sum
      from: option --set loss.params.reduction=none
      hint: for example "mean"
    "#);
    insta::assert_snapshot!(set(&["loss.params.label_smoothing=2"]), @r"
    error: job `x.toml`: `loss.params.label_smoothing` = 2 is not from 0 to 1
      from: option --set loss.params.label_smoothing=2
      hint: use a number from 0 to 1
    ");
    insta::assert_snapshot!(set(&["data.train={ image = \"x\", resize = [28] }"]), @r#"
    error: job `x.toml`: unknown key `data.train.image`
      from: option --set data.train={ image = "x", resize = [28] }
      hint: did you mean `images`?
    error: job `x.toml`: `data.train.resize` = [28] has 1 value, expected 2
      from: option --set data.train={ image = "x", resize = [28] }
      hint: write a list of 2
    "#);
    insta::assert_snapshot!(set(&["data.test.labels=\"x\""]), @r#"
    error: job `x.toml`: `data.test.images` is missing
      hint: for example images = "train-images-idx3-ubyte"
    "#);
    insta::assert_snapshot!(set(&["data.train=3"]), @r#"
    error: job `x.toml`: `data.train`: expected a table, found 3
      from: option --set data.train=3
      hint: for example { key = "value" }
    "#);
    sound(SOUND, &[], &["loss.plugin=own.wasm", "loss.params.weight=3"]);
}

#[test]
fn weights_and_other_parameters_of_a_loss_that_make_no_sense_are_refused() {
    insta::assert_snapshot!(set(&["loss.params.weight=[1.0, -2.0]"]), @r"
    error: job `x.toml`: `loss.params.weight[1]` = -2.0 is not at least 0
      from: option --set loss.params.weight=[1.0, -2.0]
      hint: use a number at least 0
    ");
    insta::assert_snapshot!(set(&["loss.params.weight=[0, 0]"]), @r"
    error: job `x.toml`: `loss.params.weight` = [0, 0] has no weight above 0
      from: option --set loss.params.weight=[0, 0]
      hint: give a number for each class, 1 for one that weighs as much as others
    ");
    insta::assert_snapshot!(set(&["loss.params.weight=2.0"]), @r"
    error: job `x.toml`: `loss.params.weight`: expected a list, found 2.0
      from: option --set loss.params.weight=2.0
      hint: for example [1, 2]
    ");
    insta::assert_snapshot!(set(&["loss.params.ignore_index=0.5"]), @r"
    error: job `x.toml`: `loss.params.ignore_index`: expected an integer of at least -2147483647, found 0.5
      from: option --set loss.params.ignore_index=0.5
      hint: for example 4
    ");
    insta::assert_snapshot!(set(&["loss.plugin=huber", "loss.params.delta=0"]), @r"
    error: job `x.toml`: `loss.params.delta` = 0 is not above 0
      from: option --set loss.params.delta=0
      hint: use a number above 0
    ");
    insta::assert_snapshot!(set(&["loss.plugin=kl_div", "loss.params.reduction=none"]), @r#"
    error: job `x.toml`: `loss.params.reduction` = "none" is not one of batchmean, mean or sum
      from: option --set loss.params.reduction=none
      hint: for example "batchmean"
    "#);
    insta::assert_snapshot!(set(&["loss.plugin=triplet", "loss.params={ p = 0, eps = 1e-3 }"]), @r"
    error: job `x.toml`: unknown key `loss.params.eps`
      from: option --set loss.params={ p = 0, eps = 1e-3 }
      hint: known keys: margin, p, swap, reduction
    error: job `x.toml`: `loss.params.p` = 0 is not at least 1
      from: option --set loss.params={ p = 0, eps = 1e-3 }
      hint: use a number at least 1
    ");
    insta::assert_snapshot!(set(&["loss.plugin=focal", "loss.params.gamma=-1"]), @r"
    error: job `x.toml`: `loss.params.gamma` = -1 is not at least 0
      from: option --set loss.params.gamma=-1
      hint: use a number at least 0
    ");
    sound(SOUND, &[], &["loss.plugin=bpr", "loss.target=[]"]);
}
