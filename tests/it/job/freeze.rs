//! `modules.NAME.freeze`: what does not fit is told.

use super::{SOUND, load, said, set};

#[test]
fn mistakes_in_what_is_frozen_are_told() {
    let with = |freeze: &str| set(&[&format!("modules.net.freeze={freeze}")]);
    insta::assert_snapshot!(with("[\"*.bais\"]"), @r#"
    error: job `x.toml`: `modules.net.freeze[0]` = "*.bais" is a pattern that no parameter matches
      from: option --set modules.net.freeze=["*.bais"]
      hint: the 4 parameters are `net.fc1.weight` to `net.fc2.bias`
    "#);
    insta::assert_snapshot!(with("[\"net.fc1.*\", \"fc2.*\"]"), @r#"
    error: job `x.toml`: `modules.net.freeze[1]` = "fc2.*" is a pattern that no parameter matches
      from: option --set modules.net.freeze=["net.fc1.*", "fc2.*"]
      hint: the 4 parameters are `net.fc1.weight` to `net.fc2.bias`
    "#);
    insta::assert_snapshot!(with("true"), @r"
    error: job `x.toml`: nothing is left to train: all parameters of the job are frozen
      hint: leave `freeze` out where something is to be learnt
    ");
    insta::assert_snapshot!(with("\"fc1\""), @r#"
    error: job `x.toml`: `modules.net.freeze`: expected true or false, found "fc1"
      from: option --set modules.net.freeze="fc1"
      hint: for example true
    "#);
    insta::assert_snapshot!(with("[7]"), @r#"
    error: job `x.toml`: `modules.net.freeze[0]`: expected a string, found 7
      from: option --set modules.net.freeze=[7]
      hint: for example "text"
    "#);
}

#[test]
fn tables_that_are_cut_are_frozen_whole() {
    let table = |freeze: &str, shards: &str| {
        let text = SOUND.replace("epochs = 2", "epochs = 2\nforward = [\"table\", \"net\"]").replace(
            "[modules.net]\nplace = \"server\"\ninput = [1, 8, 8]\nlayers = [\n  \"flatten\",",
            &format!(
                "[modules.table]\nplace = \"server\"\nshards = \"{shards}\"\nfreeze = {freeze}\ninput = [2]\n\
                 input_dtype = \"int64\"\nlayers = [{{ type = \"embedding\", num_embeddings = [9, 5], embedding_dim = 32 }}]\n\
                 [modules.net]\nplace = \"server\"\nlayers = [\n  \"flatten\","
            ),
        );
        said(load(&text, &[], &[]))
    };
    insta::assert_snapshot!(table("[\"table.0.0.*\"]", "rows"), @r#"
    error: job `x.toml`: `modules.table.freeze` = ["table.0.0.*"] names some of the module's tables, and those are cut as one
      from: x.toml, line 11
      hint: write freeze = true, or make two modules of them
    "#);
    insta::assert_snapshot!(table("true", "hash"), @r#"
    error: job `x.toml`: `modules.table.freeze` = true leaves the table without rows: with shards = "hash" a row is made when it is first trained
      from: x.toml, line 11
      hint: name a file of `weights` to start from, or cut it into ranges of `rows`
    "#);
}
