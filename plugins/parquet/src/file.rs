//! Columns of numbers of a Parquet file, a row group at a time.

use bytes::Bytes;
use parquet::basic::Type;
use parquet::column::reader::{ColumnReader, get_typed_column_reader};
use parquet::data_type::{BoolType, DataType, DoubleType, FloatType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{ChunkReader, FileReader, Length, SerializedFileReader};
use pstrain_plugin::{Context, Error, Result, anyhow, bail, data, ensure};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};

/// More is an accident, such as a size read from the wrong place of a file.
const MOST_ROWS: u64 = 1 << 40;
/// How much is read at once.
const BUFFER: usize = 64 << 10;

/// A file that is opened anew for every place that is read: handles cannot be doubled in a plug-in.
struct Source {
    path: String,
    length: u64,
}

impl Length for Source {
    fn len(&self) -> u64 {
        self.length
    }
}

impl Source {
    fn open_at(&self, start: u64) -> parquet::errors::Result<File> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(start))?;
        Ok(file)
    }
}

impl ChunkReader for Source {
    type T = BufReader<File>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(BufReader::with_capacity(BUFFER, self.open_at(start)?))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let rest = self.length.saturating_sub(start);
        if length as u64 > rest {
            return Err(ParquetError::EOF(format!("{length} bytes from byte {start} on, and it has {rest}")));
        }
        let mut bytes = vec![0; length];
        self.open_at(start)?.read_exact(&mut bytes)?;
        Ok(bytes.into())
    }
}

/// One file.
pub struct ParquetFile {
    name: String,
    reader: SerializedFileReader<Source>,
    /// Rows of each row group.
    groups: Vec<u64>,
}

/// A column of a file: where it is, and whether its values are whole numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Column {
    at: usize,
    pub whole: bool,
}

impl ParquetFile {
    /// # Errors
    /// If it is missing or no Parquet file.
    pub fn open(name: &str) -> Result<Self> {
        let length = data::open(name)?.metadata().with_context(|| format!("cannot read `{name}`"))?.len();
        let source = Source { path: name.to_owned(), length };
        let reader = SerializedFileReader::new(source).map_err(|error| broken(name, error))?;
        let rows = reader.metadata().row_groups().iter().map(|group| u64::try_from(group.num_rows()).ok());
        let groups: Option<Vec<u64>> = rows.map(|rows| rows.filter(|&rows| rows <= MOST_ROWS)).collect();
        let groups =
            groups.with_context(|| format!("`{name}` is broken: a row group has a wrong number of rows"))?;
        // The crate panics at a column that begins before the file does.
        for column in reader.metadata().row_groups().iter().flat_map(RowGroupMetaData::columns) {
            let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
            ensure!(
                start >= 0 && column.data_page_offset() >= 0 && column.compressed_size() >= 0,
                "`{name}` is broken: column `{}` lies at byte {start} and takes {} bytes",
                column.column_path().string(),
                column.compressed_size()
            );
        }
        Ok(ParquetFile { name: name.to_owned(), reader, groups })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn groups(&self) -> &[u64] {
        &self.groups
    }

    /// The names of all columns.
    pub fn names(&self) -> Vec<String> {
        let schema = self.reader.metadata().file_metadata().schema_descr();
        schema.columns().iter().map(|column| column.path().string()).collect()
    }

    /// # Errors
    /// If there is no such column, or it has no numbers.
    pub fn column(&self, wanted: &str) -> Result<Column> {
        let schema = self.reader.metadata().file_metadata().schema_descr();
        let at = schema.columns().iter().position(|column| column.path().string() == wanted);
        let at = at.with_context(|| {
            let names: Vec<String> = self.names().into_iter().take(20).collect();
            format!("`{}` has no column `{wanted}`; it has `{}`", self.name, names.join("`, `"))
        })?;
        let column = schema.column(at);
        ensure!(
            column.max_rep_level() == 0,
            "`{}`, column `{wanted}` has lists in it\nhint: give each of their places a column of its own",
            self.name
        );
        let whole = match column.physical_type() {
            Type::BOOLEAN | Type::INT32 | Type::INT64 => true,
            Type::FLOAT | Type::DOUBLE => false,
            other => bail!(
                "`{}`, column `{wanted}` is of {other}, which are not numbers\n\
                 hint: number its texts when the file is written; the plug-in `csv` finds categories itself",
                self.name
            ),
        };
        Ok(Column { at, whole })
    }

    /// The values of a column in a row group; None where there is none.
    ///
    /// # Errors
    /// If the file is broken.
    pub fn read(&self, group: usize, column: Column) -> Result<Vec<Option<Value>>> {
        let rows = self.groups[group] as usize;
        let group = self.reader.get_row_group(group).map_err(|error| broken(&self.name, error))?;
        let reader = group.get_column_reader(column.at).map_err(|error| broken(&self.name, error))?;
        let most = self.reader.metadata().file_metadata().schema_descr().column(column.at).max_def_level();
        let whole = |value| Value::Whole(value);
        let values = match reader {
            ColumnReader::BoolColumnReader(_) => all::<BoolType>(reader, rows, most, |v| whole(v.into())),
            ColumnReader::Int32ColumnReader(_) => all::<Int32Type>(reader, rows, most, |v| whole(v.into())),
            ColumnReader::Int64ColumnReader(_) => all::<Int64Type>(reader, rows, most, whole),
            ColumnReader::FloatColumnReader(_) => {
                all::<FloatType>(reader, rows, most, |v| Value::Fraction(v.into()))
            }
            ColumnReader::DoubleColumnReader(_) => all::<DoubleType>(reader, rows, most, Value::Fraction),
            _ => bail!("`{}` has changed", self.name),
        };
        let values = values.map_err(|error| broken(&self.name, error))?;
        ensure!(values.len() == rows, "`{}` is broken: {} of {rows} rows are there", self.name, values.len());
        Ok(values)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    Whole(i64),
    Fraction(f64),
}

impl Value {
    /// # Errors
    /// If float32 has no such number, be it that it would be rounded to another whole one.
    pub fn float32(self) -> Result<f32, String> {
        match self {
            Value::Whole(number) if number as f32 as i128 == i128::from(number) => Ok(number as f32),
            Value::Whole(number) => Err(format!(
                "{number} is not a number of float32\nhint: set `dtype = \"int64\"` for its field"
            )),
            Value::Fraction(number) if (number as f32).is_finite() => Ok(number as f32),
            Value::Fraction(number) if number.is_finite() => {
                Err(format!("{number} is too large for float32"))
            }
            Value::Fraction(number) => Err(format!(
                "{number} is not a finite number\nhint: write no value there, which `missing` of the field fills"
            )),
        }
    }
}

fn broken(name: &str, error: ParquetError) -> Error {
    let said = error.to_string();
    let hint = match () {
        () if said.contains("zstd") => "\nhint: write it with compression=\"snappy\"",
        () if said.contains("Invalid Parquet file") => {
            "\nhint: is it one, and all of it? `csv` reads tables of text"
        }
        () => "",
    };
    anyhow!("`{name}` is broken, or of a kind that is not read: {said}{hint}")
}

/// Reads `rows` values, where a value is there if its level is `most`.
fn all<T: DataType>(
    reader: ColumnReader,
    rows: usize,
    most: i16,
    as_value: impl Fn(T::T) -> Value,
) -> parquet::errors::Result<Vec<Option<Value>>>
where
    T::T: Copy,
{
    let mut reader = get_typed_column_reader::<T>(reader);
    let (mut values, mut levels) = (Vec::new(), Vec::new());
    let mut found = Vec::new();
    // In pieces: how many rows there are is only what the file says.
    while found.len() < rows {
        (values, levels) = (cleared(values), cleared(levels));
        let wanted = (rows - found.len()).min(1 << 16);
        let (read, _, _) =
            reader.read_records(wanted, (most > 0).then_some(&mut levels), None, &mut values)?;
        if read == 0 {
            break;
        }
        let mut present = values.iter().copied().map(&as_value);
        match most {
            0 => found.extend(present.map(Some)),
            _ => found.extend(levels.iter().map(|&level| if level == most { present.next() } else { None })),
        }
    }
    Ok(found)
}

fn cleared<T>(mut values: Vec<T>) -> Vec<T> {
    values.clear();
    values
}
