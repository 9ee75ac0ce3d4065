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
