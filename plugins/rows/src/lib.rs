//! Rows of text files of any size, for the plug-ins that read tables: one after the other ([`Records`]), or any of them
//! ([`Rows`]).

mod records;
mod rows;

pub use records::{Form, Record, Records};
pub use rows::Rows;

/// Errors show the start of a long cell.
pub fn cut(cell: &str) -> String {
    const SHOWN: usize = 40;
    match cell.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &cell[..end]),
        None => cell.to_owned(),
    }
}
