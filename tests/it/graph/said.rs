//! What is said of graphs that are wrong, and how one that is right is told.

use std::fs;

use crate::program::*;
use pstrain::job::{self, JobText, Sources};

/// A small sound graph; the tests break it.
const SOUND: &str = r#"
name = "x"
[roles]
server = 2
dense = 1
trainer = 2
[modules.bottom]
place = "trainer"
from = "target"
input = [4]
layers = [{ type = "linear", in_features = 4, out_features = 8 }, "relu"]
[modules.tables]
place = "server"
shards = "rows"
from = "features"
input = [4]
input_dtype = "int64"
layers = [{ type = "embedding", num_embeddings = 60, embedding_dim = 8 }]
[modules.top]
place = "dense"
from = ["bottom", "tables"]
layers = ["dot_interaction", { type = "linear", in_features = 18, out_features = 4 }]
[data]
plugin = "csv"
root = "."
[data.train]
file = "graph.csv"
features = ["id0", "id1", "id2", "id3"]
feature_dtype = "int64"
target = ["x0", "x1", "x2", "x3"]
[loss]
plugin = "mse"
target = "target"
[optimizer]
type = "sgd"
[train]
consistency = "bsp"
batch_size = 8
"#;

fn changed(changes: &[(&str, &str)]) -> String {
    let change = |text: String, (from, to): &(&str, &str)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    };
    changes.iter().fold(SOUND.to_owned(), change)
}

/// What is said of the sound graph after changes.
fn said(changes: &[(&str, &str)]) -> String {
    let text = changed(changes);
    let sources = Sources { file: JobText { name: "x.toml", text: &text }, env: Vec::new(), overrides: &[] };
    job::load(&sources).expect_err("the job is wrong").to_string()
}

/// `check` of the changed graph, with its data.
fn check(changes: &[(&str, &str)], code: i32) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("x.toml"), changed(changes)).unwrap();
    fs::write(folder.path().join("graph.csv"), include_str!("../../data/graph.csv")).unwrap();
    let output = finish(pstrain(folder.path()).args(["check", "x.toml"]));
    assert_code(&output, code);
    (stdout(&output), stderr(&output))
}

#[test]
fn a_graph_is_told_with_its_shapes_roles_and_what_travels() {
    insta::assert_snapshot!(check(&[], 0).0);
}

#[test]
fn a_circle_names_all_who_wait() {
    insta::assert_snapshot!(said(&[
        ("from = \"target\"\ninput = [4]", "from = \"top\""),
        ("from = [\"bottom\", \"tables\"]", "from = [\"bottom\", \"tables\"]"),
    ]));
    insta::assert_snapshot!(
        "itself",
        said(&[("from = [\"bottom\", \"tables\"]", "from = [\"top\", \"tables\"]")])
    );
}

#[test]
fn a_name_that_is_nothing_is_told_with_what_was_meant() {
    insta::assert_snapshot!("slip_of_a_module", said(&[("from = [\"bottom\"", "from = [\"botom\"")]));
    insta::assert_snapshot!("slip_of_a_field", check(&[("from = \"features\"", "from = \"featurs\"")], 2).1);
    insta::assert_snapshot!("output", said(&[("from = [\"bottom\"", "from = [\"bottom.x\"")]));
    insta::assert_snapshot!("loss", said(&[("target = \"target\"\n", "target = \"top\"\nfrom = \"tob\"\n")]));
}

#[test]
fn shapes_that_do_not_fit_name_both_ends() {
    insta::assert_snapshot!(
        "of_a_join",
        said(&[("out_features = 8 }, \"relu\"", "out_features = 6 }, \"relu\"")])
    );
    let no_join = [("\"dot_interaction\", ", "")];
    insta::assert_snapshot!("without_a_join", said(&no_join));
    let stated = [(
        "from = [\"bottom\", \"tables\"]\n",
        "from = [\"bottom\", \"tables\"]\ninputs = { tables = { shape = [5, 8] } }\n",
    )];
    insta::assert_snapshot!("as_stated", said(&stated));
    let of_field =
        [("input = [4]\ninput_dtype", "input = [3]\ninput_dtype"), ("in_features = 18", "in_features = 14")];
    insta::assert_snapshot!("of_a_field", check(&of_field, 2).1);
}

#[test]
fn dtypes_that_do_not_fit_name_both_ends() {
    insta::assert_snapshot!("dtype_of_a_layer", said(&[("input_dtype = \"int64\"\n", "")]));
    insta::assert_snapshot!("dtype_of_a_field", check(&[("feature_dtype = \"int64\"\n", "")], 2).1);
}

#[test]
fn a_module_that_nobody_takes_is_told() {
    let alone = [(
        "from = [\"bottom\", \"tables\"]\nlayers = [\"dot_interaction\", { type = \"linear\", in_features = 18",
        "from = \"bottom\"\nlayers = [{ type = \"linear\", in_features = 8",
    )];
    insta::assert_snapshot!("two_ends", said(&alone));
    let chosen = [alone[0], ("target = \"target\"\n", "target = \"target\"\nfrom = \"top\"\n")];
    insta::assert_snapshot!("not_in_the_loss", said(&chosen));
}

#[test]
fn replicas_whose_gradients_come_in_no_order_are_refused_with_a_way_on() {
    insta::assert_snapshot!(said(&[("place = \"server\"\nshards = \"rows\"\n", "place = \"trainer\"\n"),]));
}

#[test]
fn what_contradicts_itself_is_refused() {
    let several = (
        "from = [\"bottom\", \"tables\"]\n",
        "from = [\"bottom\", \"tables\"]\ninput = [4]\ninputs = { tabels = { shape = [4, 8] } }\n",
    );
    insta::assert_snapshot!("inputs", said(&[several]));
    insta::assert_snapshot!(
        "twice",
        said(&[("from = [\"bottom\", \"tables\"]", "from = [\"tables\", \"tables\"]")])
    );
    let both = [("plugin = \"csv\"\n", "plugin = \"csv\"\ntarget = \"target\"\n")];
    insta::assert_snapshot!("targets", said(&both));
}

#[test]
fn a_module_that_is_called_as_a_field_is_refused() {
    let named = [
        ("[modules.bottom]", "[modules.features]"),
        ("[\"bottom\", \"tables\"]", "[\"features\", \"tables\"]"),
        ("from = \"features\"", "from = \"target\""),
    ];
    let (_, said) = check(&named, 2);
    assert!(said.contains("`features` is a module of this job and a field of the data"), "{said}");
}
