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
        let plan = pstrain::job::plan(&job, job.training().unwrap()).to_string();
        let (before, after) = plan.split_once("\n\nmodule dense").expect("modules");
        let (_, links) = after.split_once("\n\nlinks").expect("links");
        format!("{before}\n\nlinks{links}")
    };
    insta::assert_snapshot!(plan(&[]), @"");
    insta::assert_snapshot!(plan(&["modules.table.shards=hash", "optimizer.type=sgd"]), @"");
}

#[test]
fn what_cannot_be_cut_is_refused_with_a_way_on() {
    insta::assert_snapshot!(set(&["modules.table.shards=columns"]), @"");
    insta::assert_snapshot!(set(&["modules.table.place=trainer"]), @"");
    let two =
        r#"modules.table.layers=[{ type = "embedding", num_embeddings = 9, embedding_dim = 16 }, "relu"]"#;
    insta::assert_snapshot!(set(&[two]), @"");
    let dense = r#"modules.table.layers=["flatten", "relu"]"#;
    insta::assert_snapshot!(set(&[dense, "modules.table.input_dtype=float32", "modules.dense.place=server"]), @"");
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
    insta::assert_snapshot!(said_of.join("\n"), @"");
}

#[test]
fn a_batch_of_rows_fits_a_message_though_a_table_need_not() {
    let large = "modules.table.layers[0].num_embeddings=1_000_000_000";
    sound(SHARDED, &[], &[large]);
    insta::assert_snapshot!(set(&["modules.table.layers[0].embedding_dim=65536", "train.batch_size=100_000", "modules.dense.layers[1].in_features=196608"]), @"");
}
