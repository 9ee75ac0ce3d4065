//! Modules that trainers compute with parameters from servers: what does not fit together.

use super::{SOUND, errors, load, said, sound};

/// The sound job with its module's parameters on servers.
fn pulled() -> String {
    SOUND.replace("place = \"server\"", "place = \"server\"\nrun = \"caller\"")
}

fn set(settings: &[&str]) -> String {
    said(load(&pulled(), &[], settings))
}

#[test]
fn a_caller_does_not_own_what_it_calls() {
    insta::assert_snapshot!(set(&["modules.net.place=trainer"]), @r#"
    error: job `x.toml`: `modules.net.place` = "trainer" is the role that trains: with run = "caller" it would pull from itself, a caller that owns what it calls
      from: option --set modules.net.place=trainer
      hint: place it on a role of servers, or leave run out for a replica on each trainer
    "#);
    insta::assert_snapshot!(set(&["modules.net.place=[\"server\", \"trainer\"]"]), @r#"
    error: job `x.toml`: `modules.net.place` = ["server", "trainer"] are the stages of a pipeline, and with run = "caller" each trainer computes the whole module
      from: option --set modules.net.place=["server", "trainer"]
      hint: place the module on one role, or leave run out
    "#);
    insta::assert_snapshot!(set(&["modules.net.place=[]"]), @r#"
    error: job `x.toml`: `modules.net.place` = [] names no role
      from: option --set modules.net.place=[]
      hint: name the role of each stage, in the order in which a sample passes them
    "#);
    insta::assert_snapshot!(set(&["modules.net.run=called"]), @r#"
    error: job `x.toml`: `modules.net.run` = "called" is not one of owner or caller
      from: option --set modules.net.run=called
      hint: did you mean "caller"?
    "#);
}

#[test]
fn options_of_pull_and_push_are_for_modules_that_are_pulled() {
    let both = format!("{SOUND}local_steps = 4\n[pull_push]\nfilter = \"int8\"\n");
    insta::assert_snapshot!(errors(&both), @r#"
    error: job `x.toml`: `train.local_steps` = 4 is for modules with run = "caller", and this job has none
      from: x.toml, line 28
      hint: leave it out: other modules are synchronised in every step
    error: job `x.toml`: `pull_push.filter` = "int8" is for modules with run = "caller", and this job has none
      from: x.toml, line 30
      hint: leave it out
    "#);
    sound(SOUND, &[], &["train.local_steps=1"]);
}

#[test]
fn filters_and_local_steps_have_their_limits() {
    insta::assert_snapshot!(set(&["pull_push.filter=gzip", "train.local_steps=0"]), @r#"
    error: job `x.toml`: `train.local_steps` = 0 is below 1
      from: option --set train.local_steps=0
      hint: use an integer from 1 to 1000000
    error: job `x.toml`: `pull_push.filter` = "gzip" is not one of none, fp16, bf16, int8 or top_k
      from: option --set pull_push.filter=gzip
      hint: for example "none"
    "#);
    for share in ["0", "1.5", "-0.1"] {
        let said = set(&["pull_push.filter=top_k", &format!("pull_push.top_k={share}")]);
        assert!(said.contains("above 0 and at most 1"), "{said}");
    }
    let said = set(&["pull_push.filter=int8", "pull_push.top_k=0.01", "pull_push.topk=0.02"]);
    assert!(said.contains("`pull_push.top_k` = 0.01 is an option of another filter"), "{said}");
    assert!(said.contains("unknown key `pull_push.topk`"), "{said}");
    sound(&pulled(), &[], &["pull_push.filter=top_k", "pull_push.top_k=1", "train.local_steps=1000000"]);
    sound(&pulled(), &[], &["train.on_nan=skip", "train.local_steps=2"]);
}

#[test]
fn every_server_has_a_part_that_fits_a_message() {
    let few = "modules.net.layers=[ \"flatten\", { type = \"linear\", in_features = 64, out_features = 1, bias = false } ]";
    let servers = ["roles.server=65", "cluster.world_size=67"];
    insta::assert_snapshot!(set(&[few, servers[0], servers[1]]), @r#"
    error: job `x.toml`: `modules.net` has 64 parameters to train for the 65 ranks of role `server`
      from: option --set modules.net.layers=[ "flatten", { type = "linear", in_features = 64, out_features = 1, bias = false } ]
      hint: use fewer servers; a module that trains nothing needs no run = "caller": place it on the role that trains
    "#);
    let none = set(&["modules.net.layers=[\"flatten\"]"]);
    assert!(
        none.contains("`modules.net` has 0 parameters to train for the 1 rank of role `server`"),
        "{none}"
    );
    let many: String =
        (0..5).map(|_| "{ type = \"linear\", in_features = 20000, out_features = 20000 }, ").collect();
    let first = "{ type = \"linear\", in_features = 64, out_features = 20000 }";
    let large = format!("modules.net.layers=[ \"flatten\", {first}, {many} ]");
    let said = set(&[&large]);
    assert!(
        said.contains("`modules.net` gives each rank of role `server` more than the 4 GiB of a message"),
        "{said}"
    );
    assert!(said.contains("hint: use at least 2 servers"), "{said}");
    sound(&pulled(), &[], &[&large, "roles.server=2"]);
}

#[test]
fn sparse_gradients_are_not_pushed() {
    let layers = r#"modules.net.layers=[ { type = "embedding_bag", num_embeddings = 10, embedding_dim = 8, sparse = true } ]"#;
    let settings = [layers, "modules.net.input=[4]", "modules.net.input_dtype=int64"];
    insta::assert_snapshot!(set(&settings), @r#"
    error: job `x.toml`: `modules.net.layers[0]` has sparse gradients, which are not pushed
      from: option --set modules.net.layers=[ { type = "embedding_bag", num_embeddings = 10, embedding_dim = 8, sparse = true } ]
      hint: leave sparse out, or place the module on a role of one rank without run = "caller"
    "#);
}
