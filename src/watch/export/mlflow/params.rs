//! The keys of a job as MLflow's params: flat, and within its bounds (mlflow/utils/validation.py).

use anyhow::{Context as _, Result};
use toml::Value;

use crate::watch::view::flat;

/// Bytes of a param's or a metric's key, and of a value.
const LONGEST_KEY: usize = 250;
const LONGEST_VALUE: usize = 6000;

/// Params of a run.
const MOST: usize = 1000;

/// All keys of a job with their values. A list is one value.
///
/// # Errors
/// The text is no TOML.
pub fn of_job(text: &str) -> Result<Vec<(String, String)>> {
    let table: toml::Table = text.parse().context("the job of the run is no TOML")?;
    let param = |(path, value): (String, &Value)| match value {
        Value::String(text) => (key(&path), cut(text)),
        value => (key(&path), cut(&value.to_string())),
    };
    Ok(flat(&table).into_iter().map(param).take(MOST).collect())
}

/// A name as MLflow takes it.
pub fn key(name: &str) -> String {
    let taken = |c: char| if c.is_ascii_alphanumeric() || "_-./ ".contains(c) { c } else { '_' };
    name.chars().map(taken).take(LONGEST_KEY).collect()
}

/// A value as MLflow takes it.
pub fn cut(text: &str) -> String {
    let mut end = text.len().min(LONGEST_VALUE);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_of_a_job_is_a_param() {
        let job = "name = \"a\"\nseed = 3\n[modules.net]\nplace = \"ps\"\nlayers = [{ linear = [4, 2] }, \"relu\"]\n[optimizer]\nlr = 0.5\n";
        let expected = [
            ("name", "a"),
            ("seed", "3"),
            ("modules.net.place", "ps"),
            ("modules.net.layers", "[{ linear = [4, 2] }, \"relu\"]"),
            ("optimizer.lr", "0.5"),
        ];
        assert_eq!(of_job(job).unwrap(), expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }

    #[test]
    fn what_mlflow_does_not_take_is_cut_or_replaced() {
        assert_eq!(key("eval/hits@10 é"), "eval/hits_10 _");
        assert_eq!(key(&"k".repeat(300)).len(), LONGEST_KEY);
        let long = format!("a{}", "é".repeat(4000));
        assert_eq!(cut(&long).len(), LONGEST_VALUE - 1);
    }
}
