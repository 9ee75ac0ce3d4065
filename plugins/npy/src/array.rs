//! Arrays in files, in memory or read row by row.

use crate::header::Header;
use pstrain_plugin::{Context, DType, Result, anyhow, data, ensure};
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use zip::{CompressionMethod, ZipArchive};

/// An array whose rows can be read.
pub struct Array {
    /// As errors call it.
    place: String,
    pub name: String,
    header: Header,
    /// Bytes of one row.
    size: usize,
    elements: Elements,
}

enum Elements {
    Memory(Vec<u8>),
    Disk { file: File, start: u64 },
}

/// Members of one file.
const MOST_ARRAYS: usize = 64;

/// The arrays of a file, by name: of an .npy file its own, without the ending; of an .npz file its members. `room`: bytes that
/// may stay in memory, of which those that do are taken.
///
/// # Errors
/// Names the file, and what is wrong with it.
pub fn open(path: &str, room: &mut u64) -> Result<Vec<Array>> {
    let mut file = data::open(path)?;
    let length = file.metadata().with_context(|| format!("cannot read `{path}`"))?.len();
    let mut magic = [0; 2];
    let is_archive = file.read_exact(&mut magic).is_ok() && magic == *b"PK";
    file.rewind().with_context(|| format!("cannot read `{path}`"))?;
    if !is_archive {
        let base = path.rsplit('/').next().unwrap_or(path);
        let name = base.strip_suffix(".npy").unwrap_or(base);
        return Ok(vec![plain(format!("`{path}`"), name, file, 0, length, room)?]);
    }
    let broken = |error: zip::result::ZipError| anyhow!("`{path}` is broken: {error}");
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(broken)?;
    ensure!(
        archive.len() <= MOST_ARRAYS,
        "`{path}` has {} arrays; {MOST_ARRAYS} are possible",
        archive.len()
    );
    (0..archive.len())
        .map(|at| {
            let mut member = archive.by_index(at).map_err(broken)?;
            let called = String::from_utf8_lossy(member.name_raw()).into_owned();
            let name = called.strip_suffix(".npy").unwrap_or(&called).to_owned();
            let place = format!("`{path}`, array `{name}`");
            if member.compression() == CompressionMethod::Stored {
                let start = member.data_start().with_context(|| format!("{place}: it has no beginning"))?;
                let size = member.size();
                ensure!(start.checked_add(size).is_some_and(|end| end <= length), "{place}: it is cut");
                return plain(place, &name, data::open(path)?, start, size, room);
            }
            let size = member.size();
            let header = Header::read(&mut member).map_err(|error| anyhow!("{place}: {error}"))?;
            packed(place, &name, header, &mut member, size, room)
        })
        .collect()
}

/// An array that lies in `file` from `start` on, as it is.
fn plain(
    place: String,
    name: &str,
    mut file: File,
    start: u64,
    length: u64,
    room: &mut u64,
) -> Result<Array> {
    let named = |error: pstrain_plugin::Error| anyhow!("{place}: {error}");
    file.seek(SeekFrom::Start(start)).map_err(|error| named(error.into()))?;
    let header = Header::read(&mut BufReader::new(&mut file).take(length)).map_err(named)?;
    let (row, all) = header.bytes().map_err(named)?;
    check_length(&place, &header, all, length.saturating_sub(header.start))?;
    let start = start + header.start;
    let elements = if all <= *room {
        *room -= all;
        let mut bytes = vec![0; all as usize];
        file.seek(SeekFrom::Start(start))
            .and_then(|_| file.read_exact(&mut bytes))
            .map_err(|error| named(error.into()))?;
        Elements::Memory(bytes)
    } else {
        Elements::Disk { file, start }
    };
    Ok(Array { place, name: name.to_owned(), header, size: row as usize, elements })
}

/// A compressed array has to be in memory.
fn packed(
    place: String,
    name: &str,
    header: Header,
    member: &mut impl Read,
    length: u64,
    room: &mut u64,
) -> Result<Array> {
    let (row, all) = header.bytes().map_err(|error| anyhow!("{place}: {error}"))?;
    check_length(&place, &header, all, length.saturating_sub(header.start))?;
    let mut bytes = Vec::new();
    let fits = usize::try_from(all).is_ok_and(|size| bytes.try_reserve_exact(size).is_ok());
    ensure!(
        fits,
        "{place}: its {} MB do not fit into the plug-in's memory\n\
         hint: numpy.savez does not compress, and then rows are read from the disk; or raise `plugins.memory_mb`",
        all.div_ceil(1_000_000)
    );
    *room = room.saturating_sub(all);
    member.take(all).read_to_end(&mut bytes).map_err(|error| anyhow!("{place}: it is broken: {error}"))?;
    check_length(&place, &header, all, bytes.len() as u64)?;
    Ok(Array { place, name: name.to_owned(), header, size: row as usize, elements: Elements::Memory(bytes) })
}

fn check_length(place: &str, header: &Header, wanted: u64, found: u64) -> Result<()> {
    let Header { shape, dtype, .. } = header;
    ensure!(
        found >= wanted,
        "{place}: it is cut: {shape:?} elements of {dtype} are {wanted} bytes, and it has {found}\nhint: copy it here once more"
    );
    Ok(())
}

impl Array {
    pub fn place(&self) -> &str {
        &self.place
    }

    pub fn dtype(&self) -> DType {
        self.header.dtype
    }

    pub fn samples(&self) -> u64 {
        self.header.shape[0]
    }

    /// The shape of one sample.
    pub fn shape(&self) -> &[u64] {
        &self.header.shape[1..]
    }

    /// Writes the elements of a sample, little-endian.
    ///
    /// # Errors
    /// If the file has changed.
    pub fn read(&mut self, index: u64, to: &mut [u8]) -> Result<()> {
        let Array { place, header, size, elements, .. } = self;
        ensure!(index < header.shape[0], "{place}: there is no sample {index}");
        match elements {
            Elements::Memory(bytes) => to.copy_from_slice(&bytes[index as usize * *size..][..*size]),
            Elements::Disk { file, start } => {
                file.seek(SeekFrom::Start(*start + index * *size as u64))
                    .and_then(|_| file.read_exact(to))
                    .with_context(|| format!("{place}: cannot read sample {index}"))?;
            }
        }
        if header.big_endian {
            to.chunks_exact_mut(header.dtype.size()).for_each(<[u8]>::reverse);
        }
        if header.dtype == DType::Boolean {
            to.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        Ok(())
    }
}
