//! Columns of numbers in Parquet files. Each is a field of its own, unless `fields` puts some together.

mod file;

use file::{Column, ParquetFile, Value};
use pstrain_plugin::prelude::*;
use std::collections::VecDeque;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// One or several, of which the last part may have `*` and `?`.
    file: OneOrMore,
    fields: Option<Vec<FieldConfig>>,
    #[serde(default = "in_memory_mb")]
    in_memory_mb: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldConfig {
    name: String,
    columns: OneOrMore,
    dtype: Option<Number>,
    /// What stands where there is no value.
    missing: Option<f64>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "wanted a name or a list of them")]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Number {
    Float32,
    Int64,
}

fn in_memory_mb() -> usize {
    64
}

/// How a field is put together.
struct Spec {
    name: String,
    columns: Vec<String>,
    shape: Vec<u64>,
    dtype: Option<Number>,
    missing: Option<f64>,
}

/// Rows of a field.
enum Values {
    Float32(Vec<f32>),
    Int64(Vec<i64>),
}

/// A row group in memory.
struct Group {
    /// Its number among those of all files.
    number: usize,
    fields: Vec<Values>,
}

struct Parquet {
    files: Vec<ParquetFile>,
    /// For each file, the columns of each field.
    columns: Vec<Vec<Vec<Column>>>,
    /// The first row of each group among those of all files, and where it is.
    groups: Vec<(u64, usize, usize)>,
    rows: u64,
    specs: Vec<Spec>,
    dtypes: Vec<Number>,
    /// Those that were used last are at the end.
    held: VecDeque<Group>,
    most_held: usize,
}

impl Parquet {
    fn group_of(&self, index: u64) -> usize {
        self.groups.partition_point(|(first, ..)| *first <= index) - 1
    }

    /// Makes sure that a row group is the last one of those in memory.
    fn hold(&mut self, number: usize) -> Result<()> {
        if let Some(at) = self.held.iter().position(|group| group.number == number) {
            if at + 1 != self.held.len() {
                let group = self.held.remove(at).context("it was found")?;
                self.held.push_back(group);
            }
            return Ok(());
        }
        let (_, file, group) = self.groups[number];
        let reader = &self.files[file];
        let mut fields = Vec::new();
        for ((spec, columns), dtype) in self.specs.iter().zip(&self.columns[file]).zip(&self.dtypes) {
            let read: Vec<_> =
                columns.iter().map(|column| reader.read(group, *column)).collect::<Result<_>>()?;
            fields.push(values(reader.name(), spec, *dtype, &read)?);
        }
        if self.held.len() >= self.most_held {
            self.held.pop_front();
        }
        self.held.push_back(Group { number, fields });
        Ok(())
    }
}

/// The columns of a field, row by row.
fn values(file: &str, spec: &Spec, dtype: Number, columns: &[Vec<Option<Value>>]) -> Result<Values> {
    let rows = columns.first().map_or(0, Vec::len);
    let cells =
        (0..rows).flat_map(|row| columns.iter().enumerate().map(move |(at, column)| (row, at, column[row])));
    let wrong = |row: usize, at: usize, what: String| {
        anyhow!("`{file}`, column `{}`, row {} of its row group: {what}", spec.columns[at], row + 1)
    };
    let filled = |row, at, value: Option<Value>| {
        let value = value.or(spec.missing.map(Value::Fraction));
        value.ok_or_else(|| wrong(row, at, "there is no value\nhint: `missing` of a field fills it".into()))
    };
    Ok(match dtype {
        Number::Float32 => Values::Float32(
            cells
                .map(|(row, at, value)| {
                    let value = filled(row, at, value)?;
                    value.float32().map_err(|what| wrong(row, at, what))
                })
                .collect::<Result<_>>()?,
        ),
        Number::Int64 => Values::Int64(
            cells
                .map(|(row, at, value)| match filled(row, at, value)? {
                    Value::Whole(number) => Ok(number),
                    Value::Fraction(number) if number.fract() == 0.0 && number.abs() < 9e15 => {
                        Ok(number as i64)
                    }
                    Value::Fraction(number) => {
                        let what = format!(
                            "{number} is not a whole number\nhint: `dtype = \"float32\"` takes fractions"
                        );
                        Err(wrong(row, at, what))
                    }
                })
                .collect::<Result<_>>()?,
        ),
    })
}

impl Dataset for Parquet {
    type Config = Config;

    fn open(Config { file, fields, in_memory_mb }: Config) -> Result<Self> {
        let names = data::find_all(&match file {
            OneOrMore::One(name) => vec![name],
            OneOrMore::More(names) => names,
        })?;
        let files: Vec<ParquetFile> =
            names.iter().map(|name| ParquetFile::open(name)).collect::<Result<_>>()?;
        let specs = match fields {
            None => files[0].names().into_iter().map(alone).collect(),
            Some(fields) => fields.into_iter().map(spec).collect::<Result<Vec<_>>>()?,
        };
        ensure!(
            !specs.is_empty(),
            "`fields` is an empty list\nhint: leave the key out to read each column as a field"
        );
        let (mut columns, mut groups, mut rows, mut largest) = (Vec::new(), Vec::new(), 0, 0);
        for (number, file) in files.iter().enumerate() {
            let found = |spec: &Spec| {
                spec.columns.iter().map(|column| file.column(column)).collect::<Result<Vec<_>>>()
            };
            columns.push(specs.iter().map(found).collect::<Result<Vec<_>>>()?);
            for (at, &count) in file.groups().iter().enumerate().filter(|(_, count)| **count > 0) {
                groups.push((rows, number, at));
                rows += count;
                largest = largest.max(count);
            }
        }
        ensure!(rows > 0, "`{}` has no rows", names.join("`, `"));
        let dtypes: Vec<Number> = specs
            .iter()
            .enumerate()
            .map(|(at, spec)| {
                let whole = columns.iter().all(|fields| fields[at].iter().all(|column| column.whole));
                spec.dtype.unwrap_or(if whole { Number::Int64 } else { Number::Float32 })
            })
            .collect();
        let row: u64 = specs.iter().map(|spec| spec.columns.len() as u64 * 8).sum();
        let room = (in_memory_mb as u64) << 20;
        let most_held = (room / row.saturating_mul(largest).max(1)).clamp(1, groups.len() as u64) as usize;
        let held = VecDeque::new();
        Ok(Parquet { files, columns, groups, rows, specs, dtypes, held, most_held })
    }

    fn len(&self) -> u64 {
        self.rows
    }

    fn fields(&self) -> Vec<Field> {
        let told = |(spec, dtype): (&Spec, &Number)| {
            let dtype = if *dtype == Number::Int64 { DType::Int64 } else { DType::Float32 };
            Field::new(spec.name.as_str(), dtype, spec.shape.clone())
        };
        self.specs.iter().zip(&self.dtypes).map(told).collect()
    }

    fn batch(&mut self, batch: &mut Batch) -> Result<()> {
        let indices = batch.indices().to_vec();
        let widths: Vec<usize> = self.specs.iter().map(|spec| spec.columns.len()).collect();
        let mut out: Vec<Values> = self
            .dtypes
            .iter()
            .zip(&widths)
            .map(|(dtype, width)| match dtype {
                Number::Float32 => Values::Float32(vec![0.0; width * indices.len()]),
                Number::Int64 => Values::Int64(vec![0; width * indices.len()]),
            })
            .collect();
        // A row group is read once for all samples that are in it.
        let mut order: Vec<usize> = (0..indices.len()).collect();
        order.sort_by_key(|&nth| indices[nth]);
        for nth in order {
            let number = self.group_of(indices[nth]);
            self.hold(number)?;
            let row = (indices[nth] - self.groups[number].0) as usize;
            let group = self.held.back().context("it is held")?;
            for ((to, from), width) in out.iter_mut().zip(&group.fields).zip(&widths) {
                match (to, from) {
                    (Values::Float32(to), Values::Float32(from)) => copy(to, nth, from, row, *width),
                    (Values::Int64(to), Values::Int64(from)) => copy(to, nth, from, row, *width),
                    _ => bail!("a row group has changed"),
                }
            }
        }
        for (field, values) in out.iter().enumerate() {
            match values {
                Values::Float32(values) => batch.emit(field, values)?,
                Values::Int64(values) => batch.emit(field, values)?,
            }
        }
        Ok(())
    }
}

fn copy<T: Copy>(to: &mut [T], nth: usize, from: &[T], row: usize, width: usize) {
    to[nth * width..][..width].copy_from_slice(&from[row * width..][..width]);
}

/// A column that is a field.
fn alone(name: String) -> Spec {
    Spec { columns: vec![name.clone()], name, shape: Vec::new(), dtype: None, missing: None }
}

fn spec(FieldConfig { name, columns, dtype, missing }: FieldConfig) -> Result<Spec> {
    let (columns, shape) = match columns {
        OneOrMore::One(column) => (vec![column], Vec::new()),
        OneOrMore::More(columns) => {
            let count = columns.len() as u64;
            (columns, vec![count])
        }
    };
    ensure!(!columns.is_empty(), "field `{name}`: `columns` is an empty list\nhint: name at least one");
    Ok(Spec { name, columns, shape, dtype, missing })
}

export_dataset!(Parquet);

#[cfg(test)]
mod tests;
