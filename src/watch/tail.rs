//! The lines of a file that others append to.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _};
use std::path::PathBuf;

use crate::files;

/// Bytes of a line; a longer one is left out.
const MOST_OF_LINE: usize = 1 << 20;

/// Bytes that are read at a time.
const PIECE: usize = 1 << 18;

#[derive(Default)]
pub struct Tail {
    path: PathBuf,
    file: Option<File>,
    /// The beginning of a line whose end is not there yet.
    begun: Vec<u8>,
    /// The line that has begun is too long.
    too_long: bool,
}

impl Tail {
    pub fn new(path: PathBuf) -> Tail {
        Tail { path, file: None, begun: Vec::new(), too_long: false }
    }

    /// Gives each line that has become whole since the last call, without its end. A file that is not there yet has none.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read_on(&mut self, mut line: impl FnMut(&[u8])) -> io::Result<()> {
        if self.file.is_none() {
            self.file = match files::open_regular(&self.path) {
                Ok(file) => Some(file),
                Err(missing) if missing.kind() == ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
            };
        }
        let mut piece = vec![0; PIECE];
        while let Some(file) = &mut self.file {
            let read = file.read(&mut piece)?;
            if read == 0 {
                break;
            }
            self.split(&piece[..read], &mut line);
        }
        Ok(())
    }

    fn split(&mut self, mut rest: &[u8], line: &mut impl FnMut(&[u8])) {
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            self.begin(&rest[..end]);
            if !std::mem::take(&mut self.too_long) {
                line(&self.begun);
            }
            self.begun.clear();
            rest = &rest[end + 1..];
        }
        self.begin(rest);
    }

    fn begin(&mut self, part: &[u8]) {
        match self.begun.len() + part.len() > MOST_OF_LINE {
            true => self.too_long = true,
            false => self.begun.extend_from_slice(part),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn lines(tail: &mut Tail) -> Vec<String> {
        let mut all = Vec::new();
        tail.read_on(|line| all.push(String::from_utf8(line.to_vec()).unwrap())).unwrap();
        all
    }

    #[test]
    fn a_line_is_given_once_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let mut tail = Tail::new(path.clone());
        assert!(lines(&mut tail).is_empty());
        let mut file = File::create(&path).unwrap();
        file.write_all(b"one\ntw").unwrap();
        assert_eq!(lines(&mut tail), ["one"]);
        file.write_all(b"o\n\nthree\n").unwrap();
        assert_eq!(lines(&mut tail), ["two", "", "three"]);
        assert!(lines(&mut tail).is_empty());
    }

    #[test]
    fn a_line_that_is_too_long_is_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines");
        let mut file = File::create(&path).unwrap();
        file.write_all(&vec![b'x'; MOST_OF_LINE + 1]).unwrap();
        file.write_all(b"\nnext\n").unwrap();
        assert_eq!(lines(&mut Tail::new(path)), ["next"]);
    }
}
