//! The parameters that a module starts from, out of a safetensors file or a checkpoint.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io::{self, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use c10d::torch_message;
use tch::{Kind, Tensor, no_grad};

use super::dtype::{kind_named, torch_name};
use super::{ModelError, Module};
use crate::files;
use crate::job::weights::{self, Dtype, Header, Scattered, Stored, Wanted, Weights};

/// What the file at `path` has. Needs no libtorch.
///
/// # Errors
/// It is missing, cut short or no safetensors file.
pub fn header(path: &Path) -> Result<Header, ModelError> {
    open(path).map(|(_, header)| header).map_err(|message| unread(path, message))
}

fn open(path: &Path) -> Result<(File, Header), String> {
    let file = files::open_regular(path).map_err(|error| error.to_string())?;
    let meta = file.metadata().map_err(|error| error.to_string())?;
    let header = Header::read(BufReader::new(&file), meta.len())?;
    Ok((file, header))
}

pub(super) fn unread(path: &Path, message: String) -> ModelError {
    ModelError::File { file: path.into(), doing: "read", message }
}

/// Weights that were opened.
pub(super) struct Opened {
    pub header: Header,
    bytes: Bytes,
}

enum Bytes {
    OfFile(File),
    /// With the files of it that were opened.
    OfCheckpoint(Arc<Scattered>, BTreeMap<PathBuf, File>),
}

impl Opened {
    pub fn open(weights: &Weights) -> Result<Opened, String> {
        if let Some(scattered) = &weights.scattered {
            let bytes = Bytes::OfCheckpoint(scattered.clone(), BTreeMap::new());
            return Ok(Opened { header: scattered.header().clone(), bytes });
        }
        let (file, header) = open(&weights.path)?;
        Ok(Opened { header, bytes: Bytes::OfFile(file) })
    }

    /// Fills `buffer` with what stands from byte `at` on.
    pub fn read_at(&mut self, mut buffer: &mut [u8], at: u64) -> io::Result<()> {
        let (scattered, opened) = match &mut self.bytes {
            Bytes::OfFile(file) => return file.read_exact_at(buffer, at),
            Bytes::OfCheckpoint(scattered, opened) => (scattered, opened),
        };
        for (path, start, len) in scattered.find(at, buffer.len() as u64) {
            let file = match opened.entry(path.into()) {
                Entry::Occupied(file) => file.into_mut(),
                Entry::Vacant(vacant) => vacant.insert(files::open_regular(path)?),
            };
            let (piece, rest) = buffer.split_at_mut(len as usize);
            file.read_exact_at(piece, start)?;
            buffer = rest;
        }
        if buffer.is_empty() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }
}

impl Module {
    /// Takes parameters and buffers out of `weights`: returns the parameters in the module's order, on their
    /// devices, and keeps the others. Buffers that are not in there stay as they are. Nothing is taken over unless all
    /// of it fits.
    ///
    /// # Errors
    /// They cannot be read; every tensor that is missing, additional, or of another shape or dtype.
    pub fn start_from(&self, weights: &Weights) -> Result<Vec<Tensor>, ModelError> {
        let path = &weights.path;
        let mut opened = Opened::open(weights).map_err(|message| unread(path, message))?;
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
        let names = weights::fit(&self.whole_name, &wanted, &aliases, &opened.header)
            .map_err(|problems| ModelError::Weights { file: path.into(), problems })?;
        let mut read = |name: &String| {
            let stored = opened.header.get(name).cloned();
            stored
                .ok_or_else(|| "it is not there any more".to_owned())
                .and_then(|stored| tensor(&mut opened, &stored))
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

fn tensor(opened: &mut Opened, stored: &Stored) -> Result<Tensor, String> {
    let name = stored.dtype.name();
    let kind = kind_named(name).ok_or(format!("{name} cannot be read"))?;
    let bytes = usize::try_from(stored.len).map_err(|error| error.to_string())?;
    // The header's lengths were compared with the file's, so there is no more to allocate than the file has.
    let mut data = vec![0; bytes];
    opened.read_at(&mut data, stored.start).map_err(|error| error.to_string())?;
    Tensor::f_from_data_size(&data, &stored.shape, kind).map_err(|error| torch_message(&error))
}
