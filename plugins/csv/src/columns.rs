//! Which columns of a file a job means.

use plugin_rows::{Record, Records};
use pstrain_plugin::{Result, anyhow, bail, ensure};
use serde::Deserialize;
use std::collections::HashSet;

/// How a job names a column.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(untagged, expecting = "wanted a column's name or its position from 0")]
pub enum Column {
    Position(usize),
    Name(String),
}

/// The columns that a file has.
pub struct Columns<'a> {
    pub file: &'a str,
    pub header: Option<Vec<String>>,
    pub count: usize,
}

impl<'a> Columns<'a> {
    /// Reads the header, if there is one, and the first row into `record`. `header`: whether the first line is one; if not
    /// told, it should be.
    ///
    /// # Errors
    /// If there is no row, or the header looks like one.
    pub fn read(
        file: &'a str,
        header: Option<bool>,
        records: &mut Records,
        record: &mut Record,
    ) -> Result<Columns<'a>> {
        let names = match header {
            Some(false) => None,
            _ if records.next(record)? => {
                let name = |at| String::from_utf8_lossy(record.cell(at)).into_owned();
                Some((0..record.cells()).map(name).collect())
            }
            _ => Some(Vec::new()),
        };
        ensure!(
            records.next(record)?,
            "`{file}` has no rows{}",
            match &names {
                Some(names) if !names.is_empty() => {
                    "\nhint: its first line was taken for the columns' names; `header = false` says that it is a row"
                }
                _ => "",
            }
        );
        let columns = Columns { file, header: names, count: record.cells() };
        if header.is_none() {
            columns.check_header()?;
        }
        Ok(columns)
    }

    /// A header that nobody asked for and that looks like data is not taken for a header, except that some programs call their
    /// columns 0, 1, 2...
    fn check_header(&self) -> Result<()> {
        let names = self.header.iter().flatten();
        let numbers: Option<Vec<f64>> = names.map(|name| name.parse().ok()).collect();
        let counted = |numbers: &[f64]| numbers.iter().enumerate().all(|(n, number)| n as f64 == *number);
        ensure!(
            numbers.is_none_or(|numbers| counted(&numbers)),
            "the first line of `{}` has only numbers, and the columns' names are looked for there\n\
             hint: set `header = false`, or `header = true` if these are the names",
            self.file
        );
        Ok(())
    }

    /// Positions of the columns that `key` names, each once.
    ///
    /// # Errors
    /// If one is not there, or twice.
    pub fn find(&self, key: &str, wanted: &[Column]) -> Result<Vec<usize>> {
        let found: Vec<usize> = wanted.iter().map(|column| self.find_one(column)).collect::<Result<_>>()?;
        let mut seen = HashSet::new();
        if let Some(&twice) = found.iter().find(|column| !seen.insert(**column)) {
            bail!("{key} names column {} twice\nhint: leave one of them out", self.call(twice));
        }
        Ok(found)
    }

    fn find_one(&self, column: &Column) -> Result<usize> {
        let Columns { file, header, count } = self;
        match column {
            Column::Position(at) if at < count => Ok(*at),
            Column::Position(at) => bail!("`{file}` has no column {at}: it has {count}, counted from 0"),
            Column::Name(column) => {
                let Some(header) = header else {
                    bail!(
                        "`{file}` has no header, so column `{column}` cannot be found by its name\n\
                         hint: give positions, counted from 0, or `header = true`"
                    );
                };
                let mut found = (0..header.len().min(*count)).filter(|&at| header[at] == *column);
                let first = found.next().ok_or_else(|| {
                    let names: Vec<&str> = header.iter().take(20).map(String::as_str).collect();
                    let more = if header.len() > names.len() { "..." } else { "" };
                    let hint = self.other_delimiter().map_or(String::new(), |delimiter| {
                        format!("\nhint: if they are several columns, set `delimiter = {delimiter:?}`")
                    });
                    anyhow!("`{file}` has no column `{column}`; it has `{}`{more}{hint}", names.join("`, `"))
                })?;
                match found.next() {
                    None => Ok(first),
                    Some(second) => bail!(
                        "`{file}` has two columns `{column}`, {first} and {second}, counted from 0\n\
                         hint: give the position of the one that is meant"
                    ),
                }
            }
        }
    }

    /// What may stand between the names of a file that seems to have a single column.
    fn other_delimiter(&self) -> Option<char> {
        let [name] = &self.header.as_ref()?[..] else { return None };
        [';', '\t', '|', ','].into_iter().find(|delimiter| name.contains(*delimiter))
    }

    /// How an error names a column.
    pub fn call(&self, column: usize) -> String {
        match self.header.as_ref().and_then(|header| header.get(column)) {
            Some(name) => format!("`{name}`"),
            None => column.to_string(),
        }
    }
}
