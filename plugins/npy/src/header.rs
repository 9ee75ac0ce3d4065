//! What the first bytes of an array tell: NumPy's format, versions 1 to 3 (numpy/lib/_format_impl.py).

use pstrain_plugin::{DType, Result, anyhow, bail, ensure};
use std::io::Read;

/// NumPy's own limit is 10,000 bytes.
const LONGEST: usize = 1 << 16;
const MOST_DIMS: usize = 32;
const SAVED: &str = "numpy.save(\"x.npy\", x) writes one";

#[derive(Debug, PartialEq)]
pub struct Header {
    pub dtype: DType,
    pub big_endian: bool,
    /// The samples first.
    pub shape: Vec<u64>,
    /// Where the elements begin.
    pub start: u64,
}

impl Header {
    /// Bytes of one sample, and of all.
    pub fn bytes(&self) -> Result<(u64, u64)> {
        let size =
            |dims: &[u64]| dims.iter().try_fold(self.dtype.size() as u64, |size, &dim| size.checked_mul(dim));
        let (row, all) = (size(&self.shape[1..]), size(&self.shape));
        row.zip(all).ok_or_else(|| anyhow!("it has {:?} elements, which is too many", self.shape))
    }

    /// # Errors
    /// If it is not an array that a tensor can be made of; without the file's name.
    pub fn read(from: &mut impl Read) -> Result<Header> {
        let mut magic = [0; 8];
        let short = |_| anyhow!("it is not an array of NumPy: it ends within its header\nhint: {SAVED}");
        from.read_exact(&mut magic).map_err(short)?;
        ensure!(
            magic.starts_with(b"\x93NUMPY"),
            "it is not an array of NumPy: it begins with {:02x?}\nhint: {SAVED}",
            &magic[..6]
        );
        let version = magic[6];
        ensure!((1..=3).contains(&version), "it is in version {version} of NumPy's format; 1 to 3 are known");
        let mut length = [0; 4];
        let digits = if version == 1 { 2 } else { 4 };
        from.read_exact(&mut length[..digits]).map_err(short)?;
        let length = u32::from_le_bytes(length) as usize;
        ensure!(length <= LONGEST, "its header has {length} bytes; {LONGEST} are possible");
        let mut text = vec![0; length];
        from.read_exact(&mut text).map_err(short)?;
        let text = std::str::from_utf8(&text).map_err(|_| anyhow!("its header is not text"))?;
        Header::parse(text, 8 + digits as u64 + length as u64)
    }

    /// A literal of Python: `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }`.
    fn parse(text: &str, start: u64) -> Result<Header> {
        let after = |key: &str| {
            let at = text.find(&format!("'{key}':")).map(|at| text[at + key.len() + 3..].trim_start());
            at.ok_or_else(|| anyhow!("its header has no `{key}`: {}", shown(text)))
        };
        let descr = after("descr")?;
        let Some(descr) = descr.strip_prefix('\'').and_then(|rest| rest.split('\'').next()) else {
            bail!(
                "it has several values in each place ({})\nhint: save each field as an array of its own",
                shown(descr)
            );
        };
        let (dtype, big_endian) = dtype(descr)?;
        let shape = after("shape")?.strip_prefix('(').and_then(|rest| Some(rest.split_once(')')?.0));
        let shape = shape.ok_or_else(|| anyhow!("its header has no shape: {}", shown(text)))?;
        let dims = shape.split(',').map(str::trim).filter(|dim| !dim.is_empty());
        let dims: Result<Vec<u64>, _> = dims.take(MOST_DIMS + 1).map(str::parse).collect();
        let shape = dims.map_err(|_| anyhow!("its shape is ({shape})"))?;
        ensure!(shape.len() <= MOST_DIMS, "it has more than {MOST_DIMS} dimensions");
        ensure!(
            !shape.is_empty(),
            "it is a single number: the first dimension is to count the samples\nhint: save x.reshape(1)"
        );
        ensure!(
            shape.len() == 1 || after("fortran_order")?.starts_with("False"),
            "its columns lie one after the other (fortran_order)\nhint: save numpy.ascontiguousarray(x)"
        );
        Ok(Header { dtype, big_endian, shape, start })
    }
}

fn dtype(descr: &str) -> Result<(DType, bool)> {
    let (order, kind) = descr.split_at_checked(1).unwrap_or(("", ""));
    let dtype = match kind {
        "b1" => DType::Boolean,
        "u1" => DType::Uint8,
        "i1" => DType::Int8,
        "i2" => DType::Int16,
        "i4" => DType::Int32,
        "i8" => DType::Int64,
        "f2" => DType::Float16,
        "f4" => DType::Float32,
        "f8" => DType::Float64,
        "O" => bail!(
            "it has objects of Python in it, which are not read\nhint: save numbers: x.astype(\"float32\")"
        ),
        _ => bail!(
            "its elements are `{}`, which tensors have not\nhint: save x.astype(\"float32\") or x.astype(\"int64\")",
            shown(descr)
        ),
    };
    ensure!(matches!(order, "<" | ">" | "|" | "="), "its elements are `{}`", shown(descr));
    Ok((dtype, order == ">" && dtype.size() > 1))
}

fn shown(text: &str) -> String {
    text.chars().take(60).collect()
}
