//! What is wrong with a job, said so that it can be put right: the key, the value, the limit, where the
//! value came from, and a hint.

use std::fmt;

use crate::human::counted;

/// Everything that is wrong with one job.
///
/// Displays as what a user sees, each error with its `error: ` in front; print it as it is.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub struct JobErrors {
    /// The job as the user named it, usually a path.
    pub job: String,
    /// Never empty.
    pub errors: Vec<JobError>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct JobError {
    /// What failed: the key with its value, and the limit it breaks.
    pub message: String,
    /// None: nobody wrote it, as with a missing key.
    pub origin: Option<Origin>,
    pub hint: Option<String>,
}

/// Where a value came from; later ones win.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    /// Line counted from 1.
    File {
        name: String,
        line: Option<usize>,
    },
    Environment {
        variable: String,
    },
    /// A command-line option as it was typed, such as `--set train.epochs=0`.
    Option {
        typed: String,
    },
}

impl Origin {
    /// A number by which sources are compared: the higher one wins.
    pub fn precedence(&self) -> u8 {
        match self {
            Origin::Default => 0,
            Origin::File { .. } => 1,
            Origin::Environment { .. } => 2,
            Origin::Option { .. } => 3,
        }
    }
}

impl JobErrors {
    /// Sorted as the file is read from top to bottom; what is not from its lines comes after.
    pub fn new(job: &str, mut errors: Vec<JobError>) -> JobErrors {
        errors.sort_by_key(|error| match error.origin {
            Some(Origin::File { line: Some(line), .. }) => line,
            _ => usize::MAX,
        });
        JobErrors { job: job.into(), errors }
    }
}

impl JobError {
    pub fn new(message: impl Into<String>) -> JobError {
        JobError { message: message.into(), origin: None, hint: None }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> JobError {
        self.hint = Some(hint.into());
        self
    }

    pub fn from(mut self, origin: Origin) -> JobError {
        self.origin = Some(origin);
        self
    }
}

/// How many errors of one job are told: nobody reads more at once.
const MOST_TOLD: usize = 100;

impl fmt::Display for JobErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, error) in self.errors.iter().take(MOST_TOLD).enumerate() {
            if number > 0 {
                writeln!(f)?;
            }
            write!(f, "error: job `{}`: {error}", self.job)?;
        }
        if let more @ 1.. = self.errors.len().saturating_sub(MOST_TOLD) {
            write!(f, "\n... and {}", counted(more as u64, "more error"))?;
        }
        Ok(())
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        // A default is nobody's mistake; to name it as a source would only puzzle.
        if let Some(origin) = self.origin.as_ref().filter(|origin| **origin != Origin::Default) {
            write!(f, "\n  from: {origin}")?;
        }
        match &self.hint {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("the defaults"),
            Origin::File { name, line: Some(line) } => write!(f, "{name}, line {line}"),
            Origin::File { name, line: None } => f.write_str(name),
            Origin::Environment { variable } => write!(f, "environment variable {variable}"),
            Origin::Option { typed } => write!(f, "option {typed}"),
        }
    }
}

/// The known name that `written` is most likely a slip of.
pub fn did_you_mean<'a>(written: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> Option<&'a str> {
    // A third of the letters may be wrong: `batchsize` and `momentem` are slips, `foo` for `lr` is not.
    let slips = (written.chars().count() / 3).max(1);
    known
        .clone()
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&written.to_lowercase(), name), name))
        .filter(|(distance, name)| *distance <= slips && *distance < name.len())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
        .or_else(|| {
            known.into_iter().find(|name| written.len().min(name.len()) >= 3 && begins_alike(written, name))
        })
}

fn begins_alike(a: &str, b: &str) -> bool {
    a.starts_with(b) || b.starts_with(a)
}

/// "did you mean `x`?" where a slip is likely, else the list of what there is.
pub fn suggest<'a>(written: &str, what: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> String {
    match did_you_mean(written, known.clone()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("{what}: {}", known.into_iter().collect::<Vec<_>>().join(", ")),
    }
}

/// "a, b or c".
pub fn one_of<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    match names.as_slice() {
        [] => "none".into(),
        [one] => (*one).into(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_key_and_another_word_does_not() {
        let known = ["batch_size", "epochs", "lr"];
        assert_eq!(did_you_mean("batchsize", known), Some("batch_size"));
        assert_eq!(did_you_mean("epoch", known), Some("epochs"));
        assert_eq!(did_you_mean("Epochs", known), Some("epochs"));
        assert_eq!(did_you_mean("foo", known), None);
        assert_eq!(did_you_mean("l", known), Some("lr"));
    }

    #[test]
    fn the_defaults_are_not_named_as_a_source() {
        let error = JobError::new("`a` = 1 is odd").from(Origin::Default).hint("use 2");
        let errors = JobErrors { job: "x.toml".into(), errors: vec![error] };
        assert_eq!(errors.to_string(), "error: job `x.toml`: `a` = 1 is odd\n  hint: use 2");
    }
}
