//! One IDX file: two zero bytes, the type, the number of dimensions, the dimensions, the elements, all big-endian.
//! The first dimension counts the samples. (Described at the end of Yann LeCun's page on MNIST.)

use flate2::read::MultiGzDecoder;
use pstrain_plugin::{Context, DType, Error, Result, anyhow, bail, data, ensure};
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom};

/// A plain file above this size stays on disk, and samples are read when they are asked for.
const IN_MEMORY: u64 = 192 << 20;
const MNIST: [&str; 4] = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
];

/// A file whose samples can be read by index.
#[derive(Debug)]
pub struct IdxFile {
    name: String,
    dtype: DType,
    samples: u64,
    /// The shape of one sample.
    shape: Vec<u64>,
    /// Bytes of one sample.
    size: usize,
    elements: Elements,
    /// One sample as it lies in the file, while it is turned into int64.
    raw: Vec<u8>,
}

#[derive(Debug)]
enum Elements {
    Memory(Vec<u8>),
    Disk { file: File, start: u64 },
}

impl IdxFile {
    /// Opens `name`, or the same with `.gz` added or taken off. Whether it is compressed shows in its first bytes.
    ///
    /// # Errors
    /// If it is missing, cut, corrupt, or no IDX file: names it, with what was found and what was wanted.
    pub fn open(name: &str) -> Result<Self> {
        Self::open_keeping(name, IN_MEMORY)
    }

    fn open_keeping(name: &str, in_memory: u64) -> Result<Self> {
        let other = name.strip_suffix(".gz").map_or_else(|| format!("{name}.gz"), str::to_owned);
        let name = data::find(&[name, &other]).map_err(|error| with_hint(error, name))?;
        let mut file = data::open(name)?;
        let length = file.metadata().map(|meta| meta.len()).unwrap_or(0);
        let mut magic = [0; 2];
        let known = file.read_exact(&mut magic).is_ok();
        file.rewind().with_context(|| format!("cannot read `{name}`"))?;
        if known && magic == [0x1f, 0x8b] {
            let mut reader = MultiGzDecoder::new(BufReader::new(file));
            return Header::read(name, &mut reader)?.load(&mut reader, u64::MAX);
        }
        let mut reader = BufReader::new(file);
        let header = Header::read(name, &mut reader)?;
        let found = length.saturating_sub(header.start);
        if header.bytes <= in_memory {
            return header.load(&mut reader, found);
        }
        header.check(found)?;
        let start = header.start;
        header.finish(Elements::Disk { file: reader.into_inner(), start })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The shape of one sample.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Writes the elements of a sample, little-endian.
    ///
    /// # Errors
    /// If the file cannot be read any more.
    pub fn read(&mut self, index: u64, to: &mut [u8]) -> Result<()> {
        ensure!(index < self.samples, "`{}` has no sample {index}: there are {}", self.name, self.samples);
        match &mut self.elements {
            Elements::Memory(bytes) => to.copy_from_slice(&bytes[index as usize * self.size..][..self.size]),
            Elements::Disk { file, start } => {
                let at = *start + index * self.size as u64;
                file.seek(SeekFrom::Start(at))
                    .and_then(|_| file.read_exact(to))
                    .with_context(|| format!("cannot read sample {index} of `{}`", self.name))?;
            }
        }
        if self.dtype.size() > 1 {
            to.chunks_exact_mut(self.dtype.size()).for_each(<[u8]>::reverse);
        }
        Ok(())
    }

    /// Writes the elements of a sample of a whole-number type.
    ///
    /// # Errors
    /// As [`IdxFile::read`].
    pub fn read_integers(&mut self, index: u64, to: &mut [i64]) -> Result<()> {
        let mut raw = std::mem::take(&mut self.raw);
        raw.resize(self.size, 0);
        let read = self.read(index, &mut raw);
        for (number, bytes) in to.iter_mut().zip(raw.chunks_exact(self.dtype.size())) {
            *number = match *bytes {
                [byte] if self.dtype == DType::Int8 => i64::from(byte as i8),
                [byte] => i64::from(byte),
                [a, b] => i64::from(i16::from_le_bytes([a, b])),
                [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
                _ => bail!("`{}` is of {}, which is not an integer type", self.name, self.dtype),
            };
        }
        self.raw = raw;
        read
    }
}

/// What the first bytes tell.
struct Header {
    name: String,
    dtype: DType,
    dims: Vec<u64>,
    /// Where the elements begin, in bytes.
    start: u64,
    /// How many bytes all elements take.
    bytes: u64,
}

impl Header {
    fn read(name: &str, reader: &mut impl Read) -> Result<Self> {
        let mut magic = [0; 4];
        read_header(name, reader, &mut magic)?;
        let [0, 0, kind, rank] = magic else {
            bail!(
                "`{name}` is not an IDX file: it begins with {:02x} {:02x}, and 00 00 is wanted",
                magic[0],
                magic[1]
            );
        };
        let dtype = match kind {
            0x08 => DType::Uint8,
            0x09 => DType::Int8,
            0x0b => DType::Int16,
            0x0c => DType::Int32,
            0x0d => DType::Float32,
            0x0e => DType::Float64,
            _ => bail!(
                "`{name}` is not an IDX file: its type is {kind:02x}, and one of 08 09 0b 0c 0d 0e is wanted"
            ),
        };
        ensure!(rank > 0, "`{name}` has no dimensions: the first one should count the samples");
        let mut dims = Vec::with_capacity(rank.into());
        for _ in 0..rank {
            let mut dim = [0; 4];
            read_header(name, reader, &mut dim)?;
            dims.push(u64::from(u32::from_be_bytes(dim)));
        }
        let start = 4 + 4 * u64::from(rank);
        let bytes = dims.iter().try_fold(dtype.size() as u64, |product, &dim| product.checked_mul(dim));
        let bytes =
            bytes.ok_or_else(|| anyhow!("`{name}` is corrupt: its header tells of {dims:?} elements"))?;
        ensure!(bytes > 0, "`{name}` is empty: its header tells of {dims:?} elements");
        Ok(Header { name: name.to_owned(), dtype, dims, start, bytes })
    }

    /// Reads the elements into memory; `found` is how many bytes there are, if that is known.
    fn load(self, reader: &mut impl Read, found: u64) -> Result<IdxFile> {
        if found != u64::MAX {
            self.check(found)?;
        }
        let mut bytes = Vec::new();
        let reserved = usize::try_from(self.bytes).is_ok_and(|size| bytes.try_reserve_exact(size).is_ok());
        ensure!(
            reserved,
            "`{}` has {} MB of elements, more than the plug-in's memory\nhint: raise `plugins.memory_mb`{}",
            self.name,
            self.bytes.div_ceil(1_000_000),
            if self.name.ends_with(".gz") {
                ", or unpack the file, which is then read bit by bit"
            } else {
                ""
            }
        );
        let corrupt = |error: std::io::Error| match error.kind() {
            ErrorKind::UnexpectedEof => anyhow!("`{}` is cut: its gzip stream has no end", self.name),
            _ => anyhow!("`{}` is corrupt: {error}", self.name),
        };
        reader.take(self.bytes).read_to_end(&mut bytes).map_err(corrupt)?;
        self.check(bytes.len() as u64)?;
        // Reading on makes the decoder compare its checksum.
        let more = std::io::copy(reader, &mut std::io::sink()).map_err(corrupt)?;
        self.check(self.bytes + more)?;
        self.finish(Elements::Memory(bytes))
    }

    fn check(&self, found: u64) -> Result<()> {
        let Header { name, dtype, dims, bytes, .. } = self;
        let dims = dims.iter().map(u64::to_string).collect::<Vec<_>>().join(" x ");
        ensure!(
            found >= *bytes,
            "`{name}` is cut: {dims} {dtype} elements are {bytes} bytes, and it has {found}"
        );
        ensure!(
            found == *bytes,
            "`{name}` is corrupt: {dims} {dtype} elements are {bytes} bytes, and it has {}",
            if found == u64::MAX { "more".to_owned() } else { found.to_string() }
        );
        Ok(())
    }

    fn finish(self, elements: Elements) -> Result<IdxFile> {
        let size = usize::try_from(self.bytes / self.dims[0])
            .map_err(|_| anyhow!("a sample of `{}` is too large: {:?}", self.name, self.dims))?;
        let (samples, shape) = (self.dims[0], self.dims[1..].to_vec());
        Ok(IdxFile { name: self.name, dtype: self.dtype, samples, shape, size, elements, raw: Vec::new() })
    }
}

fn read_header(name: &str, reader: &mut impl Read, bytes: &mut [u8]) -> Result<()> {
    reader.read_exact(bytes).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof => anyhow!("`{name}` is not an IDX file: it ends within the header"),
        _ => anyhow!("`{name}` is corrupt: {error}"),
    })
}

/// Who lacks MNIST is told how to get it; the host says where other files are looked for.
fn with_hint(error: Error, name: &str) -> Error {
    let base = name.rsplit('/').next().unwrap_or(name);
    if MNIST.contains(&base.trim_end_matches(".gz")) {
        return anyhow!(
            "{error}\nhint: `pstrain data fetch mnist` gets it; or set `data.root` to the folder that has it"
        );
    }
    error
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use proptest::prelude::*;
    use std::io::Write;
    use std::path::Path;

    pub fn idx(kind: u8, dims: &[u32], elements: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, kind, dims.len() as u8];
        bytes.extend(dims.iter().flat_map(|dim| dim.to_be_bytes()));
        bytes.extend(elements);
        bytes
    }

    pub fn write_idx(path: &Path, kind: u8, dims: &[u32], elements: &[u8]) {
        std::fs::write(path, idx(kind, dims, elements)).unwrap();
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// Opens a file of these bytes called `x`, or `x.gz` by the name `x`.
    fn open(name: &str, bytes: &[u8]) -> Result<IdxFile, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(name), bytes).unwrap();
        let path = folder.path().join("x").display().to_string();
        IdxFile::open(&path).map_err(|error| error.to_string().replace(&path, "x"))
    }

    #[test]
    fn plain_and_gzip_give_the_same_samples() {
        let bytes = idx(0x08, &[2, 3], &[1, 2, 3, 4, 5, 6]);
        for (name, bytes) in [("x", bytes.clone()), ("x.gz", gzip(&bytes)), ("x", gzip(&bytes))] {
            let mut file = open(name, &bytes).unwrap();
            let mut sample = [0; 3];
            file.read(1, &mut sample).unwrap();
            assert_eq!((file.samples(), file.shape(), sample), (2, &[3][..], [4, 5, 6]));
        }
    }

    #[test]
    fn a_large_plain_file_is_read_bit_by_bit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x").display().to_string();
        write_idx(Path::new(&path), 0x0b, &[3, 1], &[0, 1, 0xff, 0xfe, 0, 3]);
        let mut file = IdxFile::open_keeping(&path, 0).unwrap();
        assert!(matches!(file.elements, Elements::Disk { .. }));
        let mut number = [0];
        for (index, wanted) in [(2, 3), (0, 1), (1, -2)] {
            file.read_integers(index, &mut number).unwrap();
            assert_eq!(number, [wanted]);
        }
        assert_eq!(
            file.read(3, &mut [0; 2]).unwrap_err().to_string(),
            format!("`{path}` has no sample 3: there are 3")
        );
    }

    #[test]
    fn elements_come_out_little_endian() {
        let mut file = open("x", &idx(0x0d, &[1, 1], &1.5f32.to_be_bytes())).unwrap();
        let mut sample = [0; 4];
        file.read(0, &mut sample).unwrap();
        assert_eq!(f32::from_le_bytes(sample), 1.5);
    }

    #[test]
    fn cut_and_corrupt_files_are_named_with_what_was_found() {
        let good = idx(0x08, &[2, 2], &[1, 2, 3, 4]);
        let error = |bytes: &[u8]| open("x", bytes).unwrap_err();
        assert_eq!(error(&good[..11]), "`x` is not an IDX file: it ends within the header");
        assert_eq!(error(&good[..14]), "`x` is cut: 2 x 2 uint8 elements are 4 bytes, and it has 2");
        assert_eq!(
            error(&[&good[..], &[5]].concat()),
            "`x` is corrupt: 2 x 2 uint8 elements are 4 bytes, and it has 5"
        );
        assert_eq!(error(b"PNG file"), "`x` is not an IDX file: it begins with 50 4e, and 00 00 is wanted");
        assert_eq!(error(b""), "`x` is not an IDX file: it ends within the header");
        assert_eq!(
            error(&idx(0x07, &[1], &[1])),
            "`x` is not an IDX file: its type is 07, and one of 08 09 0b 0c 0d 0e is wanted"
        );
        assert_eq!(error(&idx(0x08, &[0, 28], &[])), "`x` is empty: its header tells of [0, 28] elements");
        assert_eq!(
            error(&idx(0x08, &[u32::MAX; 3], &[])),
            "`x` is corrupt: its header tells of [4294967295, 4294967295, 4294967295] elements"
        );
    }

    #[test]
    fn cut_and_corrupt_gzip_files_are_named() {
        let good = gzip(&idx(0x08, &[40, 28], &(0..1120).map(|n| (n * 7 % 251) as u8).collect::<Vec<_>>()));
        assert!(open("x.gz", &good).is_ok());
        assert_eq!(
            open("x.gz", &good[..good.len() / 2]).unwrap_err(),
            "`x.gz` is cut: its gzip stream has no end"
        );
        assert_eq!(
            open("x.gz", &good[..good.len() - 4]).unwrap_err(),
            "`x.gz` is cut: its gzip stream has no end"
        );
        let mut wrong_sum = good.clone();
        let sum = good.len() - 8;
        wrong_sum[sum] ^= 1;
        assert!(open("x.gz", &wrong_sum).unwrap_err().starts_with("`x.gz` is corrupt: "));
        let longer = gzip(&idx(0x08, &[2], &[1, 2, 3]));
        assert_eq!(
            open("x.gz", &longer).unwrap_err(),
            "`x.gz` is corrupt: 2 uint8 elements are 2 bytes, and it has 3"
        );
    }

    #[test]
    fn a_header_that_lies_about_its_size_does_not_take_the_memory() {
        let error = open("x.gz", &gzip(&idx(0x0e, &[u32::MAX, u32::MAX >> 4], &[0]))).unwrap_err();
        assert!(error.contains("more than the plug-in's memory"), "{error}");
    }

    /// All samples of a file that opens can be read.
    fn read_all(file: &mut IdxFile) {
        let size = file.shape().iter().product::<u64>() as usize * file.dtype().size();
        for index in 0..file.samples() {
            file.read(index, &mut vec![0; size]).unwrap();
        }
        assert!(file.read(file.samples(), &mut vec![0; size]).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever the bytes are, they are read or refused; `at` and `byte` spoil one of a good file.
        #[test]
        fn any_file_is_read_or_refused(
            dims in prop::collection::vec(0..5u32, 0..4),
            kind in prop::sample::select(vec![0x08u8, 0x09, 0x0b, 0x0c, 0x0d, 0x0e, 0x0a]),
            elements in prop::collection::vec(any::<u8>(), 0..40),
            at: prop::sample::Index,
            byte: u8,
            cut: prop::sample::Index,
            packed: bool,
        ) {
            let mut bytes = idx(kind, &dims, &elements);
            if packed {
                bytes = gzip(&bytes);
            }
            let length = bytes.len();
            bytes[at.index(length)] = byte;
            bytes.truncate(cut.index(2 * length) + 1);
            match open("x", &bytes) {
                Ok(mut file) => read_all(&mut file),
                Err(error) => prop_assert!(error.contains("`x`"), "{error}"),
            }
        }

        /// What is written is what is read, from memory and from the disk.
        #[test]
        fn whole_numbers_come_back(numbers in prop::collection::vec(any::<i32>(), 1..20), packed: bool) {
            let elements: Vec<u8> = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
            let bytes = idx(0x0c, &[numbers.len() as u32, 1], &elements);
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("x").display().to_string();
            std::fs::write(&path, if packed { gzip(&bytes) } else { bytes }).unwrap();
            for in_memory in [0, IN_MEMORY] {
                let mut file = IdxFile::open_keeping(&path, in_memory).unwrap();
                let read = |index: usize| {
                    let mut number = [0];
                    file.read_integers(index as u64, &mut number).map(|()| number[0])
                };
                let found: Vec<i64> = (0..numbers.len()).map(read).collect::<Result<_>>().unwrap();
                prop_assert_eq!(found, numbers.iter().map(|&number| i64::from(number)).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn missing_mnist_files_come_with_the_command_that_fetches_them() {
        let error = IdxFile::open("train-images-idx3-ubyte").unwrap_err().to_string();
        let names =
            "the data folder has no file `train-images-idx3-ubyte` or `train-images-idx3-ubyte.gz`; it has";
        assert!(error.starts_with(names), "{error}");
        assert!(error.ends_with(
            "\nhint: `pstrain data fetch mnist` gets it; or set `data.root` to the folder that has it"
        ));
    }
}
