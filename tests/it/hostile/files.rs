//! Files that are no job, or one with wild values; headers of safetensors that lie: an error, soon and short, and no panic.

use proptest::prelude::*;
use pstrain::job::{self, JobText, Sources};

use crate::support::times;

const JOB: &str = include_str!("../../../jobs/digits_ps.toml");

/// Bytes of the longest message about one job: people read it.
const LONGEST: usize = 64 << 10;

fn load(text: &str) -> Result<(), String> {
    let file = JobText { name: "job.toml", text };
    job::load(&Sources { file, env: Vec::new(), overrides: &[] })
        .map(drop)
        .map_err(|errors| errors.to_string())
}

fn config(part: usize, all: usize) -> ProptestConfig {
    ProptestConfig { cases: times(part, all) as u32, failure_persistence: None, ..ProptestConfig::default() }
}

/// A line of a job with another value behind its `=`.
fn with_value(at: usize, value: &str) -> String {
    let lines: Vec<&str> = JOB.lines().collect();
    let keys: Vec<usize> = (0..lines.len()).filter(|&nth| lines[nth].contains(" = ")).collect();
    let chosen = keys[at % keys.len()];
    let line = |(nth, line): (usize, &&str)| match (nth == chosen, line.split_once(" = ")) {
        (true, Some((key, _))) => format!("{key} = {value}\n"),
        _ => format!("{line}\n"),
    };
    lines.iter().enumerate().map(line).collect()
}

fn wild_value() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("1e300".into()),
        Just("-1e300".into()),
        Just("nan".into()),
        Just("-inf".into()),
        Just("1e-300".into()),
        Just("-9223372036854775808".into()),
        Just("9223372036854775807".into()),
        Just(format!("[{}1]", "1, ".repeat(5000))),
        Just(format!("{}1{}", "[".repeat(100), "]".repeat(100))),
        Just(format!("\"{}\"", "long".repeat(20_000))),
        Just("\"\\u001b[2J\"".into()),
        Just("{ a = { b = [1, \"x\"] } }".into()),
        any::<f64>().prop_map(|number| format!("{number:?}")),
        any::<i64>().prop_map(|number| number.to_string()),
        "[ -~]{0,40}",
    ]
}

proptest! {
    #![proptest_config(config(400, 20_000))]

    #[test]
    fn a_job_with_a_wild_value_is_sound_or_refused_in_few_words(at in 0usize..200, value in wild_value()) {
        if let Err(said) = load(&with_value(at, &value)) {
            prop_assert!(said.starts_with("error: job `job.toml`"), "{}", said);
            prop_assert!(said.len() < LONGEST, "{} bytes", said.len());
        }
    }

    #[test]
    fn a_job_that_is_cut_or_scrambled_is_sound_or_refused(from in 0usize..3000, to in 0usize..3000, put in "[ -~\n]{0,20}") {
        let (from, to) = (from.min(JOB.len()), to.min(JOB.len()));
        let (from, to) = (from.min(to), from.max(to));
        if JOB.is_char_boundary(from) && JOB.is_char_boundary(to) {
            let text = format!("{}{put}{}", &JOB[..from], &JOB[to..]);
            if let Err(said) = load(&text) {
                prop_assert!(said.len() < LONGEST, "{} bytes", said.len());
            }
        }
    }

    #[test]
    fn any_text_is_sound_or_refused(text in ".{0,200}") {
        let _ = load(&text);
    }

    #[test]
    fn a_safetensors_header_that_lies_is_refused_in_few_words(
        name in ".{0,40}",
        dtype in prop_oneof![Just("F32".to_owned()), "[A-Z0-9]{0,200}"],
        shape in prop::collection::vec(any::<u64>(), 0..100),
        offsets in any::<[u64; 2]>(),
        data in 0usize..64,
    ) {
        let header = serde_json::json!({ name: { "dtype": dtype, "shape": shape, "data_offsets": offsets } }).to_string();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("x.safetensors");
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat();
        std::fs::write(&file, bytes).unwrap();
        if let Err(error) = pstrain::model::load(&file) {
            // The crate's own words; ours are below.
            let _ = error.to_string();
        }
        if let Err(error) = pstrain::model::header(&file) {
            prop_assert!(error.to_string().len() < 4096, "{} bytes", error.to_string().len());
        }
    }
}

#[test]
fn numbers_that_float32_has_not_are_refused_with_the_limit() {
    for key in [
        "optimizer.lr",
        "optimizer.eps",
        "optimizer.weight_decay",
        "data.normalize.mean",
        "data.normalize.std",
    ] {
        for (value, told) in
            [("1e300", "is beyond 1e30, the limit for numbers"), ("1e-300", "is 0 in float32")]
        {
            let setting = format!("{key}={value}");
            let overrides = [job::Override::set(&setting).unwrap()];
            let file = JobText { name: "job.toml", text: JOB };
            let refused =
                job::load(&Sources { file, env: Vec::new(), overrides: &overrides }).unwrap_err().to_string();
            assert!(refused.contains(told), "{setting}: {refused}");
        }
    }
}

#[test]
fn a_sample_of_too_many_dimensions_is_refused_with_the_limit() {
    for dimensions in [16, 17, 100_000] {
        let input = format!("input = [{}1]", "1, ".repeat(dimensions - 1));
        let said = load(&JOB.replace("input = [1, 8, 8]", &input)).unwrap_err();
        assert!(said.contains("expected 15 at most"), "{said}");
        assert!(said.len() < 1000, "{} bytes", said.len());
    }
}
