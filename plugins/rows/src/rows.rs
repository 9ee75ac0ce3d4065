//! Where the rows of files begin, so that any of them can be read: every so many-th is known, which bounds the memory.

use crate::records::{Form, Record, Records};
use pstrain_plugin::{Result, anyhow, ensure};
use std::collections::HashMap;

/// How many beginnings are kept, of all files together.
const MOST_KEPT: usize = 1 << 20;
/// How much is read at once from somewhere in a file: few rows are wanted from there.
const BUFFER: usize = 8 << 10;
/// Files that are open at a time.
const MOST_OPEN: usize = 64;

pub struct Rows {
    form: Form,
    /// One of so many beginnings is kept.
    every: u64,
    most_kept: usize,
    kept: usize,
    files: Vec<FileRows>,
    open: HashMap<usize, Opened>,
    record: Record,
}

struct FileRows {
    name: String,
    /// The number of its first row among those of all files.
    first: u64,
    rows: u64,
    cells: usize,
    /// The positions of each field's columns in it.
    columns: Vec<Vec<usize>>,
    starts: Vec<u64>,
}

struct Opened {
    records: Records,
    /// The row that comes next.
    next: u64,
}

impl Rows {
    pub fn new(form: Form) -> Self {
        Rows::keeping(form, MOST_KEPT)
    }

    fn keeping(form: Form, most_kept: usize) -> Self {
        let (files, open, record) = (Vec::new(), HashMap::new(), Record::default());
        Rows { form, every: 1, most_kept, kept: 0, files, open, record }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.files.last().map_or(0, |file| file.first + file.rows)
    }

    /// What follows are rows of this file.
    pub fn begin(&mut self, name: &str, cells: usize, columns: Vec<Vec<usize>>) {
        let first = self.count();
        self.files.push(FileRows {
            name: name.to_owned(),
            first,
            rows: 0,
            cells,
            columns,
            starts: Vec::new(),
        });
    }

    /// One more row of the last file.
    pub fn add(&mut self, start: u64) {
        // Before the list would grow: what memory a plug-in has had it keeps.
        if self.kept >= self.most_kept {
            self.keep_half();
        }
        let Some(file) = self.files.last_mut() else { return };
        if file.rows.is_multiple_of(self.every) {
            file.starts.push(start);
            self.kept += 1;
        }
        file.rows += 1;
    }

    fn keep_half(&mut self) {
        self.every *= 2;
        for file in &mut self.files {
            let mut at = 0;
            file.starts.retain(|_| {
                at += 1;
                at % 2 == 1
            });
        }
        self.kept = self.files.iter().map(|file| file.starts.len()).sum();
    }

    /// The cells of a row, and where each field's columns are among them.
    ///
    /// # Errors
    /// If the file has changed.
    pub fn read(&mut self, index: u64) -> Result<(&Record, &[Vec<usize>])> {
        let at = self.files.partition_point(|file| file.first + file.rows <= index);
        let file = self.files.get(at).ok_or_else(|| anyhow!("there is no row {index}"))?;
        let row = index - file.first;
        if !self.open.contains_key(&at) {
            if self.open.len() >= MOST_OPEN {
                self.open.clear();
            }
            let records = Records::open(&file.name, self.form, BUFFER)?;
            self.open.insert(at, Opened { records, next: u64::MAX });
        }
        let Some(Opened { records, next }) = self.open.get_mut(&at) else { unreachable!("opened above") };
        if *next > row || row - *next >= self.every {
            records.seek(file.starts[(row / self.every) as usize])?;
            *next = row / self.every * self.every;
        }
        while *next <= row {
            let found = records.next(&mut self.record)?;
            ensure!(found, "`{}` has no row {} any more: it has changed", file.name, *next + 1);
            *next += 1;
        }
        ensure!(
            self.record.cells() == file.cells,
            "`{}`, row {}: it has {} cells, and {} are wanted: the file has changed",
            file.name,
            row + 1,
            self.record.cells(),
            file.cells
        );
        Ok((&self.record, &file.columns))
    }

    /// How an error names a row.
    pub fn call(&self, index: u64) -> String {
        let at = self.files.partition_point(|file| file.first + file.rows <= index);
        let named = |file: &FileRows| format!("`{}`, row {}", file.name, index - file.first + 1);
        self.files.get(at).map_or_else(String::new, named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_row_of_a_file_on_the_disk_is_found_by_a_sparse_index() {
        let folder = tempfile::tempdir().unwrap();
        let name = |n: u64| folder.path().join(format!("{n}.csv")).display().to_string();
        let form = Form { delimiter: b',', quotes: true };
        let mut rows = Rows::keeping(form, 10);
        for n in 0..3 {
            let lines = (0..40 * n + 1).map(|row| format!("{n},\"a\n{row}\"\n\n"));
            std::fs::write(name(n), lines.collect::<String>()).unwrap();
            let mut records = Records::open(&name(n), form, 100).unwrap();
            let mut record = Record::default();
            rows.begin(&name(n), 2, vec![vec![0], vec![1]]);
            while records.next(&mut record).unwrap() {
                rows.add(record.start);
            }
        }
        assert_eq!(rows.count(), 1 + 41 + 81);
        for index in (0..rows.count()).rev().chain(0..rows.count()).chain([60, 3, 61, 62]) {
            let (file, row) = if index == 0 {
                (0, 0)
            } else if index < 42 {
                (1, index - 1)
            } else {
                (2, index - 42)
            };
            let (record, _) = rows.read(index).unwrap();
            assert_eq!(record.cell(0), file.to_string().as_bytes());
            assert_eq!(record.cell(1), format!("a\n{row}").as_bytes());
        }
        std::fs::write(name(2), "2,a\n").unwrap();
        let mut changed = |index| rows.read(index).map(drop).unwrap_err().to_string();
        assert!(changed(100).ends_with("any more: it has changed"), "{}", changed(100));
    }
}
