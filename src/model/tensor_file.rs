//! A safetensors file that is written piece by piece, so that a table need not be in memory to be saved.
//!
//! The format (<https://huggingface.co/docs/safetensors>): the length of the header in 8 bytes, the header as JSON, and
//! the tensors' bytes one after the other, each at the place that the header gives it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use c10d::finite::{NotFinite, not_finite};
use c10d::torch_message;
use tch::{Device, Kind, TchError, Tensor, no_grad};

use super::ModelError;

/// A tensor of the file: what the header says of it.
#[derive(Clone, Debug)]
pub struct Region {
    pub name: String,
    pub kind: Kind,
    pub shape: Vec<i64>,
}

/// A file whose header is written and whose tensors are filled from their starts.
pub struct TensorFile {
    path: PathBuf,
    file: File,
    places: Vec<Place>,
}

struct Place {
    region: Region,
    not_finite: Option<NotFinite>,
    /// Where the next numbers go, and where the tensor ends.
    next: u64,
    end: u64,
}

/// Of one write.
const BUFFER_BYTES: usize = 8 << 20;

impl Region {
    pub fn of(name: &str, tensor: &Tensor) -> Region {
        Region { name: name.into(), kind: tensor.kind(), shape: tensor.size() }
    }

    fn bytes(&self) -> u64 {
        self.shape
            .iter()
            .fold(self.kind.elt_size_in_bytes() as u64, |bytes, size| bytes.saturating_mul(*size as u64))
    }
}

impl TensorFile {
    /// # Errors
    /// The file cannot be written, or a tensor is of a dtype that safetensors has not.
    pub fn create(path: &Path, regions: Vec<Region>) -> Result<TensorFile, ModelError> {
        let file = File::create(path).map_err(|error| failed(path, error.to_string()))?;
        TensorFile::begin(file, path, regions)
    }

    /// In an empty file, which messages call `path`.
    ///
    /// # Errors
    /// As [`TensorFile::create`].
    pub fn begin(file: File, path: &Path, regions: Vec<Region>) -> Result<TensorFile, ModelError> {
        TensorFile::begin_with(file, path, regions, &[])
    }

    /// As [`TensorFile::begin`], with `metadata` about the whole file, by name.
    ///
    /// # Errors
    /// As [`TensorFile::create`].
    pub fn begin_with(
        file: File,
        path: &Path,
        mut regions: Vec<Region>,
        metadata: &[(&str, String)],
    ) -> Result<TensorFile, ModelError> {
        let failed = |message: String| failed(path, message);
        // Numbers stand at multiples of their size, for readers that map the file.
        regions.sort_by(|a, b| {
            (b.kind.elt_size_in_bytes(), &a.name).cmp(&(a.kind.elt_size_in_bytes(), &b.name))
        });
        let mut header = serde_json::Map::new();
        if !metadata.is_empty() {
            let metadata = metadata.iter().map(|(name, text)| ((*name).to_owned(), text.as_str().into()));
            header.insert("__metadata__".into(), serde_json::Value::Object(metadata.collect()));
        }
        let (mut places, mut at) = (Vec::new(), 0u64);
        for region in regions {
            let dtype = dtype(region.kind).ok_or_else(|| {
                failed(format!("tensor `{}`: safetensors has no {:?}", region.name, region.kind))
            })?;
            let end = at.saturating_add(region.bytes());
            let entry =
                serde_json::json!({ "dtype": dtype, "shape": region.shape, "data_offsets": [at, end] });
            header.insert(region.name.clone(), entry);
            places.push(Place { region, not_finite: None, next: at, end });
            at = end;
        }
        let mut head = serde_json::Value::Object(header).to_string().into_bytes();
        head.resize(head.len().next_multiple_of(8), b' ');
        let start = 8 + head.len() as u64;
        for place in &mut places {
            (place.next, place.end) = (place.next + start, place.end + start);
        }
        let length = (head.len() as u64).to_le_bytes();
        let written = file.write_all_at(&length, 0).and_then(|()| file.write_all_at(&head, 8));
        written.map_err(|error| failed(error.to_string()))?;
        Ok(TensorFile { path: path.into(), file, places })
    }

    /// Writes the next numbers of the tensor `name`: all of `tensor`, in order. It may be of any shape, layout and device.
    ///
    /// # Errors
    /// The file cannot be written; there is no such tensor, it is of another dtype, or it has no room for so many.
    pub fn append(&mut self, name: &str, tensor: &Tensor) -> Result<(), ModelError> {
        let wrong = |message: String| failed(&self.path, format!("tensor `{name}`: {message}"));
        let torch = |error: TchError| wrong(torch_message(&error));
        let place = self.places.iter().position(|place| place.region.name == name);
        let place = place.ok_or_else(|| wrong("it is not in the header".into()))?;
        let flat = no_grad(|| plain(tensor)).map_err(torch)?;
        let (kind, size) = (flat.f_kind().map_err(torch)?, flat.kind().elt_size_in_bytes());
        let Place { region, next, end, .. } = &self.places[place];
        let bytes = (flat.numel() * size) as u64;
        if kind != region.kind || bytes > end - next {
            let (wanted, left) = (region.kind, end - next);
            return Err(wrong(format!("{bytes} bytes of {kind:?} came where {left} of {wanted:?} are left")));
        }
        let (mut at, numbers) = (*next, flat.numel());
        let mut buffer = vec![0; BUFFER_BYTES.min(numbers * size)];
        for start in (0..numbers).step_by(BUFFER_BYTES / size) {
            let count = (BUFFER_BYTES / size).min(numbers - start);
            let piece = &mut buffer[..count * size];
            let part = flat.f_narrow(0, start as i64, count as i64).map_err(torch)?;
            part.f_copy_data_u8(piece, count).map_err(torch)?;
            self.file.write_all_at(piece, at).map_err(|error| wrong(error.to_string()))?;
            at += piece.len() as u64;
        }
        let odd = not_finite(&flat).map_err(torch)?;
        let place = &mut self.places[place];
        place.next = at;
        // NaN is the worse of the two.
        place.not_finite = if odd == Some(NotFinite::Nan) { odd } else { place.not_finite.or(odd) };
        Ok(())
    }

    /// Tells which tensors have numbers that are not finite.
    ///
    /// # Errors
    /// A tensor is not complete.
    pub fn finish(self) -> Result<Vec<(String, NotFinite)>, ModelError> {
        match self.places.iter().find(|place| place.next != place.end) {
            None => {
                let odd = self.places.into_iter();
                Ok(odd.filter_map(|place| Some((place.region.name, place.not_finite?))).collect())
            }
            Some(place) => {
                let (name, left) = (&place.region.name, place.end - place.next);
                Err(failed(&self.path, format!("tensor `{name}`: {left} bytes are missing")))
            }
        }
    }
}

fn failed(path: &Path, message: String) -> ModelError {
    ModelError::File { file: path.into(), doing: "written", message }
}

/// Dense, on the CPU and in one dimension.
fn plain(tensor: &Tensor) -> Result<Tensor, TchError> {
    let dense = if tensor.is_sparse() { tensor.f_to_dense(None, false)? } else { tensor.f_detach()? };
    dense.f_to(Device::Cpu)?.f_contiguous()?.f_view(-1)
}

/// As the format calls it.
fn dtype(kind: Kind) -> Option<&'static str> {
    Some(match kind {
        Kind::Bool => "BOOL",
        Kind::Uint8 => "U8",
        Kind::Int8 => "I8",
        Kind::Int16 => "I16",
        Kind::Int => "I32",
        Kind::Int64 => "I64",
        Kind::Half => "F16",
        Kind::BFloat16 => "BF16",
        Kind::Float => "F32",
        Kind::Double => "F64",
        _ => return None,
    })
}
