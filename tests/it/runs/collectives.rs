//! The collectives demo, checked number by number.

use std::fs;

use crate::program::*;
use serde_json::Value;

/// The demo of so many ranks, as JSON.
fn demo(ranks: usize, settings: &[&str]) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("job.toml"), include_str!("../../../jobs/collectives.toml")).unwrap();
    let mut command = spawn(folder.path(), Some("job.toml"), settings);
    command.args(["--world-size", &ranks.to_string(), "--json"]);
    let output = finish(&mut command);
    assert_code(&output, 0);
    let demo: Value = serde_json::from_str(&stdout(&output)).expect("JSON on stdout");
    demo["operations"].as_array().expect("a list").clone()
}

/// A rank's tensors, of one element each.
fn values(tensors: &Value) -> Vec<f64> {
    let first = |tensor: &Value| tensor[0].as_f64().expect("a number");
    tensors.as_array().expect("a list").iter().map(first).collect()
}

/// What each of `size` ranks has after an operation, by the definition of MPI (the standard's chapters 3 and 6), where
/// rank r gives r + 1, and to rank s, where it gives each its own, the digits r + 1 and s + 1.
fn expected(operation: &str, reduction: Option<&str>, rank: usize, size: usize) -> Option<Vec<f64>> {
    let own = |rank: usize| rank as f64 + 1.0;
    let for_other = |rank: usize, other: usize| 10.0 * own(rank) + own(other);
    let reduce = |values: Vec<f64>| match reduction.expect("it reduces") {
        "sum" => values.iter().sum(),
        "product" => values.iter().product(),
        "max" => values.into_iter().fold(f64::MIN, f64::max),
        "min" => values.into_iter().fold(f64::MAX, f64::min),
        other => panic!("{other}"),
    };
    let all = || (0..size).map(own).collect::<Vec<f64>>();
    Some(match (operation, rank) {
        ("send_recv" | "isend_irecv", 0 | 1) => vec![1.0],
        ("send_recv" | "isend_irecv", _) => return None,
        ("broadcast", _) => vec![1.0],
        ("reduce", 0) | ("all_reduce", _) => vec![reduce(all())],
        ("reduce", _) => vec![own(rank)],
        ("scatter", _) => vec![for_other(0, rank)],
        ("gather", 0) | ("all_gather", _) => all(),
        ("gather", _) | ("barrier", _) => vec![],
        ("reduce_scatter", _) => vec![reduce((0..size).map(|from| for_other(from, rank)).collect())],
        ("all_to_all", _) => (0..size).map(|from| for_other(from, rank)).collect(),
        (other, _) => panic!("{other}"),
    })
}

#[test]
fn every_operation_gives_each_rank_what_it_should() {
    for ranks in [2, 4] {
        let operations = demo(ranks, &[]);
        // Eight operations, three that reduce in four ways each; among all ranks and in the group of two.
        assert_eq!(operations.len(), 2 * (8 + 3 * 4));
        for (number, shown) in operations.iter().enumerate() {
            let size = if number % 2 == 0 { ranks } else { 2 };
            let (operation, reduction) = (shown["operation"].as_str().unwrap(), shown["reduction"].as_str());
            let mut seen = shown["ranks"].as_array().unwrap().iter();
            for rank in 0..size {
                let Some(expected) = expected(operation, reduction, rank, size) else { continue };
                let seen = seen.next().unwrap_or_else(|| panic!("{operation}: nothing of rank {rank}"));
                assert_eq!(seen["rank"], rank, "{operation}");
                assert_eq!(values(&seen["after"]), expected, "{operation}, rank {rank} of {size}");
            }
            assert!(seen.next().is_none(), "{operation}: more ranks than take part");
        }
    }
}

#[test]
fn the_demo_is_shown_rank_by_rank() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("job.toml"), include_str!("../../../jobs/collectives.toml")).unwrap();
    let output = finish(&mut spawn(folder.path(), Some("job.toml"), &["collectives.elements=2"]));
    assert_code(&output, 0);
    insta::assert_snapshot!(stdout(&output));
}

#[test]
fn a_job_that_shows_collectives_takes_no_keys_of_training() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("job.toml"), include_str!("../../../jobs/collectives.toml")).unwrap();
    let settings = ["train.epochs=3", "collectives.show=[\"allreduce\"]", "collectives.group=[0, 9]"];
    let output = finish(&mut spawn(folder.path(), Some("job.toml"), &settings));
    assert_code(&output, 2);
    insta::assert_snapshot!(stderr(&output));
}
