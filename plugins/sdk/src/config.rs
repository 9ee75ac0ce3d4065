//! The plug-in's part of the job file, as the author's own type.

use crate::Result;
use anyhow::{anyhow, bail};
use serde::de::DeserializeOwned;

/// Reads the JSON object that the host passes. A wrong value is named by its key, and an unknown key is an error
/// even where the author's type would let it pass.
pub fn parse<C: DeserializeOwned>(json: &str) -> Result<C> {
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let mut reader = serde_json::Deserializer::from_str(json);
    let tracked = serde_path_to_error::Deserializer::new(&mut reader, &mut track);
    let mut ignored = |path: serde_ignored::Path<'_>| unknown.push(path.to_string());
    let parsed = C::deserialize(serde_ignored::Deserializer::new(tracked, &mut ignored));
    let config = parsed.map_err(|error| {
        let message = in_words_of_jobs(&error.to_string());
        match track.path().to_string().as_str() {
            "." => anyhow!("{message}"),
            key if message.contains(&format!("`{key}`")) => anyhow!("{message}"),
            key => anyhow!("key `{key}`: {message}"),
        }
    })?;
    if !unknown.is_empty() {
        bail!("unknown key `{}`", unknown.join("`, `"));
    }
    Ok(config)
}

/// In a job, fields are keys. And the JSON is the host's making: its lines and columns tell an author nothing.
fn in_words_of_jobs(message: &str) -> String {
    let message = message.rfind(" at line ").map_or(message, |at| &message[..at]);
    message
        .replace("unknown field", "unknown key")
        .replace("missing field", "missing key")
        .replace("unknown variant", "unknown value")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Strict {
        #[allow(dead_code)]
        file: String,
        #[serde(default)]
        size: Vec<u32>,
    }

    #[derive(Debug, Deserialize)]
    struct Lax {
        #[allow(dead_code)]
        file: String,
    }

    fn error<C: DeserializeOwned + std::fmt::Debug>(json: &str) -> String {
        parse::<C>(json).unwrap_err().to_string()
    }

    #[test]
    fn a_good_config_is_read() {
        assert_eq!(parse::<Strict>(r#"{"file": "a", "size": [2, 3]}"#).unwrap().size, [2, 3]);
    }

    #[test]
    fn a_wrong_value_is_named_by_its_key() {
        assert_eq!(
            error::<Strict>(r#"{"file": "a", "size": [2, "x"]}"#),
            "key `size[1]`: invalid type: string \"x\", expected u32"
        );
        assert_eq!(error::<Strict>(r#"{"size": []}"#), "missing key `file`");
    }

    #[test]
    fn unknown_keys_are_refused_even_if_the_author_forgot_to() {
        assert_eq!(
            error::<Strict>(r#"{"file": "a", "sise": 1}"#),
            "unknown key `sise`, expected `file` or `size`"
        );
        assert_eq!(error::<Lax>(r#"{"file": "a", "sise": 1}"#), "unknown key `sise`");
    }
}
