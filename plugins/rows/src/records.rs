//! Rows of a CSV file one after the other, from any of them on: RFC 4180 with any ends of lines, and in bounded memory.

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
use pstrain_plugin::{Context, Result, anyhow, data};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};

/// A row has at most so many bytes: a quote that is not closed does not take the memory.
const LONGEST: usize = 1 << 20;

/// How cells stand in a file.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    pub delimiter: u8,
    /// Whether a cell may stand between double quotes, with delimiters, ends of lines and doubled quotes in it.
    pub quotes: bool,
}

pub struct Records {
    name: String,
    file: File,
    core: Reader,
    buffer: Vec<u8>,
    /// Where in the buffer the bytes begin that are still to be read; they end at `filled`.
    taken: usize,
    filled: usize,
    /// Where in the file the first of these is.
    offset: u64,
}

/// The cells of one row.
#[derive(Default)]
pub struct Record {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    cells: usize,
    /// Where in the file the reader began to look for it: before any empty lines.
    pub start: u64,
    /// The line there, from 1.
    line: u64,
}

impl Record {
    /// How many cells it has.
    pub fn cells(&self) -> usize {
        self.cells
    }

    /// Without the spaces around it.
    pub fn cell(&self, at: usize) -> &[u8] {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.bytes[start..self.ends[at]].trim_ascii()
    }
}

impl Records {
    /// `buffer`: how much is read at once.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn open(name: &str, form: Form, buffer: usize) -> Result<Self> {
        Ok(Records {
            name: name.to_owned(),
            file: data::open(name)?,
            core: ReaderBuilder::new().delimiter(form.delimiter).quoting(form.quotes).build(),
            buffer: vec![0; buffer],
            taken: 0,
            filled: 0,
            offset: 0,
        })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes of the file that were read by now.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Goes on with the row at `start`.
    ///
    /// # Errors
    /// If the file cannot be read any more.
    pub fn seek(&mut self, start: u64) -> Result<()> {
        self.file.seek(SeekFrom::Start(start)).with_context(|| format!("cannot read `{}`", self.name))?;
        self.core.reset();
        (self.taken, self.filled, self.offset) = (0, 0, start);
        Ok(())
    }

    /// Reads the next row; false at the end.
    ///
    /// # Errors
    /// If the file cannot be read, or the row is too long.
    pub fn next(&mut self, record: &mut Record) -> Result<bool> {
        (record.start, record.line) = (self.offset, self.core.line());
        let (mut bytes, mut cells) = (0, 0);
        loop {
            if self.taken == self.filled {
                let filled = self.file.read(&mut self.buffer);
                self.filled = filled.with_context(|| format!("cannot read `{}`", self.name))?;
                self.taken = 0;
            }
            // An empty slice says that the file ends here.
            let input = &self.buffer[self.taken..self.filled];
            let (result, read, wrote, ended) =
                self.core.read_record(input, &mut record.bytes[bytes..], &mut record.ends[cells..]);
            self.taken += read;
            self.offset += read as u64;
            (bytes, cells) = (bytes + wrote, cells + ended);
            match result {
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull if bytes < LONGEST => {
                    record.bytes.resize((2 * bytes).clamp(1024, LONGEST), 0);
                }
                ReadRecordResult::OutputEndsFull if cells < LONGEST => {
                    record.ends.resize((2 * cells).clamp(64, LONGEST), 0);
                }
                ReadRecordResult::OutputFull | ReadRecordResult::OutputEndsFull => {
                    let line = self.line(record);
                    return Err(anyhow!(
                        "`{}`, line {line}: the row that begins there has more than {LONGEST} bytes\n\
                         hint: is it text, and is every quote closed?",
                        self.name
                    ));
                }
                ReadRecordResult::Record => {
                    record.cells = cells;
                    return Ok(true);
                }
                ReadRecordResult::End => return Ok(false),
            }
        }
    }

    /// The line on which a record begins that was read from the file's start on: the reader skips empty lines before it.
    pub fn line(&self, record: &Record) -> u64 {
        let skipped = data::open(&self.name).and_then(|mut file| {
            file.seek(SeekFrom::Start(record.start))?;
            let bytes = BufReader::new(file).bytes().map_while(Result::ok);
            Ok(bytes.take_while(|byte| matches!(byte, b'\r' | b'\n')).filter(|byte| *byte == b'\n').count())
        });
        record.line + skipped.unwrap_or(0) as u64
    }
}
