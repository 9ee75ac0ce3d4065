//! The job that `pstrain init` writes.

/// A commented job, ready to run on the data inside the program and to be changed into one's own.
pub fn starter() -> &'static str {
    include_str!("starter.toml")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobText, Sources, load};

    fn proves(text: &str) {
        let file = JobText { name: "job.toml", text };
        if let Err(errors) = load(&Sources { file, env: Vec::new(), overrides: &[] }) {
            panic!("{errors}");
        }
    }

    #[test]
    fn the_starter_job_proves() {
        proves(starter());
    }

    #[test]
    fn each_key_that_the_starter_job_only_shows_can_be_switched_on() {
        // A line such as `# momentum = 0.0` with or without a comment behind it, or a section.
        let shown = |line: &&str| line.starts_with("# [") || line.starts_with("# ") && line.contains(" = ");
        let lines: Vec<&str> = starter().lines().collect();
        let keys: Vec<&str> = lines.iter().copied().skip(8).filter(shown).collect();
        assert!(keys.len() > 15, "{keys:?}");
        let on = lines.iter().enumerate().map(|(number, line)| match number >= 8 && shown(line) {
            true => line.trim_start_matches("# "),
            false => line,
        });
        let text = on.collect::<Vec<_>>().join("\n").replace("\"async\"", "\"ssp\"");
        proves(&text);
    }
}
