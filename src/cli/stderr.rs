//! What is told beside the results.

use std::fmt::Display;

use crate::human::printable;

/// A line, or several. What others named so that a terminal would obey it, as in a checkpoint from elsewhere, is escaped.
pub fn line(text: impl Display) {
    eprintln!("{}", printable(&text.to_string()));
}
