//! Modules that are cut over several ranks, and what does not go with that.

use super::{load, said, sound};

const SHARDED: &str = r#"
name = "x"
[cluster]
world_size = 4
[roles]
server = 2
trainer = "rest"
[modules.table]
place = "server"
shards = "rows"
input = [3]
input_dtype = "int64"
layers = [{ type = "embedding", num_embeddings = 1_000_001, embedding_dim = 16 }]
[modules.dense]
place = "trainer"
layers = ["flatten", { type = "linear", in_features = 48, out_features = 1 }]
[data]
plugin = "clicks"
train = { samples = 4096, users = 1000, items = 100, categories = 10 }
[loss]
plugin = "bce_with_logits"
[optimizer]
type = "adagrad"
[train]
forward = ["table", "dense"]
batch_size = 512
"#;

fn set(settings: &[&str]) -> String {
    said(load(SHARDED, &[], settings))
}

#[test]
fn a_table_is_cut_over_the_ranks_of_its_role() {
    let plan = |settings: &[&str]| {
        let job = sound(SHARDED, &[], settings).job;
        let plan = pstrain::job::plan(&job, job.training().unwrap(), &Default::default(), None).to_string();
        let (before, after) = plan.split_once("\n\nmodule dense").expect("modules");
        let (_, links) = after.split_once("\n\nlinks").expect("links");
        format!("{before}\n\nlinks{links}")
    };
    insta::assert_snapshot!(plan(&[]), @r"
    job x
      2 trainers, async, 1 epoch, batches of 512

    roles, 4 ranks
      server   2 ranks  0 to 1  holds table (8,000,016 parameters, 30.5 MiB on each)
      trainer  2 ranks  2 to 3  holds dense (49 parameters, 196 bytes on each), trains

    module table cut over server (ranks 0 to 1) by ranges of rows, [3] of int64 to [3, 16]
      layer  type       output   parameters     bytes  device
      0      embedding  [3, 16]  16,000,016  61.0 MiB  cpu
      rank 0 holds rows 0 to 500,000: 8,000,016 parameters, 30.5 MiB, and 30.5 MiB of optimizer state
      rank 1 holds rows 500,001 to 1,000,000: 8,000,000 parameters, 30.5 MiB, and 30.5 MiB of optimizer state

    links, one step of one trainer
      trainer to server   108.0 KiB  ids of table 12.0 KiB, gradient of the rows of table 96.0 KiB
      server to trainer    96.0 KiB  rows of table 96.0 KiB
      trainer to trainer  196 bytes  gradients of dense, all-reduced 196 bytes
      408.4 KiB for a step of all 2 trainers

    optimizer adagrad, of table, dense
      group  parameters  options
      all    16,000,065  lr 0.01, eps 1e-10

    the learning rate stays as it is over a trainer's steps, which are not counted

    note: there is no [data.test], so accuracy is not measured
    ");
    insta::assert_snapshot!(plan(&["modules.table.shards=hash", "optimizer.type=sgd"]), @r"
    job x
      2 trainers, async, 1 epoch, batches of 512

    roles, 4 ranks
      server   2 ranks  0 to 1  holds table (16,000,016 parameters, 61.0 MiB on each)
      trainer  2 ranks  2 to 3  holds dense (49 parameters, 196 bytes on each), trains

    module table cut over server (ranks 0 to 1) by a hash of the id, [3] of int64 to [3, 16]
      layer  type       output   parameters     bytes  device
      0      embedding  [3, 16]  16,000,016  61.0 MiB  cpu
      rank 0 holds at most 1,000,001 rows: 16,000,016 parameters, 61.0 MiB
      rank 1 holds at most 1,000,001 rows: 16,000,016 parameters, 61.0 MiB

    links, one step of one trainer
      trainer to server   108.0 KiB  ids of table 12.0 KiB, gradient of the rows of table 96.0 KiB
      server to trainer    96.0 KiB  rows of table 96.0 KiB
      trainer to trainer  196 bytes  gradients of dense, all-reduced 196 bytes
      408.4 KiB for a step of all 2 trainers

    optimizer sgd, of table, dense
      group  parameters  options
      all    16,000,065  lr 0.001

    the learning rate stays as it is over a trainer's steps, which are not counted

    note: there is no [data.test], so accuracy is not measured
    ");
}

#[test]
fn what_cannot_be_cut_is_refused_with_a_way_on() {
    insta::assert_snapshot!(set(&["modules.table.shards=columns"]), @r#"
    error: job `x.toml`: `modules.table.shards` = "columns" is not one of rows or hash
      from: option --set modules.table.shards=columns
      hint: for example "rows"
    "#);
    insta::assert_snapshot!(set(&["modules.table.place=trainer"]), @r#"
    error: job `x.toml`: `modules.table.place` = "trainer" is the role that trains, and the rows of a table that is cut lie on ranks that do not
      from: option --set modules.table.place=trainer
      hint: place it on a role of its own, or leave shards out for a replica on each trainer
    "#);
    let two =
        r#"modules.table.layers=[{ type = "embedding", num_embeddings = 9, embedding_dim = 16 }, "relu"]"#;
    insta::assert_snapshot!(set(&[two]), @r#"
    error: job `x.toml`: `modules.table.layers[1]` is relu, a layer that cannot be cut
      from: option --set modules.table.layers=[{ type = "embedding", num_embeddings = 9, embedding_dim = 16 }, "relu"]
      hint: give the module one layer, an embedding, and put the others into a module of their own
    "#);
    let dense = r#"modules.table.layers=["flatten", "relu"]"#;
    insta::assert_snapshot!(set(&[dense, "modules.table.input_dtype=float32", "modules.dense.layers[1].in_features=3"]), @r#"
    error: job `x.toml`: `modules.table.layers[0]` is flatten, a layer that cannot be cut
      from: option --set modules.table.layers=["flatten", "relu"]
      hint: give the module one layer, an embedding, and put the others into a module of their own
    "#);
}

#[test]
fn optimizers_and_consistencies_that_touch_all_rows_are_refused() {
    sound(SHARDED, &[], &["optimizer.type=adam"]);
    sound(SHARDED, &[], &["optimizer.type=sgd", "train.consistency=ssp", "train.staleness=2"]);
    sound(SHARDED, &[], &["train.consistency=bsp"]);
    let mut said_of = Vec::new();
    for options in [
        &["optimizer.type=adamw"][..],
        &["optimizer.type=adam", "optimizer.amsgrad=true"],
        &["optimizer.type=sgd", "optimizer.momentum=0.9"],
        &["optimizer.weight_decay=0.1"],
        &["train.consistency=hogwild"],
    ] {
        said_of.push(set(options));
    }
    insta::assert_snapshot!(said_of.join("\n"), @r#"
    error: job `x.toml`: `optimizer.type` = "adamw" updates all rows in every step, and those of `modules.table` are sharded
      from: option --set optimizer.type=adamw
      hint: use sgd without momentum and weight decay, or adam without amsgrad and weight decay, or adagrad without weight decay
    error: job `x.toml`: `optimizer.type` = "adam" with amsgrad updates all rows in every step, and those of `modules.table` are sharded
      from: option --set optimizer.type=adam
      hint: use sgd without momentum and weight decay, or adam without amsgrad and weight decay, or adagrad without weight decay
    error: job `x.toml`: `optimizer.type` = "sgd" with momentum updates all rows in every step, and those of `modules.table` are sharded
      from: option --set optimizer.type=sgd
      hint: use sgd without momentum and weight decay, or adam without amsgrad and weight decay, or adagrad without weight decay
    error: job `x.toml`: `optimizer.type` = "adagrad" with weight decay updates all rows in every step, and those of `modules.table` are sharded
      from: x.toml, line 23
      hint: use sgd without momentum and weight decay, or adam without amsgrad and weight decay, or adagrad without weight decay
    error: job `x.toml`: `train.consistency` = "hogwild" writes parameters without locks, and rows of `modules.table` are made when they are first used
      from: option --set train.consistency=hogwild
      hint: use "async": a look-up copies the rows it reads, so no step waits for another's
    "#);
}

#[test]
fn a_batch_of_rows_fits_a_message_though_a_table_need_not() {
    let large = "modules.table.layers[0].num_embeddings=1_000_000_000";
    sound(SHARDED, &[], &[large]);
    let wide = ["modules.table.layers[0].embedding_dim=65536", "modules.dense.layers[1].in_features=196608"];
    insta::assert_snapshot!(set(&[wide[0], wide[1], "train.batch_size=100_000"]), @r"
    error: job `x.toml`: `train.batch_size` = 100000 asks for more than 4 GiB of rows of `modules.table`
      from: option --set train.batch_size=100_000
      hint: a sample asks for 786432 bytes; use at most 5461
    ");
}

#[test]
fn rows_that_come_and_go_are_shown() {
    let job = sound(SHARDED, &[], &LIVING).job;
    let plan = pstrain::job::plan(&job, job.training().unwrap(), &Default::default(), None).to_string();
    let line = plan.lines().find(|line| line.starts_with("module table")).unwrap();
    insta::assert_snapshot!(line, @"module table cut over server (ranks 0 to 1) by a hash of the id, each row from its sighting 3 on, dropped when 100,000 updates have not used it, [3] of int64 to [3, 16]");
}

const LIVING: [&str; 4] = [
    "modules.table.shards=hash",
    "modules.table.admit_after=3",
    "modules.table.evict_after=100_000",
    "optimizer.type=adam",
];

#[test]
fn rows_that_cannot_come_and_go_are_refused() {
    let with = |setting| set(&[&LIVING[..], &[setting]].concat());
    let said_of = [
        "modules.table.shards=rows",
        "modules.table.admit_after=0",
        "modules.table.evict_after=20_000_000",
        "modules.table.evict_after=never",
        "modules.dense.admit_after=2",
    ];
    insta::assert_snapshot!(said_of.map(with).join("\n"), @r#"
    error: job `x.toml`: `modules.table.admit_after` = 3 is for a table whose rows come and go, and this one's are all there
      from: option --set modules.table.admit_after=3
      hint: cut the table by hash (shards = "hash"), or leave it out
    error: job `x.toml`: `modules.table.evict_after` = 100000 is for a table whose rows come and go, and this one's are all there
      from: option --set modules.table.evict_after=100_000
      hint: cut the table by hash (shards = "hash"), or leave it out
    error: job `x.toml`: `modules.table.admit_after` = 0 is below 1
      from: option --set modules.table.admit_after=0
      hint: use an integer from 1 to 16777216
    error: job `x.toml`: `modules.table.evict_after` = 20000000 is above 16777216
      from: option --set modules.table.evict_after=20_000_000
      hint: use an integer from 1 to 16777216
    error: job `x.toml`: `modules.table.evict_after`: expected an integer from 1 to 16777216, found "never"
      from: option --set modules.table.evict_after=never
      hint: for example 4
    error: job `x.toml`: `modules.dense.admit_after` = 2 is for a table whose rows come and go, and this one's are all there
      from: option --set modules.dense.admit_after=2
      hint: cut the table by hash (shards = "hash"), or leave it out
    "#);
}
