//! The job that `pstrain init` writes.

/// What its first line names: the schema beside it, which `pstrain init` writes, too.
pub const SCHEMA_FILE: &str = "pstrain.schema.json";

/// A commented job, ready to run on the data inside the program and to be changed into one's own.
pub fn starter() -> &'static str {
    include_str!("starter.toml")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobText, Sources, load};

    fn is_sound(text: &str) {
        let file = JobText { name: "job.toml", text };
        if let Err(errors) = load(&Sources { file, env: Vec::new(), overrides: &[] }) {
            panic!("{errors}");
        }
    }

    #[test]
    fn the_starter_job_is_sound() {
        is_sound(starter());
    }

    #[test]
    fn the_starter_job_names_the_schema_beside_it() {
        assert_eq!(starter().lines().next(), Some(format!("#:schema ./{SCHEMA_FILE}").as_str()));
    }

    #[test]
    fn each_key_that_the_starter_job_only_shows_can_be_switched_on() {
        // A line such as `# momentum = 0.0` with or without a comment behind it, or a section.
        let shown = |line: &&str| line.starts_with("# [") || line.starts_with("# ") && line.contains(" = ");
        let lines: Vec<&str> = starter().lines().collect();
        let keys: Vec<&str> = lines.iter().copied().skip(9).filter(shown).collect();
        assert!(keys.len() > 15, "{keys:?}");
        let on = lines.iter().enumerate().map(|(number, line)| match number >= 9 && shown(line) {
            true => line.trim_start_matches("# "),
            false => line,
        });
        let text = on.collect::<Vec<_>>().join("\n").replace("\"async\"", "\"ssp\"");
        is_sound(&text);
    }
}
