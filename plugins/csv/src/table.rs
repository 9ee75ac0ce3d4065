//! The rows of all files, in memory where they fit there, and read when they are asked for where they do not.

use crate::cells::{Cells, FieldReader, State, Values, values_of};
use crate::columns::{Column, Columns};
use plugin_rows::{Form, Record, Records, Room, Rows};
use pstrain_plugin::{Batch, DType, Field, Result, anyhow, bail, ensure};

/// How files are to be read.
pub struct Layout {
    /// Whether the first line has the columns' names; if not told, it should have.
    pub header: Option<bool>,
    pub form: Form,
    pub fields: Vec<FieldSpec>,
    /// Texts that stand for no value, beside the empty one.
    pub nothing: Vec<String>,
    pub in_memory_bytes: usize,
}

pub struct FieldSpec {
    pub name: String,
    /// What a job calls it, for errors.
    pub key: String,
    /// All that `others` do not name if `None`.
    pub columns: Option<Vec<Column>>,
    /// One column that is not in a list: a sample has a number and not a list of one.
    pub scalar: bool,
    pub cells: Cells,
}

pub struct Table {
    rows: Rows,
    readers: Vec<FieldReader>,
    fields: Vec<Field>,
    nothing: Vec<String>,
    values: Vec<Values>,
    /// Whether `values` are those of all rows, or of those that are being read.
    in_memory: bool,
}

/// How much is read at once while all rows are gone through.
const BUFFER: usize = 64 << 10;

impl Table {
    /// Reads all files once. What the training samples settle is taken from `state`, or left there.
    ///
    /// # Errors
    /// Names the file, the line and the column of what is wrong.
    pub fn read(files: &[String], layout: &Layout, state: Option<&State>) -> Result<(Table, State)> {
        let mut table = Table {
            rows: Rows::new(layout.form),
            readers: Vec::new(),
            fields: Vec::new(),
            nothing: layout.nothing.clone(),
            values: Vec::new(),
            in_memory: layout.in_memory_bytes > 0,
        };
        let mut record = Record::default();
        let room = Room::new(files, layout.in_memory_bytes as u64);
        let mut before = 0;
        for name in files {
            let mut records = Records::open(name, layout.form, BUFFER)?;
            let columns = Columns::read(name, layout.header, &mut records, &mut record)?;
            let found = positions(&columns, layout)?;
            if table.readers.is_empty() {
                table.begin(layout, &found, state)?;
            }
            let same = table.fields.iter().zip(&layout.fields).zip(&found).all(|((field, spec), found)| {
                field.shape().iter().product::<u64>() == (found.len() * values_of(&spec.cells)) as u64
            });
            ensure!(
                same,
                "`{name}` has {} columns, and `{}` has others\nhint: name those that are wanted, in `features` or in `fields`",
                columns.count,
                files[0]
            );
            table.rows.begin(name, columns.count, found.clone());
            loop {
                let wrong = |place: String, what: &str| {
                    anyhow!("`{name}`, line {}{place}: {what}", records.line(&record))
                };
                if record.cells() != columns.count {
                    let hint = match record.cells() < columns.count {
                        true => "a row has a cell for each column, be it an empty one",
                        false => "a cell with a delimiter in it has to stand between double quotes",
                    };
                    let what = format!(
                        "it has {} cells, and {} are wanted\nhint: {hint}",
                        record.cells(),
                        columns.count
                    );
                    return Err(wrong(String::new(), &what));
                }
                table.rows.add(record.start);
                table
                    .push(&record, &found)
                    .map_err(|(column, what)| wrong(format!(", column {}", columns.call(column)), &what))?;
                let more = records.next(&mut record)?;
                table.make_room(&room, before + records.offset());
                if !more {
                    break;
                }
            }
            before += records.offset();
        }
        let mut settled = State::default();
        let in_memory = table.in_memory;
        for (reader, values) in table.readers.iter_mut().zip(&mut table.values) {
            reader.settle(&mut settled, in_memory.then_some(values))?;
        }
        Ok((table, settled))
    }

    /// Behind each row: keeps the values if all will fit. `read`: bytes of the files that were read by now.
    fn make_room(&mut self, room: &Room, read: u64) {
        if !self.in_memory {
            self.values.iter_mut().for_each(Values::clear);
            return;
        }
        // At 1,024 rows, 2,048 and so on, so that it costs nothing and goes by more than a few.
        let rows = self.rows.count();
        if rows < 1024 || !rows.is_power_of_two() {
            return;
        }
        let taken: usize = self.values.iter().map(Values::bytes).sum();
        match room.foretell(taken as u64, read) {
            Some(all) => {
                // A little more, since rows are not all alike.
                let times = all as f64 / taken.max(1) as f64 * 1.02;
                self.values.iter_mut().for_each(|values| values.reserve(times));
            }
            None => {
                self.in_memory = false;
                self.values = self.readers.iter().map(FieldReader::empty).collect();
            }
        }
    }

    pub fn len(&self) -> u64 {
        self.rows.count()
    }

    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    /// What each field has of categories, by column.
    pub fn categories(&self) -> impl Iterator<Item = (&str, Vec<usize>)> {
        self.fields.iter().map(Field::name).zip(self.readers.iter().map(FieldReader::categories))
    }

    /// # Errors
    /// If a file has changed.
    pub fn batch(&mut self, batch: &mut Batch) -> Result<()> {
        if !self.in_memory {
            self.values.iter_mut().for_each(Values::clear);
            for &index in batch.indices() {
                let (record, found) = self.rows.read(index)?;
                if let Err((_, what)) =
                    push(&mut self.readers, &self.nothing, &mut self.values, record, found)
                {
                    let what = what.lines().next().unwrap_or_default();
                    bail!("{}: {what}: the file has changed", self.rows.call(index));
                }
            }
        }
        for (field, values) in self.values.iter().enumerate() {
            match self.in_memory {
                true => values.gather(batch, field)?,
                false => values.emit(batch, field)?,
            }
        }
        Ok(())
    }

    /// The first file tells how many columns there are.
    fn begin(&mut self, layout: &Layout, found: &[Vec<usize>], state: Option<&State>) -> Result<()> {
        for (spec, found) in layout.fields.iter().zip(found) {
            let reader = FieldReader::new(&spec.name, spec.cells.clone(), found.len(), state)?;
            let width = values_of(&spec.cells);
            let shape = match (spec.scalar, found.len() * width) {
                (true, 1) => Vec::new(),
                (_, size) => vec![size as u64],
            };
            let dtype = reader.empty().dtype();
            debug_assert!(matches!(dtype, DType::Float32 | DType::Int64));
            self.fields.push(Field::new(spec.name.as_str(), dtype, shape));
            self.values.push(reader.empty());
            self.readers.push(reader);
        }
        Ok(())
    }

    fn push(&mut self, record: &Record, found: &[Vec<usize>]) -> Result<(), (usize, String)> {
        push(&mut self.readers, &self.nothing, &mut self.values, record, found)
    }
}

/// Adds a row, or tells which column is wrong, and why.
fn push(
    readers: &mut [FieldReader],
    nothing: &[String],
    values: &mut [Values],
    record: &Record,
    found: &[Vec<usize>],
) -> Result<(), (usize, String)> {
    for ((reader, values), found) in readers.iter_mut().zip(values).zip(found) {
        for (at, &column) in found.iter().enumerate() {
            reader.push(at, record.cell(column), nothing, values).map_err(|what| (column, what))?;
        }
    }
    Ok(())
}

/// Where in a file the columns of each field are.
fn positions(columns: &Columns<'_>, layout: &Layout) -> Result<Vec<Vec<usize>>> {
    let named = layout.fields.iter().map(|spec| {
        let wanted = spec.columns.as_deref();
        wanted.map(|wanted| columns.find(&spec.key, wanted)).transpose()
    });
    let named: Vec<Option<Vec<usize>>> = named.collect::<Result<_>>()?;
    let taken: Vec<usize> = named.iter().flatten().flatten().copied().collect();
    let rest = || (0..columns.count).filter(|column| !taken.contains(column)).collect::<Vec<_>>();
    let found: Vec<Vec<usize>> = named.into_iter().map(|found| found.unwrap_or_else(rest)).collect();
    for (spec, found) in layout.fields.iter().zip(&found) {
        let hint = match spec.columns {
            Some(_) => "leave the key out for all columns but the target",
            None => "all of its columns are the target: there has to be one that a model sees",
        };
        ensure!(!found.is_empty(), "`{}` has no columns for {}\nhint: {hint}", columns.file, spec.key);
    }
    // What a model is to predict it must not see.
    if let [features, target] = &layout.fields[..]
        && (features.key.as_str(), target.key.as_str()) == ("`features`", "`target`")
        && let Some(&both) = found[1].iter().find(|column| found[0].contains(column))
    {
        bail!(
            "column {} is one of `features` and of `target`: the model would see what it is to predict\n\
             hint: leave it out of `features`; a model that gives back its input takes data.target = \"features\"",
            columns.call(both)
        );
    }
    Ok(found)
}
