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
fn several_outputs_are_not_computed_again() {
    let script = (
        "layers = [\"dot_interaction\", { type = \"linear\", in_features = 18, out_features = 4 }]\n",
        "inputs = { }\nrecompute = true\ntorchscript = \"top.pt\"\n\
         outputs = [{ name = \"one\", shape = [4] }, { name = \"two\", shape = [4] }]\n",
    );
    insta::assert_snapshot!("recompute_of_outputs", said(&[script]));
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

/// The sound graph with a table for each column, after changes.
fn with_columns(changes: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    let columns = ("num_embeddings = 60", "num_embeddings = [15, 30, 45, 60]");
    [&[columns], changes].concat()
}

#[test]
fn columns_without_rows_are_refused() {
    insta::assert_snapshot!("no_column", said(&[("num_embeddings = 60", "num_embeddings = []")]));
    let none = ("num_embeddings = 60", "num_embeddings = [15, 0, 45, 6_000_000_000]");
    insta::assert_snapshot!("no_rows", said(&[none]));
    let many = "num_embeddings = [2_000_000_000, 2_000_000_000, 2_000_000_000, 1]";
    insta::assert_snapshot!("too_many_rows", said(&[("num_embeddings = 60", many)]));
}

#[test]
fn another_number_of_columns_is_told_with_where_they_come_from() {
    insta::assert_snapshot!(
        "columns_of_a_field",
        said(&with_columns(&[("input = [4]\ninput_dtype", "input = [3]\ninput_dtype")]))
    );
    let fields = (
        "from = \"features\"\ninput = [4]\ninput_dtype = \"int64\"\n",
        "from = [\"user\", \"item\"]\n\
         inputs = { user = { shape = [], dtype = \"int64\" }, item = { shape = [2], dtype = \"int64\" } }\n",
    );
    insta::assert_snapshot!("columns_of_fields", said(&with_columns(&[fields])));
    let bags = ("type = \"embedding\"", "type = \"embedding_bag\"");
    insta::assert_snapshot!("columns_without_bags", said(&with_columns(&[bags])));
}

#[test]
fn columns_that_are_no_indices_are_refused() {
    insta::assert_snapshot!("dtype_of_columns", said(&with_columns(&[("input_dtype = \"int64\"\n", "")])));
    let fields = (
        "from = \"features\"\ninput = [4]\ninput_dtype = \"int64\"\n",
        "from = [\"user\", \"item\"]\ninputs = { user = { shape = [1] }, item = { shape = [3], dtype = \"int64\" } }\n",
    );
    insta::assert_snapshot!("dtype_of_one_of_the_fields", said(&with_columns(&[fields])));
}

/// Where several come, none is said by `input_dtype`.
#[test]
fn the_dtype_of_one_of_several_inputs_is_told_with_its_key() {
    let both = |inputs: &'static str| {
        [
            ("from = [\"bottom\", \"tables\"]\n", inputs),
            (
                "[\"dot_interaction\", { type = \"linear\", in_features = 18",
                "[\"concat\", { type = \"linear\", in_features = 12",
            ),
        ]
    };
    let ids = both(
        "from = [\"bottom\", \"features\"]\ninputs = { features = { shape = [4], dtype = \"int64\" } }\n",
    );
    insta::assert_snapshot!("indices_among_numbers", said(&ids));
    let fields = "from = \"features\"\ninput = [4]\ninput_dtype = \"int64\"\n";
    let module = (
        fields,
        "from = [\"features\", \"bottom\"]\ninputs = { features = { shape = [4], dtype = \"int64\" } }\n",
    );
    insta::assert_snapshot!(
        "a_module_among_indices",
        said(&[module, ("num_embeddings = 60", "num_embeddings = [5, 5, 5, 5, 9]")])
    );
}

#[test]
fn what_does_not_go_with_columns_is_refused() {
    let padding = ("embedding_dim = 8 }", "embedding_dim = 8, padding_idx = 0 }");
    insta::assert_snapshot!("padding_of_columns", said(&with_columns(&[padding])));
    let second = ("embedding_dim = 8 }]", "embedding_dim = 8 }, \"relu\"]");
    insta::assert_snapshot!("shards_of_two_layers", said(&with_columns(&[second])));
}

#[test]
fn weights_that_are_not_those_of_the_bags_are_refused() {
    let bags = |layer: &'static str| ("type = \"embedding\", num_embeddings = 60", layer);
    let weighted =
        bags("type = \"embedding_bag\", mode = \"sum\", per_sample_weights = true, num_embeddings = 60");
    insta::assert_snapshot!("no_weights", said(&[weighted]));
    let taken =
        |inputs: &'static str| ("from = \"features\"\ninput = [4]\ninput_dtype = \"int64\"\n", inputs);
    let of_other_shape = taken(
        "from = [\"bag\", \"weights\"]\n\
         inputs = { bag = { shape = [4], dtype = \"int64\" }, weights = { shape = [5] } }\n",
    );
    insta::assert_snapshot!("weights_of_another_shape", said(&[weighted, of_other_shape]));
    let mean = bags("type = \"embedding_bag\", per_sample_weights = true, num_embeddings = 60");
    insta::assert_snapshot!("weights_of_means", said(&[mean]));
}

/// Whole or cut, by rows or by hash, an index that its column has not ends the run with its column and limit.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn an_index_out_of_its_columns_range_is_named() {
    let least = ("num_embeddings = 60", "num_embeddings = [15, 30, 45, 46]");
    let lines = |said: &str| {
        let told = said.lines().filter(|line| line.contains("of column") || line.contains("columns count"));
        told.map(|line| line.rsplit(": index").next().unwrap_or_default().trim().to_owned())
            .collect::<Vec<_>>()
    };
    for place in [
        "place = \"server\"\nshards = \"rows\"",
        "place = \"server\"\nshards = \"hash\"",
        "place = \"dense\"",
    ] {
        let folder = tempfile::tempdir().unwrap();
        let changes = [least, ("place = \"server\"\nshards = \"rows\"", place)];
        fs::write(folder.path().join("x.toml"), changed(&changes)).unwrap();
        fs::write(folder.path().join("graph.csv"), include_str!("../../data/graph.csv")).unwrap();
        let output = finish(&mut spawn(folder.path(), Some("x.toml"), &[]));
        assert_code(&output, 1);
        let said = stderr(&output);
        let told = lines(&said);
        assert!(
            told.iter().any(|line| line.contains("of column 3 is not below num_embeddings[3] = 46")),
            "{place}: {said}"
        );
    }
}
