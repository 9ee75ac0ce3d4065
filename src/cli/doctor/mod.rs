//! `pstrain doctor`: what this machine has of what jobs need, what is wrong, and how to mend it; of a run, see [`run`].

mod machine;
pub mod run;
mod torch;

use std::fmt;

use serde::Serialize;

use super::exit::{DONE, FAILED, Failure};
use super::stdout;
use crate::human::counted;

pub use torch::look_inside;

/// What was found of one thing.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub what: &'static str,
    pub state: State,
    pub found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Fine,
    /// Some jobs want it, or run more slowly without.
    Missing,
    /// Jobs fail.
    Wrong,
}

impl Finding {
    fn fine(what: &'static str, found: impl fmt::Display) -> Finding {
        Finding { what, state: State::Fine, found: found.to_string(), hint: None }
    }

    fn missing(what: &'static str, found: impl fmt::Display, hint: impl Into<String>) -> Finding {
        Finding { what, state: State::Missing, found: found.to_string(), hint: Some(hint.into()) }
    }

    fn wrong(what: &'static str, found: impl fmt::Display, hint: impl Into<String>) -> Finding {
        Finding { what, state: State::Wrong, found: found.to_string(), hint: Some(hint.into()) }
    }

    /// A finding from an error's text, whose hint stands in lines of its own.
    fn of_error(what: &'static str, state: State, error: impl fmt::Display) -> Finding {
        let error = error.to_string();
        let (found, hint) = match error.split_once("\n  hint: ") {
            Some((found, hint)) => (found.to_owned(), Some(hint.to_owned())),
            None => (error, None),
        };
        Finding { what, state, found, hint }
    }
}

pub fn doctor(as_json: bool) -> Result<u8, Failure> {
    let mut findings = vec![machine::program()];
    findings.extend(torch::findings());
    findings.extend(machine::findings());
    let wrong = findings.iter().filter(|finding| finding.state == State::Wrong).count();
    stdout::result(&findings, MachineReport { findings: &findings, wrong }, as_json)?;
    Ok(if wrong == 0 { DONE } else { FAILED })
}

struct MachineReport<'a> {
    findings: &'a [Finding],
    wrong: usize,
}

impl fmt::Display for MachineReport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.findings.iter().map(|finding| finding.what.len()).max().unwrap_or(0);
        for Finding { what, state, found, hint } in self.findings {
            let mark = match state {
                State::Fine => "ok",
                State::Missing => "-",
                State::Wrong => "WRONG",
            };
            let margin = " ".repeat(width + 9);
            writeln!(f, "{mark:5}  {what:width$}  {}", found.replace('\n', &format!("\n{margin}")))?;
            if let Some(hint) = hint {
                writeln!(f, "{margin}hint: {}", hint.replace('\n', &format!("\n{margin}")))?;
            }
        }
        match self.wrong {
            0 => write!(f, "jobs run here"),
            wrong => write!(f, "{} to mend before jobs run here", counted(wrong as u64, "thing")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_stand_under_each_other_with_what_to_do() {
        let findings = [
            Finding::fine("libtorch", "2.11.0 in /opt/torch/lib"),
            Finding::missing("MPI", "not built", "`make mpi` builds it"),
            Finding::of_error("cache", State::Wrong, "not yours\n  hint: chmod it"),
        ];
        insta::assert_snapshot!(MachineReport { findings: &findings, wrong: 1 }, @r"
        ok     libtorch  2.11.0 in /opt/torch/lib
        -      MPI       not built
                         hint: `make mpi` builds it
        WRONG  cache     not yours
                         hint: chmod it
        1 thing to mend before jobs run here
        ");
    }
}
