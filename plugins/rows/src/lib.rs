//! Rows of text files of any size, for the plug-ins that read tables: one after the other ([`Records`]), or any of them
//! ([`Rows`]).

mod records;
mod rows;

pub use records::{Form, Record, Records};
pub use rows::Rows;

/// Whether the rows of some files stay in memory. Memory that a plug-in has had it keeps, so this is foretold from the first
/// rows, and not found out when there is no room left.
pub struct Room {
    /// Bytes of all files.
    length: u64,
    limit: u64,
}

impl Room {
    /// For the rows of these files, `limit` bytes of them.
    pub fn new(files: &[String], limit: u64) -> Self {
        let size = |file: &String| std::fs::metadata(file).map_or(0, |meta| meta.len());
        Room { length: files.iter().map(size).sum(), limit }
    }

    /// What all rows will take if those of the first `read` bytes of the files take `taken` bytes; None if it is too much.
    pub fn foretell(&self, taken: u64, read: u64) -> Option<u64> {
        let all = u128::from(taken) * u128::from(self.length) / u128::from(read.max(1));
        u64::try_from(all).ok().map(|all| all.max(taken)).filter(|&all| all <= self.limit)
    }
}

/// Errors show the start of a long cell.
pub fn cut(cell: &str) -> String {
    const SHOWN: usize = 40;
    match cell.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &cell[..end]),
        None => cell.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_rows_take_is_foretold_from_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["a", "b"].map(|name| folder.path().join(name).display().to_string());
        names.iter().for_each(|name| std::fs::write(name, vec![b'x'; 500]).unwrap());
        let room = Room::new(&names, 4000);
        assert_eq!(room.foretell(40, 10), Some(4000));
        assert_eq!(room.foretell(41, 10), None);
        // More than the files have.
        assert_eq!(room.foretell(3000, 2000), Some(3000));
    }
}
