//! A safetensors file that is written piece by piece, so that a table need not be in memory to be saved. Its tensors may grow side
//! by side.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use c10d::finite::{NotFinite, not_finite};
use c10d::torch_message;
use tch::Tensor;

use super::ModelError;
use super::tensor_layout::{Layout, Region, TensorSpan, in_buffers};

/// A file whose header is written and whose tensors are filled from their starts.
pub struct TensorFile {
    path: PathBuf,
    file: File,
    tensors: Vec<Filled>,
}

struct Filled {
    place: TensorSpan,
    not_finite: Option<NotFinite>,
    /// Where the next numbers go.
    next: u64,
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
        let layout = Layout::new(regions, &[]).map_err(|message| failed(path, message))?;
        file.write_all_at(&layout.head, 0).map_err(|error| failed(path, error.to_string()))?;
        let filled = |place: TensorSpan| Filled { not_finite: None, next: place.start, place };
        let tensors = layout.places.into_iter().map(filled).collect();
        Ok(TensorFile { path: path.into(), file, tensors })
    }

    /// Writes the next numbers of the tensor `name`: all of `tensor`, in order. It may be of any shape, layout and device.
    ///
    /// # Errors
    /// The file cannot be written; there is no such tensor, it is of another dtype, or it has no room for so many.
    pub fn append(&mut self, name: &str, tensor: &Tensor) -> Result<(), ModelError> {
        let wrong = |message: String| failed(&self.path, format!("tensor `{name}`: {message}"));
        let filled = self.tensors.iter_mut().find(|filled| filled.place.region.name == name);
        let filled = filled.ok_or_else(|| wrong("it is not in the header".into()))?;
        let flat = filled.place.take(tensor, filled.next).map_err(wrong)?;
        let mut at = filled.next;
        let written = in_buffers(&flat, |piece| {
            self.file.write_all_at(piece, at)?;
            at += piece.len() as u64;
            Ok(())
        });
        written.map_err(wrong)?;
        let odd = not_finite(&flat).map_err(|error| wrong(torch_message(&error)))?;
        filled.next = at;
        // NaN is the worse of the two.
        filled.not_finite = if odd == Some(NotFinite::Nan) { odd } else { filled.not_finite.or(odd) };
        Ok(())
    }

    /// Tells which tensors have numbers that are not finite.
    ///
    /// # Errors
    /// A tensor is not complete.
    pub fn finish(self) -> Result<Vec<(String, NotFinite)>, ModelError> {
        match self.tensors.iter().find(|filled| filled.next != filled.place.end) {
            None => {
                let odd = self.tensors.into_iter();
                Ok(odd.filter_map(|filled| Some((filled.place.region.name, filled.not_finite?))).collect())
            }
            Some(Filled { place, next, .. }) => {
                let (name, left) = (&place.region.name, place.end - next);
                Err(failed(&self.path, format!("tensor `{name}`: {left} bytes are missing")))
            }
        }
    }
}

fn failed(path: &Path, message: String) -> ModelError {
    ModelError::File { file: path.into(), doing: "written", message }
}
