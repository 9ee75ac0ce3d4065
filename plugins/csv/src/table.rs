//! The file into two dense tables: features and target.

use pstrain_plugin::{Batch, DType, Error, Result, anyhow, bail, ensure};
use serde::Deserialize;
use std::collections::HashSet;
use std::fmt;
use std::io::{BufReader, Read, Seek, SeekFrom};

/// How the file is to be read.
pub struct Layout {
    /// Whether the first line has the columns' names; if not told, it should have.
    pub header: Option<bool>,
    pub delimiter: u8,
    /// All but the target's if `None`.
    pub features: Option<Vec<Column>>,
    pub feature_dtype: Number,
    pub target: Option<Target>,
}

pub struct Target {
    pub columns: Vec<Column>,
    pub dtype: Number,
    /// If given, cells are these texts, and their positions the numbers.
    pub classes: Option<Vec<String>>,
}

/// How a job names a column.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(untagged, expecting = "wanted a column's name or its position from 0")]
pub enum Column {
    Position(usize),
    Name(String),
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Number {
    #[default]
    Float32,
    Int64,
}

/// All rows of some columns, row by row.
#[derive(Debug, PartialEq)]
pub enum Values {
    Float32(Vec<f32>),
    Int64(Vec<i64>),
}

pub struct Table {
    pub rows: u64,
    /// Of `features`.
    pub columns: usize,
    pub features: Values,
    pub target: Option<Values>,
}

impl Values {
    pub fn dtype(&self) -> DType {
        match self {
            Values::Float32(_) => DType::Float32,
            Values::Int64(_) => DType::Int64,
        }
    }

    /// # Errors
    /// As [`Batch::gather`].
    pub fn give(&self, batch: &mut Batch, field: usize) -> Result<()> {
        match self {
            Values::Float32(values) => batch.gather(field, values),
            Values::Int64(values) => batch.gather(field, values),
        }
    }

    fn new(number: Number) -> Self {
        match number {
            Number::Float32 => Values::Float32(Vec::new()),
            Number::Int64 => Values::Int64(Vec::new()),
        }
    }

    /// What is wrong with the cell, if it is not such a number.
    fn push(&mut self, cell: &str) -> Result<(), String> {
        match self {
            _ if cell.is_empty() => Err("the cell is empty".into()),
            Values::Float32(values) => match cell.parse::<f32>() {
                Ok(value) if value.is_finite() => {
                    values.push(value);
                    Ok(())
                }
                Ok(_) => Err(format!("`{}` is not a finite number", cut(cell))),
                Err(_) => Err(format!("`{}` is not a number", cut(cell))),
            },
            Values::Int64(values) => match cell.parse() {
                Ok(value) => {
                    values.push(value);
                    Ok(())
                }
                Err(_) => Err(format!("`{}` is not a whole number", cut(cell))),
            },
        }
    }

    fn push_class(&mut self, cell: &str, classes: &[String]) -> Result<(), String> {
        match (self, classes.iter().position(|class| class == cell)) {
            (Values::Int64(values), Some(class)) => {
                values.push(class as i64);
                Ok(())
            }
            (_, _) => Err(format!("`{}` is not one of the classes `{}`", cut(cell), classes.join("`, `"))),
        }
    }
}

/// Reads a whole file; `name` is for errors.
///
/// # Errors
/// Names the line and the column of what is wrong.
pub fn read(name: &str, file: impl Read + Seek, layout: &Layout) -> Result<Table> {
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(layout.header != Some(false))
        .delimiter(layout.delimiter)
        .trim(csv::Trim::All)
        .from_reader(file);
    match parse(name, &mut reader, layout) {
        Ok(table) => Ok(table),
        Err(Bad::File(error)) => Err(error),
        Err(Bad::Line { from, place, what }) => {
            let line = first_line(reader.into_inner(), &from);
            Err(anyhow!("`{name}`, line {line}{place}: {what}"))
        }
    }
}

/// What is wrong.
enum Bad {
    File(Error),
    /// `from` is where the reader began to look for the line, `place` the column's name after a comma.
    Line {
        from: csv::Position,
        place: String,
        what: String,
    },
}

impl From<Error> for Bad {
    fn from(error: Error) -> Self {
        Bad::File(error)
    }
}

fn parse(name: &str, reader: &mut csv::Reader<impl Read>, layout: &Layout) -> Result<Table, Bad> {
    let broken = |error: csv::Error| explain(name, &error);
    let header = match layout.header {
        Some(false) => None,
        _ => Some(reader.headers().map_err(broken)?.clone()),
    };
    let mut record = csv::StringRecord::new();
    if !reader.read_record(&mut record).map_err(broken)? {
        return Err(anyhow!("`{name}` has no rows").into());
    }
    let columns = Columns { name, header: header.as_ref(), count: record.len() };
    if layout.header.is_none() {
        columns.check_header()?;
    }
    let targets = columns.find(layout.target.as_ref().map_or(&[], |target| &target.columns))?;
    let features = match &layout.features {
        Some(features) => columns.find(features)?,
        None => (0..columns.count).filter(|column| !targets.contains(column)).collect(),
    };
    if features.is_empty() {
        return Err(anyhow!("`{name}` has no columns for `features`").into());
    }
    columns.check_apart(&features, &targets)?;
    let mut table = Table {
        rows: 0,
        columns: features.len(),
        features: Values::new(layout.feature_dtype),
        target: layout.target.as_ref().map(|target| Values::new(target.dtype)),
    };
    let classes = layout.target.as_ref().and_then(|target| target.classes.as_deref());
    loop {
        table.add(&record, &features, &targets, classes).map_err(|(column, what)| Bad::Line {
            from: record.position().cloned().unwrap_or_else(csv::Position::new),
            place: format!(", column {}", columns.call(column)),
            what,
        })?;
        if !reader.read_record(&mut record).map_err(broken)? {
            return Ok(table);
        }
    }
}

/// The line on which the record at `from` begins: the reader's position lies before the empty lines that it skips.
fn first_line(mut file: impl Read + Seek, from: &csv::Position) -> u64 {
    let at_start = file.seek(SeekFrom::Start(from.byte())).is_ok();
    let bytes = BufReader::new(file).bytes().map_while(Result::ok).take_while(|_| at_start);
    from.line()
        + bytes.take_while(|byte| matches!(byte, b'\r' | b'\n')).filter(|byte| *byte == b'\n').count() as u64
}

impl Table {
    /// Adds a row, or tells which column is wrong, and why.
    fn add(
        &mut self,
        record: &csv::StringRecord,
        features: &[usize],
        targets: &[usize],
        classes: Option<&[String]>,
    ) -> Result<(), (usize, String)> {
        for &column in features {
            self.features.push(&record[column]).map_err(|what| (column, what))?;
        }
        if let Some(values) = &mut self.target {
            for &column in targets {
                let pushed = match classes {
                    Some(classes) => values.push_class(&record[column], classes),
                    None => values.push(&record[column]),
                };
                pushed.map_err(|what| (column, what))?;
            }
        }
        self.rows += 1;
        Ok(())
    }
}

/// The columns that a file has.
struct Columns<'a> {
    name: &'a str,
    header: Option<&'a csv::StringRecord>,
    count: usize,
}

impl Columns<'_> {
    /// A header that nobody asked for and that looks like data is not taken for a header, except that some programs call their
    /// columns 0, 1, 2...
    fn check_header(&self) -> Result<()> {
        let names = self.header.into_iter().flatten();
        let numbers: Option<Vec<f64>> = names.map(|name| name.parse().ok()).collect();
        let counted = |numbers: &[f64]| numbers.iter().enumerate().all(|(n, number)| n as f64 == *number);
        ensure!(
            numbers.is_none_or(|numbers| counted(&numbers)),
            "the first line of `{}` has only numbers, and the columns' names are looked for there\n\
             hint: set `header = false`, or `header = true` if these are the names",
            self.name
        );
        Ok(())
    }

    /// Positions of the columns that the job names.
    fn find(&self, wanted: &[Column]) -> Result<Vec<usize>> {
        wanted.iter().map(|column| self.find_one(column)).collect()
    }

    fn find_one(&self, column: &Column) -> Result<usize> {
        let Columns { name, header, count } = self;
        match column {
            Column::Position(at) if at < count => Ok(*at),
            Column::Position(at) => bail!("`{name}` has no column {at}: it has {count}, counted from 0"),
            Column::Name(column) => {
                let Some(header) = header else {
                    bail!(
                        "`{name}` has no header, so column `{column}` cannot be found by its name\n\
                         hint: give positions, counted from 0, or `header = true`"
                    );
                };
                let mut found = (0..header.len()).filter(|&at| &header[at] == column);
                let first = found.next().ok_or_else(|| {
                    let names: Vec<&str> = header.iter().take(20).collect();
                    let more = if header.len() > names.len() { "..." } else { "" };
                    anyhow!("`{name}` has no column `{column}`; it has `{}`{more}", names.join("`, `"))
                })?;
                match found.next() {
                    None => Ok(first),
                    Some(second) => bail!(
                        "`{name}` has two columns `{column}`, {first} and {second}, counted from 0\n\
                         hint: give the position of the one that is meant"
                    ),
                }
            }
        }
    }

    /// What a model is to predict it must not see, and no column counts twice.
    fn check_apart(&self, features: &[usize], targets: &[usize]) -> Result<()> {
        for (key, columns) in [("features", features), ("target", targets)] {
            let mut seen = HashSet::new();
            if let Some(&twice) = columns.iter().find(|column| !seen.insert(*column)) {
                bail!("`{key}` names column {} twice", self.call(twice));
            }
        }
        let seen: HashSet<usize> = features.iter().copied().collect();
        if let Some(&both) = targets.iter().find(|column| seen.contains(column)) {
            bail!(
                "column {} is one of `features` and of `target`: the model would see what it is to predict\n\
                 hint: leave it out of `features`; a model that gives back its input takes data.target = \"features\"",
                self.call(both)
            );
        }
        Ok(())
    }

    /// How an error names a column.
    fn call(&self, column: usize) -> impl fmt::Display {
        match self.header.and_then(|header| header.get(column)) {
            Some(name) => format!("`{name}`"),
            None => column.to_string(),
        }
    }
}

fn explain(name: &str, error: &csv::Error) -> Bad {
    let what = match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("it has {len} cells, and {expected_len} are wanted")
        }
        csv::ErrorKind::Utf8 { .. } => "it is not UTF-8 text".to_owned(),
        _ => error.to_string(),
    };
    match error.position() {
        Some(position) => Bad::Line { from: position.clone(), place: String::new(), what },
        None => Bad::File(anyhow!("cannot read `{name}`: {what}")),
    }
}

/// Errors show the start of a long cell.
fn cut(cell: &str) -> String {
    const SHOWN: usize = 40;
    match cell.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &cell[..end]),
        None => cell.to_owned(),
    }
}
