//! The demo for a person's eyes.

use std::fmt;

use super::{Demo, Shown};
use crate::job::{Operation, Reduction};

/// The operation's name, with its reduction: `all_reduce, sum`.
pub(super) fn title(operation: Operation, reduction: Option<Reduction>) -> String {
    let name = operation.name();
    match reduction {
        Some(reduction) => format!("{name}, {}", reduction.name()),
        None => name.into(),
    }
}

impl fmt::Display for Demo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, shown) in self.operations.iter().enumerate() {
            if number > 0 {
                f.write_str("\n\n")?;
            }
            shown.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranks = self.ranks.iter().map(|seen| seen.rank.to_string()).collect::<Vec<_>>().join(" ");
        write!(f, "{} (ranks {ranks})", title(self.operation, self.reduction))?;
        let rows: Vec<(String, String)> =
            self.ranks.iter().map(|seen| (tensors(&seen.before), tensors(&seen.after))).collect();
        let width = rows.iter().map(|(before, _)| before.len()).max().unwrap_or(0);
        for (seen, (before, after)) in self.ranks.iter().zip(&rows) {
            write!(f, "\n  rank {:<3}", seen.rank)?;
            match self.operation {
                Operation::Barrier => f.write_str(" came, and left when all had come")?,
                _ => write!(f, " {before:<width$}  ->  {after}")?,
            }
        }
        Ok(())
    }
}

/// `[1] [2]`; nothing of no tensor.
fn tensors(tensors: &[Vec<f64>]) -> String {
    let shown =
        |tensor: &Vec<f64>| format!("[{}]", tensor.iter().map(f64::to_string).collect::<Vec<_>>().join(", "));
    if tensors.is_empty() {
        "nothing".into()
    } else {
        tensors.iter().map(shown).collect::<Vec<_>>().join(" ")
    }
}
