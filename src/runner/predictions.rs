//! Predictions as they are written: a row for each sample, in the order of the data.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Map, Value};
use tch::{Device, Kind, Tensor};

use crate::files::WholeFile;
use crate::model::{Region, TensorFile};

/// What a file is, by the end of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Csv,
    JsonLines,
    Npy,
    Safetensors,
}

const FORMATS: [(&str, Format); 4] = [
    ("csv", Format::Csv),
    ("jsonl", Format::JsonLines),
    ("npy", Format::Npy),
    ("safetensors", Format::Safetensors),
];

impl Format {
    /// # Errors
    /// The name ends in none of the formats.
    pub fn of(file: &Path) -> Result<Format> {
        let end = file.extension().and_then(|end| end.to_str()).unwrap_or_default();
        let found = FORMATS.iter().find(|(name, _)| *name == end);
        found.map(|(_, format)| *format).with_context(|| {
            format!(
                "`{}` says no format by its ending\n  hint: name a file that ends in .csv, .jsonl, .npy or .safetensors",
                file.display()
            )
        })
    }
}

/// A file that is being written, and appears when all rows are there.
pub struct Predictions {
    path: PathBuf,
    /// The names of the columns.
    names: Vec<String>,
    samples: u64,
    written: u64,
    to: Option<(WholeFile, To)>,
}

enum To {
    Csv(BufWriter<File>),
    JsonLines(BufWriter<File>),
    Npy(BufWriter<File>),
    Safetensors(TensorFile),
}

impl Predictions {
    /// A file for so many samples. Nothing is written before the first batch, which tells shapes and dtypes.
    ///
    /// # Errors
    /// Two columns have one name.
    pub fn new(path: &Path, names: Vec<String>, samples: u64) -> Result<Predictions> {
        for (nth, name) in names.iter().enumerate() {
            ensure!(
                !names[..nth].contains(name),
                "two columns are named `{name}`\n  hint: ask for each field once"
            );
        }
        Ok(Predictions { path: path.into(), names, samples, written: 0, to: None })
    }

    /// Writes the rows of a batch of so many samples, one tensor for each name.
    ///
    /// # Errors
    /// The file cannot be written, or its format has not what is to go into it; a column has not a row for each sample.
    pub fn add(&mut self, samples: u64, columns: &[Tensor]) -> Result<()> {
        ensure!(
            columns.len() == self.names.len(),
            "{} columns for {} names",
            columns.len(),
            self.names.len()
        );
        let columns: Vec<Tensor> = columns.iter().map(plain).collect::<Result<_>>()?;
        let rows = samples as i64;
        for (name, column) in self.names.iter().zip(&columns) {
            ensure!(
                column.size().first() == Some(&rows),
                "`{name}` has the shape {:?} for a batch of {rows} samples, and predictions have a row for each sample\n  \
                 hint: have the module keep the samples as the first dimension of its output",
                column.size()
            );
        }
        if self.to.is_none() {
            self.to = Some(self.begin(&columns)?);
        }
        let Predictions { path, names, to: Some((_, to)), .. } = self else { return Ok(()) };
        let written = match to {
            To::Csv(file) => csv(file, &columns, rows),
            To::JsonLines(file) => json_lines(file, names, &columns, rows),
            To::Npy(file) => raw(&columns[0]).and_then(|bytes| Ok(file.write_all(&bytes)?)),
            To::Safetensors(file) => {
                names.iter().zip(&columns).try_for_each(|(name, column)| Ok(file.append(name, column)?))
            }
        };
        self.written += rows as u64;
        written.with_context(|| path.display().to_string())
    }

    /// All rows are there.
    ///
    /// # Errors
    /// They are not, or the file cannot be written.
    pub fn finish(self) -> Result<()> {
        let Predictions { path, samples, written, to, .. } = self;
        ensure!(written == samples, "{written} rows of {samples} samples");
        let Some((whole, to)) = to else { return Ok(()) };
        let finished = match to {
            To::Csv(mut file) | To::JsonLines(mut file) | To::Npy(mut file) => {
                file.flush().map_err(anyhow::Error::from)
            }
            To::Safetensors(file) => file.finish().map(drop).map_err(anyhow::Error::from),
        };
        finished.and_then(|()| Ok(whole.finish()?)).with_context(|| path.display().to_string())
    }

    fn begin(&self, columns: &[Tensor]) -> Result<(WholeFile, To)> {
        let whole = self.whole().with_context(|| self.path.display().to_string())?;
        let file = whole.file().try_clone()?;
        let to = match Format::of(&self.path)? {
            Format::Csv => {
                let mut file = BufWriter::new(file);
                let names = self.names.iter().zip(columns).flat_map(|(name, column)| titles(name, column));
                writeln!(file, "{}", names.collect::<Vec<_>>().join(","))?;
                To::Csv(file)
            }
            Format::JsonLines => To::JsonLines(BufWriter::new(file)),
            Format::Npy => {
                let [column] = columns else {
                    bail!(
                        "`{}` has one array, and there are {}: {}\n  hint: write a .safetensors file",
                        self.path.display(),
                        columns.len(),
                        self.names.join(", ")
                    )
                };
                let mut file = BufWriter::new(file);
                file.write_all(&npy_header(column, self.samples))?;
                To::Npy(file)
            }
            Format::Safetensors => {
                let region = |(name, column): (&String, &Tensor)| {
                    let mut region = Region::of(name, column);
                    region.shape[0] = self.samples as i64;
                    region
                };
                let regions = self.names.iter().zip(columns).map(region).collect();
                To::Safetensors(TensorFile::begin(file, &self.path, regions)?)
            }
        };
        Ok((whole, to))
    }

    fn whole(&self) -> io::Result<WholeFile> {
        let folder = self.path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        WholeFile::create(folder, &name)
    }
}

/// Float32, float64 or int64, on the CPU.
fn plain(column: &Tensor) -> Result<Tensor> {
    let kind = match column.f_kind()? {
        Kind::Double | Kind::Int64 => column.kind(),
        kind if crate::plugin::is_floating(kind) => Kind::Float,
        _ => Kind::Int64,
    };
    Ok(column.f_detach()?.f_to_device(Device::Cpu)?.f_to_kind(kind)?.f_contiguous()?)
}

/// Numbers of one sample.
fn width(column: &Tensor) -> usize {
    column.size()[1..].iter().product::<i64>() as usize
}

/// One for each number: the name, with its place where there are several.
fn titles(name: &str, column: &Tensor) -> Vec<String> {
    match width(column) {
        1 => vec![cell(name)],
        several => (0..several).map(|nth| cell(&format!("{name}_{nth}"))).collect(),
    }
}

/// As RFC 4180 has it: what would end it is between quotes.
fn cell(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}

/// The numbers of a column as they are written: floats in as many digits as they need to come back the same.
enum Numbers {
    Float(Vec<f32>),
    Double(Vec<f64>),
    Whole(Vec<i64>),
}

impl Numbers {
    fn of(column: &Tensor) -> Result<Numbers> {
        let flat = column.f_flatten(0, -1)?;
        Ok(match column.f_kind()? {
            Kind::Int64 => Numbers::Whole(Vec::try_from(&flat)?),
            Kind::Double => Numbers::Double(Vec::try_from(&flat)?),
            _ => Numbers::Float(Vec::try_from(&flat)?),
        })
    }

    fn text(&self, at: usize) -> String {
        match self {
            Numbers::Float(all) => all[at].to_string(),
            Numbers::Double(all) => all[at].to_string(),
            Numbers::Whole(all) => all[at].to_string(),
        }
    }

    /// A number that is not finite is null.
    fn json(&self, at: usize) -> Value {
        let text = self.text(at);
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }
}

fn csv(file: &mut BufWriter<File>, columns: &[Tensor], rows: i64) -> Result<()> {
    let numbers = columns.iter().map(Numbers::of).collect::<Result<Vec<_>>>()?;
    for row in 0..rows as usize {
        let of_column = |(column, numbers): (&Tensor, &Numbers)| {
            let width = width(column);
            (row * width..(row + 1) * width).map(|at| numbers.text(at)).collect::<Vec<_>>()
        };
        let line: Vec<String> = columns.iter().zip(&numbers).flat_map(of_column).collect();
        writeln!(file, "{}", line.join(","))?;
    }
    Ok(())
}

fn json_lines(file: &mut BufWriter<File>, names: &[String], columns: &[Tensor], rows: i64) -> Result<()> {
    let numbers = columns.iter().map(Numbers::of).collect::<Result<Vec<_>>>()?;
    for row in 0..rows as usize {
        let mut line = Map::new();
        for ((name, column), numbers) in names.iter().zip(columns).zip(&numbers) {
            let mut next = row * width(column);
            line.insert(name.clone(), nested(&column.size()[1..], &mut next, numbers));
        }
        writeln!(file, "{}", Value::Object(line))?;
    }
    Ok(())
}

fn nested(shape: &[i64], next: &mut usize, numbers: &Numbers) -> Value {
    match shape.split_first() {
        None => {
            *next += 1;
            numbers.json(*next - 1)
        }
        Some((count, inner)) => (0..*count).map(|_| nested(inner, next, numbers)).collect(),
    }
}

/// NumPy's format 1.0 (<https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>).
fn npy_header(column: &Tensor, samples: u64) -> Vec<u8> {
    let dtype = match column.kind() {
        Kind::Int64 => "<i8",
        Kind::Double => "<f8",
        _ => "<f4",
    };
    let sizes: Vec<String> = [samples.to_string()]
        .into_iter()
        .chain(column.size()[1..].iter().map(ToString::to_string))
        .map(|size| format!("{size},"))
        .collect();
    let mut head =
        format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({}), }}", sizes.join(" "));
    const BEFORE: usize = 10;
    while !(BEFORE + head.len() + 1).is_multiple_of(64) {
        head.push(' ');
    }
    head.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((head.len() as u16).to_le_bytes());
    bytes.extend(head.as_bytes());
    bytes
}

fn raw(column: &Tensor) -> Result<Vec<u8>> {
    let mut bytes = vec![0; column.numel() * column.f_kind()?.elt_size_in_bytes()];
    let numbers = column.f_flatten(0, -1)?.f_view_dtype(Kind::Uint8)?;
    numbers.f_copy_data_u8(&mut bytes, numbers.numel())?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_appears_when_all_rows_are_there() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["p.csv", "p.jsonl", "p.npy", "p.safetensors"] {
            let path = folder.path().join(name);
            let mut half = Predictions::new(&path, vec!["net".into()], 4).unwrap();
            half.add(2, &[Tensor::from_slice(&[1.0f32, 2.0])]).unwrap();
            assert!(!path.exists(), "{name}");
            assert_eq!(half.finish().unwrap_err().to_string(), "2 rows of 4 samples");
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "{name}");
        }
        let path = folder.path().join("p.csv");
        let mut whole = Predictions::new(&path, vec!["net".into()], 2).unwrap();
        whole.add(2, &[Tensor::from_slice(&[1.0f64, 0.1])]).unwrap();
        whole.finish().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "net\n1\n0.1\n");
    }

    #[test]
    fn a_column_that_has_no_row_for_each_sample_is_told() {
        let mut to = Predictions::new(Path::new("p.csv"), vec!["net".into()], 8).unwrap();
        let of_batch = to.add(4, &[Tensor::zeros([2, 3], (Kind::Float, Device::Cpu))]).unwrap_err();
        insta::assert_snapshot!(of_batch, @r"
        `net` has the shape [2, 3] for a batch of 4 samples, and predictions have a row for each sample
          hint: have the module keep the samples as the first dimension of its output
        ");
        assert!(to.add(4, &[Tensor::from(1.0)]).is_err());
    }

    #[test]
    fn names_that_a_table_would_misread_are_between_quotes() {
        let several = Tensor::zeros([1, 2], (Kind::Float, Device::Cpu));
        assert_eq!(titles("rent, cold", &several.narrow(1, 0, 1)), ["\"rent, cold\""]);
        assert_eq!(titles("a \"b\"", &several), ["\"a \"\"b\"\"_0\"", "\"a \"\"b\"\"_1\""]);
        assert_eq!(titles("net", &several), ["net_0", "net_1"]);
    }
}
