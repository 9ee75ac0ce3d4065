//! Where each tensor of a safetensors file lies, known before any of them is written.
//!
//! The format (<https://huggingface.co/docs/safetensors>): the length of the header in 8 bytes, the header as JSON, and
//! the tensors' bytes one after the other, each at the place that the header gives it.

use c10d::torch_message;
use tch::{Device, Kind, TchError, Tensor, no_grad};

/// A tensor of the file: what the header says of it.
#[derive(Clone, Debug)]
pub struct Region {
    pub name: String,
    pub kind: Kind,
    pub shape: Vec<i64>,
}

/// The beginning of a file, and what follows it.
#[derive(Debug)]
pub struct Layout {
    pub(super) head: Vec<u8>,
    /// In the order of the file.
    pub(super) places: Vec<TensorSpan>,
}

/// A tensor's: bytes from the beginning of the file.
#[derive(Debug)]
pub(super) struct TensorSpan {
    pub region: Region,
    pub start: u64,
    pub end: u64,
}

/// The bytes of one write.
const BUFFER_BYTES: usize = 1 << 20;

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

impl Layout {
    /// `metadata`: about the whole file, by name.
    ///
    /// # Errors
    /// A tensor is of a dtype that safetensors has not.
    pub fn new(mut regions: Vec<Region>, metadata: &[(&str, String)]) -> Result<Layout, String> {
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
            let dtype = dtype(region.kind)
                .ok_or_else(|| format!("tensor `{}`: safetensors has no {:?}", region.name, region.kind))?;
            let end = at.saturating_add(region.bytes());
            let entry =
                serde_json::json!({ "dtype": dtype, "shape": region.shape, "data_offsets": [at, end] });
            header.insert(region.name.clone(), entry);
            places.push(TensorSpan { region, start: at, end });
            at = end;
        }
        let mut text = serde_json::Value::Object(header).to_string().into_bytes();
        text.resize(text.len().next_multiple_of(8), b' ');
        let mut head = (text.len() as u64).to_le_bytes().to_vec();
        head.append(&mut text);
        let start = head.len() as u64;
        for place in &mut places {
            (place.start, place.end) = (place.start + start, place.end + start);
        }
        Ok(Layout { head, places })
    }

    /// The size of the whole file.
    pub fn bytes(&self) -> u64 {
        self.places.last().map_or(self.head.len() as u64, |last| last.end)
    }

    /// The names of the tensors, in the order of the file.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.iter().map(|place| place.region.name.as_str())
    }
}

impl TensorSpan {
    /// What may come of it from byte `next` on: `tensor`, as plain numbers.
    pub(super) fn take(&self, tensor: &Tensor, next: u64) -> Result<Tensor, String> {
        let flat = no_grad(|| plain(tensor)).map_err(|error| torch_message(&error))?;
        let kind = flat.f_kind().map_err(|error| torch_message(&error))?;
        let bytes = (flat.numel() * kind.elt_size_in_bytes()) as u64;
        let (wanted, left) = (self.region.kind, self.end - next);
        if kind != wanted || bytes > left {
            return Err(format!("{bytes} bytes of {kind:?} came where {left} of {wanted:?} are left"));
        }
        Ok(flat)
    }
}

/// The bytes of a plain tensor, one buffer after another.
pub(super) fn in_buffers(
    flat: &Tensor,
    mut write: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> Result<(), String> {
    let (size, numbers) = (flat.kind().elt_size_in_bytes(), flat.numel());
    let mut buffer = vec![0; BUFFER_BYTES.min(numbers * size)];
    for start in (0..numbers).step_by(BUFFER_BYTES / size) {
        let count = (BUFFER_BYTES / size).min(numbers - start);
        let piece = &mut buffer[..count * size];
        let part = flat.f_narrow(0, start as i64, count as i64);
        let copied = part.and_then(|part| part.f_copy_data_u8(piece, count));
        copied.map_err(|error| torch_message(&error))?;
        write(piece).map_err(|error| error.to_string())?;
    }
    Ok(())
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
