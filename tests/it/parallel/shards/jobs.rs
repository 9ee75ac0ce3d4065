//! Whole jobs in real processes.

use super::*;

const RECOMMENDER: &str = include_str!("../../../../jobs/recommender.toml");

/// A small table, in 40 rounds.
const SMALL: [&str; 12] = [
    "modules.table.layers[0].num_embeddings=3_050",
    "data.train.users=2_000",
    "data.train.items=1_000",
    "data.train.categories=50",
    "data.train.samples=20_480",
    "data.test.users=2_000",
    "data.test.items=1_000",
    "data.test.categories=50",
    "data.test.samples=1_000",
    "train.batch_size=256",
    "train.consistency=bsp",
    "log.every=1",
];

/// By rank and step.
type Losses = BTreeMap<(u64, u64), f64>;

/// Spawns the recommender with more settings; its losses by step and rank, and the trained tensors.
fn recommend(folder: &Path, more: &[&str]) -> (Losses, Vec<(String, Tensor)>) {
    fs::write(folder.join("job.toml"), RECOMMENDER).unwrap();
    let settings: Vec<&str> = SMALL.iter().chain(more).copied().collect();
    crate::program::assert_code(
        &crate::program::finish(&mut crate::program::spawn(folder, Some("job.toml"), &settings)),
        0,
    );
    let loss = |record: serde_json::Value| {
        let number = |key: &str| record[key].as_u64().unwrap();
        ((number("step"), number("rank")), record["loss"].as_f64().unwrap())
    };
    let steps = crate::program::records(folder, "step");
    (steps.into_iter().map(loss).collect(), model::load(&crate::program::model(folder)).unwrap())
}

#[test]
fn the_recommender_comes_to_the_same_loss_with_one_two_and_three_servers() {
    let run = |servers: u32| {
        let folder = tempfile::tempdir().unwrap();
        recommend(folder.path(), &[&format!("roles.server={servers}")])
    };
    let (losses, tensors) = run(1);
    assert_eq!(losses.len(), 80, "two trainers' 40 steps");
    let (_, table) = tensors.iter().find(|(name, _)| name == "table.0.weight").expect("PyTorch's name");
    assert_eq!(table.size(), [3_050, 16]);
    for servers in [2, 3] {
        let more = run(servers);
        assert_eq!(more.0, losses, "{servers} servers: the same bits");
        assert_eq!(more.1, tensors, "{servers} servers: the same bits");
    }
}

#[test]
fn a_table_cut_by_hash_is_saved_with_its_ids_and_holds_the_same_rows() {
    let (by_rows, by_hash) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (losses, all) = recommend(by_rows.path(), &[]);
    let (hashed_losses, listed) = recommend(by_hash.path(), &["modules.table.shards=hash", "roles.server=3"]);
    assert_eq!(hashed_losses, losses, "the same bits");
    let tensor = |tensors: &[(String, Tensor)], wanted: &str| {
        let found = tensors.iter().find(|(name, _)| name == wanted);
        found.unwrap_or_else(|| panic!("there is no {wanted}")).1.shallow_clone()
    };
    let ids = tensor(&listed, "table.0.ids");
    let list = Vec::<i64>::try_from(&ids).unwrap();
    assert!(list.is_sorted() && list.len() > 1_000, "{} rows", list.len());
    assert_eq!(tensor(&listed, "table.0.weight"), tensor(&all, "table.0.weight").index_select(0, &ids));
    assert_eq!(
        crate::program::summary(by_hash.path())["eval"],
        crate::program::summary(by_rows.path())["eval"]
    );
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn the_loss_of_the_recommender_falls() {
    let folder = tempfile::tempdir().unwrap();
    let more = ["train.consistency=async", "train.epochs=8"];
    let (losses, _) = recommend(folder.path(), &more);
    let mean = |steps: std::ops::Range<u64>| {
        let of: Vec<f64> =
            losses.iter().filter(|((step, _), _)| steps.contains(step)).map(|(_, loss)| *loss).collect();
        of.iter().sum::<f64>() / of.len() as f64
    };
    let (first, last) = (mean(1..10), mean(310..321));
    assert!(last < 0.8 * first, "{first}, {last}");
    let summary = crate::program::summary(folder.path());
    assert!(summary["eval"]["accuracy"].as_f64().unwrap() > 0.68, "{summary}");
}

/// What another run has trained, or a table in PyTorch's `state_dict`, is gone on from by any number of servers, however they
/// cut it.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_table_starts_from_a_file_however_it_is_cut() {
    let folder = tempfile::tempdir().unwrap();
    let (_, trained) = recommend(folder.path(), &["modules.table.shards=hash"]);
    let file = crate::program::model(folder.path());
    let weights = format!("modules.table.weights={}", file.display());
    let dense = format!("modules.click.weights={}", file.display());
    let from = |cut: &str, servers: u32, more: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        let (cut, servers) = (format!("modules.table.shards={cut}"), format!("roles.server={servers}"));
        recommend(folder.path(), &[&[&cut, &servers, &*weights, &*dense], more].concat())
    };
    let (losses, hashed) = from("hash", 3, &[]);
    let (same_losses, whole) = from("rows", 2, &[]);
    assert_eq!(losses, same_losses, "the same bits");
    let of = |tensors: &[(String, Tensor)], wanted: &str| {
        let found = tensors.iter().find(|(name, _)| name == wanted);
        found.unwrap_or_else(|| panic!("there is no {wanted}")).1.shallow_clone()
    };
    let ids = of(&hashed, "table.0.ids");
    assert_eq!(of(&hashed, "table.0.weight"), of(&whole, "table.0.weight").index_select(0, &ids));
    // It went on from there.
    let (first, _) = recommend(tempfile::tempdir().unwrap().path(), &[]);
    let at = (1, 0);
    assert!(losses[&at] < first[&at], "{} and {}", losses[&at], first[&at]);
    // With a learning rate of almost nothing the rows stay what they were.
    let (_, still) = from("rows", 1, &["optimizer.lr=1e-30"]);
    let ids = of(&trained, "table.0.ids");
    assert_eq!(of(&still, "table.0.weight").index_select(0, &ids), of(&trained, "table.0.weight"));
}

#[test]
fn files_that_are_no_such_table_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |tensors: &[(&str, Tensor)], cut: &str| {
        let file = folder.path().join("start.safetensors");
        Tensor::write_safetensors(tensors, &file).unwrap();
        fs::write(folder.path().join("job.toml"), RECOMMENDER).unwrap();
        let (weights, cut) =
            (format!("modules.table.weights={}", file.display()), format!("modules.table.shards={cut}"));
        let settings: Vec<&str> = SMALL.iter().copied().chain([&*weights, &*cut]).collect();
        let spawned =
            crate::program::finish(&mut crate::program::spawn(folder.path(), Some("job.toml"), &settings));
        assert_ne!(spawned.status.code(), Some(0));
        String::from_utf8_lossy(&spawned.stderr).into_owned()
    };
    let rows = |count: i64| Tensor::zeros([count, 16], FLOAT);
    let ids = |ids: &[i64]| Tensor::from_slice(ids);
    for (tensors, cut, said) in [
        (
            vec![("0.weight", rows(3))],
            "rows",
            "`0.weight` is [3, 16] of float32, where [3050, 16] of float32",
        ),
        (vec![("0.weights", rows(3))], "hash", "did you mean `0.weights`?"),
        (
            vec![("0.weight", rows(2)), ("0.ids", ids(&[1, 2, 3]))],
            "hash",
            "where [3, 16] of float32 is wanted",
        ),
        (vec![("0.weight", rows(2)), ("0.ids", ids(&[5, 5]))], "hash", "it has the row of id 5 twice"),
        (vec![("0.weight", rows(2)), ("0.ids", ids(&[5, -1]))], "hash", "it has a row of id -1"),
        (vec![("0.weight", rows(2)), ("0.ids", ids(&[5, 3050]))], "rows", "those from 0 to below 3050"),
        (
            vec![("0.weight", rows(2)), ("0.ids", rows(2))],
            "hash",
            "`0.ids` is [2, 16] of float32, where [2] of int64",
        ),
    ] {
        let error = refused(&tensors, cut);
        assert!(error.contains(said), "{said}: {error}");
    }
}
