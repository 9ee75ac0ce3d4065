//! Tensors that lie in pieces, in several files, as if they lay in one: those of a checkpoint.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use super::{Dtype, Header, Stored};

/// What a module starts from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Weights {
    /// A safetensors file, or the folder of a checkpoint. Relative to the current folder.
    pub path: PathBuf,
    /// Where the tensors of a checkpoint are, once it has been opened.
    #[serde(skip)]
    pub scattered: Option<Arc<Scattered>>,
}

impl From<PathBuf> for Weights {
    fn from(path: PathBuf) -> Weights {
        Weights { path, scattered: None }
    }
}

/// Tensors of several files. They have places as in one file, which is nowhere.
#[derive(Debug, PartialEq, Eq)]
pub struct Scattered {
    header: Header,
    /// In the order of their places, without gaps.
    pieces: Vec<Placed>,
    files: Vec<PathBuf>,
    sha256: String,
}

/// Bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which of the files.
    pub file: usize,
    pub start: u64,
    pub len: u64,
}

#[derive(Debug, PartialEq, Eq)]
struct Placed {
    at: u64,
    piece: Piece,
}

impl Scattered {
    /// Without tensors yet. `sha256`: the sum of what tells what is in the files.
    pub fn new(files: Vec<PathBuf>, sha256: String) -> Scattered {
        Scattered { header: Header { tensors: Arc::default() }, pieces: Vec::new(), files, sha256 }
    }

    /// Adds a tensor that these pieces make.
    pub fn add(
        &mut self,
        name: &str,
        dtype: Dtype,
        shape: Vec<i64>,
        pieces: impl IntoIterator<Item = Piece>,
    ) {
        let start = self.end();
        for piece in pieces.into_iter().filter(|piece| piece.len > 0) {
            self.pieces.push(Placed { at: self.end(), piece });
        }
        let stored = Stored { dtype, shape, start, len: self.end() - start };
        Arc::make_mut(&mut self.header.tensors).insert(name.into(), stored);
    }

    fn end(&self) -> u64 {
        self.pieces.last().map_or(0, |last| last.at + last.piece.len)
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// Where the `len` bytes from `at` on are: of each piece, its file, its first byte there, and how many. Fewer than asked for, if
    /// there are not so many.
    pub fn find(&self, at: u64, len: u64) -> impl Iterator<Item = (&Path, u64, u64)> {
        let end = at.saturating_add(len);
        let first = self.pieces.partition_point(|placed| placed.at + placed.piece.len <= at);
        self.pieces[first..].iter().take_while(move |placed| placed.at < end).map(move |placed| {
            let from = at.max(placed.at);
            let to = end.min(placed.at + placed.piece.len);
            (self.files[placed.piece.file].as_path(), placed.piece.start + (from - placed.at), to - from)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scattered() -> Scattered {
        let mut scattered = Scattered::new(vec!["a".into(), "b".into()], String::new());
        let piece = |file, start, len| Piece { file, start, len };
        scattered.add("x", Dtype::float32(), vec![5], [piece(1, 100, 8), piece(0, 40, 12)]);
        scattered.add("none", Dtype::int64(), vec![0], [piece(0, 0, 0)]);
        scattered.add("y", Dtype::int64(), vec![1], [piece(1, 0, 8)]);
        scattered
    }

    fn found(at: u64, len: u64) -> Vec<(String, u64, u64)> {
        let all = scattered();
        all.find(at, len).map(|(file, from, len)| (file.display().to_string(), from, len)).collect()
    }

    #[test]
    fn tensors_follow_each_other_as_in_one_file() {
        let all = scattered();
        let place = |name: &str| all.header().get(name).map(|stored| (stored.start, stored.len));
        assert_eq!([place("x"), place("none"), place("y")], [Some((0, 20)), Some((20, 0)), Some((20, 8))]);
    }

    #[test]
    fn bytes_are_found_over_the_ends_of_pieces() {
        let told = |all: &[(&str, u64, u64)]| -> Vec<(String, u64, u64)> {
            all.iter().map(|&(file, from, len)| (file.into(), from, len)).collect()
        };
        assert_eq!(found(0, 8), told(&[("b", 100, 8)]));
        assert_eq!(found(4, 8), told(&[("b", 104, 4), ("a", 40, 4)]));
        assert_eq!(found(0, 28), told(&[("b", 100, 8), ("a", 40, 12), ("b", 0, 8)]));
        assert_eq!(found(20, 8), told(&[("b", 0, 8)]));
        assert_eq!(found(24, 100), told(&[("b", 4, 4)]));
        assert_eq!(found(28, 1), []);
    }
}
