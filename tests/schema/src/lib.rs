//! The jobs of this repository against the schema that `pstrain schema` prints, by a JSON Schema validator that is not ours.
//!
//! A workspace of its own: with the validator's dependencies in the workspace of pstrain, cargo would build half of what the
//! program needs a second time for tests.

#![cfg(test)]

use std::path::{Path, PathBuf};

use jsonschema::Validator;
use serde_json::Value as Json;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).expect(path)
}

/// As `pstrain schema` prints it; a test of the program says when it is stale.
fn schema() -> Json {
    serde_json::from_str(&read("docs/job.schema.json")).expect("JSON")
}

fn jobs() -> Vec<(String, String)> {
    let files =
        std::fs::read_dir(root().join("jobs")).expect("jobs").map(|entry| entry.expect("an entry").path());
    let jobs = files.filter(|path| path.extension().is_some_and(|extension| extension == "toml"));
    jobs.map(|path| (path.display().to_string(), std::fs::read_to_string(&path).expect("text"))).collect()
}

/// The blocks of TOML in README: one whole job but for its name, and parts of others.
fn blocks_of_readme() -> Vec<String> {
    let readme = read("README.md");
    let blocks = readme.split("```toml\n").skip(1);
    blocks.map(|rest| rest.split("```").next().expect("a first").to_owned()).collect()
}

fn validator() -> Validator {
    jsonschema::draft202012::new(&schema()).expect("a schema of draft 2020-12")
}

/// The schema of a part of a job.
fn validator_of_parts() -> Validator {
    let mut schema = schema();
    let root = schema.as_object_mut().expect("an object");
    root.remove("anyOf");
    root.remove("required");
    jsonschema::draft202012::new(&schema).expect("a schema")
}

/// What the validator says of a job; nothing of one that it accepts.
fn said(validator: &Validator, job: &str) -> Vec<String> {
    let job: Json = toml::from_str(job).expect("TOML");
    validator.iter_errors(&job).map(|error| format!("{}: {error}", error.instance_path())).collect()
}

#[test]
fn a_validator_that_is_not_ours_accepts_every_job() {
    let validator = validator();
    let jobs = jobs();
    assert!(jobs.len() >= 10, "{} jobs", jobs.len());
    for (name, job) in jobs.iter().chain([&("starter".to_owned(), read("src/job/starter.toml"))]) {
        assert_eq!(said(&validator, job), Vec::<String>::new(), "{name}");
    }
    let blocks = blocks_of_readme();
    assert!(blocks.len() >= 3, "{blocks:?}");
    assert_eq!(said(&validator, &blocks[0]), Vec::<String>::new());
    for block in &blocks {
        assert_eq!(said(&validator_of_parts(), block), Vec::<String>::new(), "{block}");
    }
}

#[test]
fn the_validator_refuses_what_is_misspelt_or_out_of_range() {
    let validator = validator();
    let job = read("jobs/mnist_ps.toml");
    for (from, to) in [
        ("epochs = ", "epoch = "),
        ("[train]", "[training]"),
        ("in_channels = 1,", "in_channel = 1,"),
        ("type = \"conv2d\"", "type = \"conv4d\""),
        ("\"relu\"", "\"rely\""),
        ("lr = 0.03", "lr = 0.0"),
        ("lr = 0.03", "lr = 0.03\nmomentem = 0.9"),
        ("batch_size = 32", "batch_size = 0"),
        ("consistency = \"async\"", "consistency = \"asinc\""),
        ("images = \"train", "image = \"train"),
        ("plugin = \"nll\"", "plugin = \"nll\"\nparams = { reduction = \"none\" }"),
        ("[loss]\nplugin = \"nll\"", ""),
        ("[cluster]", "[cluster]\nrank = 1"),
    ] {
        assert!(job.contains(from), "{from}");
        assert_ne!(said(&validator, &job.replacen(from, to, 1)), Vec::<String>::new(), "{from} to {to}");
    }
}

#[test]
fn each_default_is_one_that_its_schema_allows() {
    let whole = schema();
    for (section, schema) in whole["properties"].as_object().expect("sections") {
        for (key, schema) in schema["properties"].as_object().into_iter().flatten() {
            if let Some(default) = schema.get("default") {
                let mut schema = schema.clone();
                schema["$defs"] = whole["$defs"].clone();
                let validator = jsonschema::draft202012::new(&schema).expect("a schema");
                assert!(validator.is_valid(default), "{section}.{key}: {default}");
            }
        }
    }
}
