//! The parameters that a module starts from, out of a safetensors file.

use std::fs::File;
use std::io::{BufReader, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use c10d::torch_message;
use tch::{Kind, Tensor, no_grad};

use super::dtype::{kind_named, torch_name};
use super::{ModelError, Module};
use crate::job::weights::{self, Dtype, Header, Stored, Wanted};

/// What the file at `path` has. Needs no libtorch.
///
/// # Errors
/// It is missing, cut short or no safetensors file.
pub fn header(path: &Path) -> Result<Header, ModelError> {
    open(path).map(|(_, header)| header).map_err(|message| unread(path, message))
}

pub(super) fn open(path: &Path) -> Result<(File, Header), String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let meta = file.metadata().map_err(|error| error.to_string())?;
    if !meta.is_file() {
        return Err("it is not a regular file".into());
    }
    let header = Header::read(BufReader::new(&file), meta.len())?;
    Ok((file, header))
}

pub(super) fn unread(path: &Path, message: String) -> ModelError {
    ModelError::File { file: path.into(), doing: "read", message }
}

impl Module {
    /// Takes parameters and buffers out of the file at `path`: returns the parameters in the module's order, on their
    /// devices, and keeps the others. Buffers that the file has not stay as they are. Nothing is taken over unless all
    /// of it fits.
    ///
    /// # Errors
    /// The file cannot be read; every tensor that is missing, additional, or of another shape or dtype.
    pub fn start_from(&self, path: &Path) -> Result<Vec<Tensor>, ModelError> {
        let (mut file, header) = open(path).map_err(|message| unread(path, message))?;
        let kept = self.kept();
        let tied = self.tied.iter().map(|(name, _)| name);
        let aliases: Vec<String> = tied.chain(&self.others_names).cloned().collect();
        let wanted: Vec<Wanted> = self
            .parameters()
            .iter()
            .map(|info| wanted(&info.name, &info.shape, info.kind, true))
            .chain(
                kept.iter()
                    .map(|kept| wanted(&kept.name, &kept.tensor.size(), kept.tensor.kind(), kept.fixed)),
            )
            .collect();
        let names = weights::fit(&self.whole_name, &wanted, &aliases, &header)
            .map_err(|problems| ModelError::Weights { file: path.into(), problems })?;
        let mut read = |name: &String| {
            let stored = header.get(name).ok_or_else(|| "it is not there any more".to_owned());
            stored
                .and_then(|stored| tensor(&mut file, stored))
                .map_err(|message| unread(path, format!("tensor `{name}`: {message}")))
        };
        let tensors: Vec<Option<Tensor>> =
            names.iter().map(|name| name.as_ref().map(&mut read).transpose()).collect::<Result<_, _>>()?;
        let (parameters, others) = tensors.split_at(self.parameters().len());
        let mut placed = Vec::new();
        for (info, tensor) in self.parameters().iter().zip(parameters.iter().flatten()) {
            let moved = no_grad(|| tensor.f_to(info.device));
            placed.push(
                moved.map_err(|error| unread(path, format!("`{}`: {}", info.name, torch_message(&error))))?,
            );
        }
        for (mut kept, tensor) in kept.into_iter().zip(others) {
            if let Some(tensor) = tensor {
                no_grad(|| kept.tensor.f_copy_(tensor))
                    .map_err(|error| self.buffer_error("a copy of the buffers", &error))?;
            }
        }
        Ok(placed)
    }
}

fn wanted(name: &str, shape: &[i64], kind: Kind, required: bool) -> Wanted {
    // What safetensors has no word for (complex numbers) is in no file: that is then said as it is missing.
    let dtype = Dtype::named(torch_name(kind)).unwrap_or(Dtype::float32());
    Wanted { name: name.into(), shape: shape.into(), dtype, required }
}

fn tensor(file: &mut File, stored: &Stored) -> Result<Tensor, String> {
    let name = stored.dtype.name();
    let kind = kind_named(name).ok_or(format!("{name} cannot be read"))?;
    let bytes = usize::try_from(stored.len).map_err(|error| error.to_string())?;
    // The header's lengths were compared with the file's, so there is no more to allocate than the file has.
    let mut data = vec![0; bytes];
    file.seek(SeekFrom::Start(stored.start))
        .and_then(|_| file.read_exact(&mut data))
        .map_err(|error| error.to_string())?;
    Tensor::f_from_data_size(&data, &stored.shape, kind).map_err(|error| torch_message(&error))
}
