//! From the texts in cells to a field's numbers, and what the training samples settle for that.

use plugin_rows::cut;
use pstrain_plugin::{Batch, DType, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// What to do about a cell without a value, and about one with another text than a number's.
const FILLS: &str = "a field of `fields` has `missing` to fill such cells: a number, or \"mean\"";
const NO_NUMBER: &str = "name it in `missing_values` if it stands for no value; texts are numbered by `categories = true` in a field of \
                         `fields`";

/// The bytes of the texts of all categories: they have to fit into a state, beside what JSON adds.
const MOST_TEXT: usize = 32 << 20;

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Number {
    #[default]
    Float32,
    Int64,
}

/// What stands in for a cell without a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Missing {
    Refused,
    Fill(f64),
    /// The mean of the column's training samples.
    Mean,
}

/// How the cells of a field are read.
#[derive(Clone, Debug, PartialEq)]
pub enum Cells {
    /// With `indicator` each column is followed by another, 1 where the value is missing and 0 elsewhere.
    Numbers { dtype: Number, missing: Missing, indicator: bool },
    /// The texts that there are, in the order of their numbers.
    Classes(Vec<String>),
    /// Texts are numbered from 1 in alphabetical order, those with fewer samples left out; all others are 0.
    Categories { min_count: u64 },
}

/// Rows of one field, one after the other.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    Float32(Vec<f32>),
    Int64(Vec<i64>),
}

impl Values {
    pub fn dtype(&self) -> DType {
        match self {
            Values::Float32(_) => DType::Float32,
            Values::Int64(_) => DType::Int64,
        }
    }

    pub fn bytes(&self) -> usize {
        match self {
            Values::Float32(values) => size_of_val(values.as_slice()),
            Values::Int64(values) => size_of_val(values.as_slice()),
        }
    }

    /// Room for `times` as many as there are, if the memory has it.
    pub fn reserve(&mut self, times: f64) {
        let more = |has: usize| ((has as f64 * times) as usize).saturating_sub(has);
        // Where there is none, the values themselves will say so.
        let _ = match self {
            Values::Float32(values) => values.try_reserve_exact(more(values.len())),
            Values::Int64(values) => values.try_reserve_exact(more(values.len())),
        };
    }

    pub fn clear(&mut self) {
        match self {
            Values::Float32(values) => values.clear(),
            Values::Int64(values) => values.clear(),
        }
    }

    /// The rows of all samples: those of the batch.
    ///
    /// # Errors
    /// As [`Batch::gather`].
    pub fn gather(&self, batch: &mut Batch, field: usize) -> Result<()> {
        match self {
            Values::Float32(values) => batch.gather(field, values),
            Values::Int64(values) => batch.gather(field, values),
        }
    }

    /// The rows of the batch.
    ///
    /// # Errors
    /// As [`Batch::emit`].
    pub fn emit(&self, batch: &mut Batch, field: usize) -> Result<()> {
        match self {
            Values::Float32(values) => batch.emit(field, values),
            Values::Int64(values) => batch.emit(field, values),
        }
    }
}

/// What the training samples have settled, by field and in the order of its columns.
#[derive(Debug, Default, Deserialize, Serialize)]
pub struct State(BTreeMap<String, Settled>);

#[derive(Debug, Default, Deserialize, Serialize)]
struct Settled {
    #[serde(default)]
    categories: Vec<Vec<String>>,
    /// As float32, whose decimals come back as they were.
    #[serde(default)]
    means: Vec<f32>,
}

impl State {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Reads the cells of one field.
pub struct FieldReader {
    name: String,
    cells: Cells,
    columns: Vec<ColumnReader>,
}

/// What one column of it has besides.
#[derive(Debug)]
enum ColumnReader {
    Plain,
    Mean(f32),
    Categories(HashMap<Box<str>, i64>),
    /// The training samples are being read for the first time: missing values are NaN for now.
    SettlesMean {
        sum: f64,
        count: u64,
    },
    /// Texts with their number for now, which is that of their first sight, and how often they came.
    SettlesCategories {
        texts: HashMap<Box<str>, (i64, u64)>,
        bytes: usize,
    },
}

impl FieldReader {
    /// With `state`, or to settle one.
    ///
    /// # Errors
    /// If the state is that of other fields.
    pub fn new(name: &str, cells: Cells, columns: usize, state: Option<&State>) -> Result<Self> {
        let settled =
            state.map(|state| state.0.get(name).map_or((&[][..], &[][..]), |s| (&s.categories, &s.means)));
        let other = |has: usize| {
            anyhow!(
                "field `{name}` has {columns} columns that settle something, and that of the training samples has {has}\n\
                 hint: give it the same columns in `data.train` and `data.test`"
            )
        };
        let readers: Result<Vec<_>> = (0..columns)
            .map(|column| {
                Ok(match (&cells, settled) {
                    (Cells::Categories { .. }, None) => {
                        ColumnReader::SettlesCategories { texts: HashMap::new(), bytes: 0 }
                    }
                    (Cells::Categories { .. }, Some((categories, _))) => {
                        ensure!(categories.len() == columns, other(categories.len()));
                        let numbered = categories[column].iter().zip(1i64..);
                        ColumnReader::Categories(
                            numbered.map(|(text, id)| (text.as_str().into(), id)).collect(),
                        )
                    }
                    (Cells::Numbers { missing: Missing::Mean, .. }, None) => {
                        ColumnReader::SettlesMean { sum: 0.0, count: 0 }
                    }
                    (Cells::Numbers { missing: Missing::Mean, .. }, Some((_, means))) => {
                        ensure!(means.len() == columns, other(means.len()));
                        ColumnReader::Mean(means[column])
                    }
                    _ => ColumnReader::Plain,
                })
            })
            .collect();
        Ok(FieldReader { name: name.to_owned(), cells, columns: readers? })
    }

    pub fn empty(&self) -> Values {
        match self.cells {
            Cells::Numbers { dtype: Number::Float32, .. } => Values::Float32(Vec::new()),
            _ => Values::Int64(Vec::new()),
        }
    }

    /// Adds what the cell of a column says, or tells what is wrong with it. `nothing`: texts that stand for no value.
    pub fn push(
        &mut self,
        column: usize,
        cell: &[u8],
        nothing: &[String],
        to: &mut Values,
    ) -> Result<(), String> {
        let text = std::str::from_utf8(cell)
            .map_err(|_| "it is not UTF-8 text\nhint: save the file as UTF-8".to_owned())?;
        let reader = &mut self.columns[column];
        match (&self.cells, to) {
            (Cells::Categories { .. }, Values::Int64(values)) => values.push(reader.category(text)?),
            (Cells::Classes(classes), Values::Int64(values)) => values.push(class(text, classes)?),
            (Cells::Numbers { missing, indicator, .. }, to) => {
                let is_missing = text.is_empty() || nothing.iter().any(|nothing| nothing == text);
                match to {
                    Values::Float32(values) => {
                        values.push(match is_missing {
                            true => reader.instead(*missing, text)?,
                            false => reader.seen(float(text)?),
                        });
                        values.extend(indicator.then_some(f32::from(u8::from(is_missing))));
                    }
                    Values::Int64(values) => {
                        values.push(match is_missing {
                            true => reader.instead(*missing, text)? as i64,
                            false => integer(text)?,
                        });
                        values.extend(indicator.then_some(i64::from(is_missing)));
                    }
                }
            }
            _ => unreachable!("categories and classes are int64"),
        }
        Ok(())
    }

    /// The training samples have all been seen: from now on the field is read as it will be everywhere. `values`, which were
    /// read before, are put right.
    ///
    /// # Errors
    /// If a column has no value to take the mean of.
    pub fn settle(&mut self, state: &mut State, values: Option<&mut Values>) -> Result<()> {
        let mut settled = Settled::default();
        let mut ids: Vec<Vec<i64>> = Vec::new();
        for (at, column) in self.columns.iter_mut().enumerate() {
            match column {
                ColumnReader::SettlesMean { sum, count } => {
                    ensure!(
                        *count > 0,
                        "field `{}`: column {at} of it has no value to take the mean of\nhint: give a number as `missing`",
                        self.name
                    );
                    let mean = (*sum / *count as f64) as f32;
                    settled.means.push(mean);
                    *column = ColumnReader::Mean(mean);
                }
                ColumnReader::SettlesCategories { texts, .. } => {
                    let Cells::Categories { min_count } = self.cells else { continue };
                    let mut seen: Vec<_> = std::mem::take(texts).into_iter().collect();
                    seen.sort_unstable();
                    let mut final_ids = vec![0; seen.len()];
                    let mut kept = HashMap::new();
                    for (text, (first, count)) in seen {
                        if count >= min_count {
                            let id = kept.len() as i64 + 1;
                            final_ids[first as usize] = id;
                            kept.insert(text, id);
                        }
                    }
                    ids.push(final_ids);
                    settled.categories.push(in_order(&kept));
                    *column = ColumnReader::Categories(kept);
                }
                _ => {}
            }
        }
        match values {
            Some(Values::Float32(values)) if !settled.means.is_empty() => {
                let width = values_of(&self.cells);
                let columns = settled.means.len();
                for (at, value) in values.iter_mut().step_by(width).enumerate() {
                    if value.is_nan() {
                        *value = settled.means[at % columns];
                    }
                }
            }
            Some(Values::Int64(values)) if !ids.is_empty() => {
                for (at, value) in values.iter_mut().enumerate() {
                    *value = ids[at % ids.len()][*value as usize];
                }
            }
            _ => {}
        }
        if !(settled.means.is_empty() && settled.categories.is_empty()) {
            state.0.insert(self.name.clone(), settled);
        }
        Ok(())
    }

    /// How many categories each column has, if it has any.
    pub fn categories(&self) -> Vec<usize> {
        let counted = |column: &ColumnReader| match column {
            ColumnReader::Categories(ids) => Some(ids.len()),
            _ => None,
        };
        self.columns.iter().filter_map(counted).collect()
    }
}

/// Numbers of a sample for each column.
pub fn values_of(cells: &Cells) -> usize {
    1 + usize::from(matches!(cells, Cells::Numbers { indicator: true, .. }))
}

fn in_order(ids: &HashMap<Box<str>, i64>) -> Vec<String> {
    let mut texts: Vec<String> = ids.keys().map(|text| text.to_string()).collect();
    texts.sort_unstable();
    texts
}

impl ColumnReader {
    fn category(&mut self, text: &str) -> Result<i64, String> {
        match self {
            ColumnReader::Categories(ids) => Ok(ids.get(text).copied().unwrap_or(0)),
            ColumnReader::SettlesCategories { texts, bytes } => {
                if let Some((id, count)) = texts.get_mut(text) {
                    *count += 1;
                    return Ok(*id);
                }
                *bytes += text.len() + 8;
                if *bytes > MOST_TEXT {
                    return Err(format!(
                        "there are more than {} different texts by here, {MOST_TEXT} bytes: too many for a dictionary\n\
                         hint: is it a column of ids or of free text? hash it, or number it in the file",
                        texts.len()
                    ));
                }
                let id = texts.len() as i64;
                texts.insert(text.into(), (id, 1));
                Ok(id)
            }
            _ => unreachable!("made for categories"),
        }
    }

    fn seen(&mut self, value: f32) -> f32 {
        if let ColumnReader::SettlesMean { sum, count } = self {
            (*sum, *count) = (*sum + f64::from(value), *count + 1);
        }
        value
    }

    /// What stands where there is no value.
    fn instead(&self, missing: Missing, text: &str) -> Result<f32, String> {
        match (self, missing) {
            (_, Missing::Fill(value)) => Ok(value as f32),
            (ColumnReader::Mean(mean), _) => Ok(*mean),
            (ColumnReader::SettlesMean { .. }, _) => Ok(f32::NAN),
            (_, _) => {
                let what = if text.is_empty() {
                    "the cell is empty".into()
                } else {
                    format!("`{text}` is not a value")
                };
                Err(format!("{what}\nhint: {FILLS}"))
            }
        }
    }
}

fn float(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(value) if value.is_finite() => Ok(value),
        Ok(_) => {
            let hint = "name it in `missing_values` if it stands for no value";
            Err(format!("`{}` is not a finite number\nhint: {hint}", cut(text)))
        }
        Err(_) => Err(format!("`{}` is not a number\nhint: {NO_NUMBER}", cut(text))),
    }
}

fn integer(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| {
        let hint = if text.parse::<f64>().is_ok() { "float32 takes fractions" } else { NO_NUMBER };
        format!("`{}` is not a whole number\nhint: {hint}", cut(text))
    })
}

fn class(text: &str, classes: &[String]) -> Result<i64, String> {
    let at = classes.iter().position(|class| class == text);
    at.map(|at| at as i64).ok_or_else(|| {
        format!(
            "`{}` is not one of the classes `{}`\nhint: name it there, too; `categories = true` in a field of `fields` finds all texts",
            cut(text),
            classes.join("`, `")
        )
    })
}

/// What a job may say of a missing value.
pub fn missing(given: Option<&MissingConfig>, dtype: Number) -> Result<Missing> {
    Ok(match given {
        None => Missing::Refused,
        Some(MissingConfig::Number(value)) => {
            let whole = dtype == Number::Float32 || (value.fract() == 0.0 && value.abs() < 16_777_217.0);
            ensure!(
                value.is_finite(),
                "`missing` = {value} is not a finite number\nhint: give one, or \"mean\""
            );
            ensure!(
                whole,
                "`missing` = {value} is not a number of the field's dtype\nhint: give a whole number, or take float32"
            );
            Missing::Fill(*value)
        }
        Some(MissingConfig::Word(word)) if word == "mean" && dtype == Number::Float32 => Missing::Mean,
        Some(MissingConfig::Word(word)) if word == "mean" => {
            bail!(
                "`missing` = \"mean\" is a fraction, and the field is int64\nhint: give a number, or take float32"
            )
        }
        Some(MissingConfig::Word(word)) => bail!(
            "`missing` = {word:?} is neither a number nor \"mean\"\nhint: write `missing = 0` or `missing = \"mean\"`"
        ),
    })
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "wanted a number or \"mean\"")]
pub enum MissingConfig {
    Number(f64),
    Word(String),
}
