//! The jobs of `jobs/` whose models are no chains.

use std::path::Path;

use crate::program::*;

/// The mean loss of the first records, and of the last, of `steps` steps.
fn losses(job: &str, steps: u32) -> (f64, f64) {
    let folder = tempfile::tempdir().unwrap();
    let job = Path::new(env!("CARGO_MANIFEST_DIR")).join("jobs").join(job);
    let steps = format!("train.steps={steps}");
    let settings = [steps.as_str(), "log.every=1", "data.test.samples=500"];
    assert_code(&finish(&mut spawn(folder.path(), job.to_str(), &settings)), 0);
    let losses: Vec<f64> =
        records(folder.path(), "step").iter().map(|record| record["loss"].as_f64().unwrap()).collect();
    let mean = |some: &[f64]| some.iter().sum::<f64>() / some.len() as f64;
    (mean(&losses[..10]), mean(&losses[losses.len() - 10..]))
}

#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn a_dlrm_two_towers_and_a_wide_and_deep_model_learn_who_clicks() {
    for (job, steps) in [("dlrm.toml", 60), ("two_tower.toml", 150), ("wide_deep.toml", 60)] {
        let (first, last) = losses(job, steps);
        assert!(last < first - 0.01, "{job}: {first} to {last}");
    }
}
