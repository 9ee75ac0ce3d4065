//! Tables in CSV files. Fields: `features` [columns] and, if there is a target, `target` (a scalar for one column); or those
//! that `fields` names.
//!
//! Columns are named by the header's names, or by their position from 0.

mod cells;
mod columns;
mod table;

use cells::{Cells, Missing, MissingConfig, Number, State, missing};
use columns::Column;
use plugin_rows::Form;
use pstrain_plugin::prelude::*;
use table::{FieldSpec, Layout, Table};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// One or several, of which the last part may have `*` and `?`.
    file: OneOrMore<String>,
    /// Whether the first line has the columns' names: it should, if nothing is said.
    header: Option<bool>,
    #[serde(default = "comma")]
    delimiter: char,
    /// What the model sees; all columns but the target if not given.
    features: Option<Vec<Column>>,
    feature_dtype: Option<Number>,
    /// One column or several; without it there is no field `target`.
    target: Option<OneOrMore<Column>>,
    /// float32 if not given, or int64 where `target_classes` are.
    target_dtype: Option<Number>,
    /// The texts that the target column has, in the order of their class numbers.
    target_classes: Option<Vec<String>>,
    /// In place of all these: fields of any names.
    fields: Option<Vec<FieldConfig>>,
    #[serde(default)]
    missing_values: Vec<String>,
    #[serde(default = "in_memory_mb")]
    in_memory_mb: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldConfig {
    name: String,
    columns: OneOrMore<Column>,
    dtype: Option<Number>,
    #[serde(default)]
    categories: bool,
    min_count: Option<u64>,
    classes: Option<Vec<String>>,
    missing: Option<MissingConfig>,
    #[serde(default)]
    indicator: bool,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "wanted a column's name or position, or a list of them")]
enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

impl<T> OneOrMore<T> {
    /// All of them, and whether it is one that stands in no list.
    fn into_all(self) -> (Vec<T>, bool) {
        match self {
            OneOrMore::One(one) => (vec![one], true),
            OneOrMore::More(all) => (all, false),
        }
    }
}

fn comma() -> char {
    ','
}

fn in_memory_mb() -> u32 {
    64
}

struct Csv {
    table: Table,
    state: State,
}

impl Csv {
    fn read(config: Config, state: Option<&State>) -> Result<Self> {
        let delimiter = u8::try_from(config.delimiter).ok().filter(u8::is_ascii).with_context(|| {
            format!(
                "`delimiter` = {:?} is not an ASCII character\nhint: most files have \",\", \";\" or \"\\t\"",
                config.delimiter
            )
        })?;
        let in_memory_bytes = (config.in_memory_mb as usize).saturating_mul(1 << 20);
        let (header, nothing) = (config.header, config.missing_values.clone());
        let (patterns, fields) = fields_of(config)?;
        let form = Form { delimiter, quotes: true };
        let layout = Layout { header, form, fields, nothing, in_memory_bytes };
        let (table, state) = Table::read(&data::find_all(&patterns)?, &layout, state)?;
        Ok(Csv { table, state })
    }
}

impl Dataset for Csv {
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        let csv = Csv::read(config, None)?;
        for (field, counts) in csv.table.categories().filter(|(_, counts)| !counts.is_empty()) {
            log::info(format!(
                "field `{field}` has {counts:?} categories, numbered from 1, and 0 for all others"
            ));
        }
        Ok(csv)
    }

    fn open_with(config: Config, state: &[u8]) -> Result<Self> {
        let state = serde_json::from_slice(state).context("the state of the training samples")?;
        Csv::read(config, Some(&state))
    }

    fn state(&self) -> Result<Option<Vec<u8>>> {
        Ok((!self.state.is_empty()).then(|| serde_json::to_vec(&self.state)).transpose()?)
    }

    fn len(&self) -> u64 {
        self.table.len()
    }

    fn fields(&self) -> Vec<Field> {
        self.table.fields().to_vec()
    }

    fn batch(&mut self, batch: &mut Batch) -> Result<()> {
        self.table.batch(batch)
    }
}

/// The files and the fields.
fn fields_of(config: Config) -> Result<(Vec<String>, Vec<FieldSpec>)> {
    let patterns = config.file.into_all().0;
    let Some(fields) = config.fields else {
        let features = FieldSpec {
            name: "features".into(),
            key: "`features`".into(),
            columns: config.features,
            scalar: false,
            cells: numbers(config.feature_dtype.unwrap_or_default()),
        };
        let target = target_of(config.target, config.target_dtype, config.target_classes)?;
        return Ok((patterns, [features].into_iter().chain(target).collect()));
    };
    let simple = [
        ("features", config.features.is_some()),
        ("feature_dtype", config.feature_dtype.is_some()),
        ("target", config.target.is_some()),
        ("target_dtype", config.target_dtype.is_some()),
        ("target_classes", config.target_classes.is_some()),
    ];
    if let Some((key, _)) = simple.iter().find(|(_, given)| *given) {
        bail!(
            "`{key}` and `fields` both say what is read\nhint: make a field of it: {{ name = \"target\", columns = ... }}"
        );
    }
    ensure!(
        !fields.is_empty(),
        "`fields` is an empty list\nhint: leave the key out to read all columns as `features`"
    );
    Ok((patterns, fields.into_iter().map(field_of).collect::<Result<_>>()?))
}

fn field_of(config: FieldConfig) -> Result<FieldSpec> {
    let FieldConfig { name, columns, dtype, categories, min_count, classes, missing: given, indicator } =
        config;
    let wrong = |what: &str| Err(anyhow!("field `{name}`: {what}"));
    let (columns, scalar) = columns.into_all();
    if columns.is_empty() {
        return wrong("`columns` is an empty list\nhint: name at least one, or leave the field out");
    }
    let texts = categories || classes.is_some();
    if categories && classes.is_some() {
        return wrong(
            "it has `categories` and `classes`\nhint: `classes` lists the texts, `categories` finds them",
        );
    }
    if texts && dtype == Some(Number::Float32) {
        return wrong(
            "its texts become numbers of int64: `dtype` cannot be float32\nhint: leave `dtype` out",
        );
    }
    if texts && (given.is_some() || indicator) {
        return wrong(
            "`missing` and `indicator` are for numbers: an empty text is a text like others\nhint: leave them out",
        );
    }
    if min_count.is_some() && !categories {
        return wrong("`min_count` is for `categories`\nhint: set `categories = true`, or leave it out");
    }
    if indicator && given.is_none() {
        return wrong(
            "`indicator` needs `missing`: what stands where there is no value\nhint: add `missing = 0` or `missing = \"mean\"`",
        );
    }
    let cells = match classes {
        _ if categories => Cells::Categories { min_count: min_count.unwrap_or(1) },
        Some(classes) => {
            check_classes("`classes`", &classes)?;
            Cells::Classes(classes)
        }
        None => {
            let dtype = dtype.unwrap_or_default();
            let missing = missing(given.as_ref(), dtype).with_context(|| format!("field `{name}`"))?;
            Cells::Numbers { dtype, missing, indicator }
        }
    };
    Ok(FieldSpec { key: format!("field `{name}`"), name, columns: Some(columns), scalar, cells })
}

fn numbers(dtype: Number) -> Cells {
    Cells::Numbers { dtype, missing: Missing::Refused, indicator: false }
}

/// What is to be read as the target.
fn target_of(
    columns: Option<OneOrMore<Column>>,
    dtype: Option<Number>,
    classes: Option<Vec<String>>,
) -> Result<Option<FieldSpec>> {
    let Some(columns) = columns else {
        let hint = "set `target` to a column's name or position";
        ensure!(classes.is_none(), "`target_classes` is given without `target`\nhint: {hint}");
        ensure!(dtype.is_none(), "`target_dtype` is given without `target`\nhint: {hint}");
        return Ok(None);
    };
    let (columns, scalar) = columns.into_all();
    ensure!(!columns.is_empty(), "`target` is an empty list\nhint: leave the key out if there is no target");
    ensure!(
        classes.is_none() || dtype != Some(Number::Float32),
        "`target_classes` give class numbers, which are int64: `target_dtype` cannot be float32\nhint: leave `target_dtype` out"
    );
    let cells = match classes {
        Some(classes) => {
            check_classes("`target_classes`", &classes)?;
            Cells::Classes(classes)
        }
        None => numbers(dtype.unwrap_or_default()),
    };
    let (name, key) = ("target".into(), "`target`".into());
    Ok(Some(FieldSpec { name, key, columns: Some(columns), scalar, cells }))
}

fn check_classes(key: &str, classes: &[String]) -> Result<()> {
    for (at, class) in classes.iter().enumerate() {
        ensure!(
            !classes[..at].contains(class),
            "{key} has `{class}` twice: each class has one number\nhint: leave one of them out"
        );
    }
    Ok(())
}

export_dataset!(Csv);

#[cfg(test)]
mod tests;
