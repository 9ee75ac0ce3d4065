//! The tensors that a module may start from: what a safetensors file has, and whether a module can take it.
//!
//! A checkpoint has them in several files, and is looked at as one ([`Scattered`]).
//!
//! Only the file's header is read here, from whoever has opened it. It is taken for hostile: its length is bounded before
//! anything is allocated, and each tensor has to lie where its shape and dtype say, without gaps and inside the file
//! (<https://huggingface.co/docs/safetensors>, "Format").
//!
//! The crate `safetensors`, by which libtorch's tensors are loaded, is no substitute: it wants the bytes of the whole file,
//! says of most errors neither which tensor is wrong nor how, and refuses a file for a dtype that is unknown to it in a
//! tensor that nobody asks for.

mod fit;
mod rows;
mod scattered;

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use serde::Deserialize;

use crate::human::cut;

pub use fit::{Problem, Wanted, fit, wanted_by_layers};
pub use rows::{StoredRows, fit_rows};
pub use scattered::{Piece, Scattered, Weights};

/// Bytes of the largest header that is read: a hundred thousand tensors and more.
pub const LARGEST_HEADER: u64 = 16 << 20;

/// The most dimensions of a tensor, PyTorch's own limit.
const MOST_DIMENSIONS: usize = 64;

/// Characters of the longest message about a tensor: whatever stands in a file, nobody reads more of it.
const LONGEST_MESSAGE: usize = 400;

/// Bytes of the longest name of a tensor: messages show it, and similar ones are looked for.
const LONGEST_NAME: usize = 1024;

/// Bytes of the longest name of a dtype, those included that this version does not know.
const LONGEST_DTYPE: usize = 32;

/// What a safetensors file has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Shared by all who start from one file.
    tensors: Arc<BTreeMap<String, Stored>>,
}

/// Where a tensor lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub dtype: Dtype,
    pub shape: Vec<i64>,
    /// Bytes from the beginning of the file, and how many.
    pub start: u64,
    pub len: u64,
}

/// As safetensors spells it; not all of them can be trained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dtype(String);

/// Those of parameters and buffers, by PyTorch's names.
const DTYPES: [(&str, &str, u64); 13] = [
    ("BOOL", "bool", 1),
    ("U8", "uint8", 1),
    ("I8", "int8", 1),
    ("I16", "int16", 2),
    ("U16", "uint16", 2),
    ("F16", "float16", 2),
    ("BF16", "bfloat16", 2),
    ("I32", "int32", 4),
    ("U32", "uint32", 4),
    ("F32", "float32", 4),
    ("F64", "float64", 8),
    ("I64", "int64", 8),
    ("U64", "uint64", 8),
];

impl Dtype {
    pub fn float32() -> Dtype {
        Dtype("F32".into())
    }

    pub fn int64() -> Dtype {
        Dtype("I64".into())
    }

    /// By PyTorch's name; none that safetensors has not.
    pub fn named(name: &str) -> Option<Dtype> {
        DTYPES.iter().find(|(_, torch, _)| *torch == name).map(|(own, ..)| Dtype((*own).into()))
    }

    /// PyTorch's name, or safetensors' for one that this version does not know.
    pub fn name(&self) -> &str {
        self.entry().map_or(&self.0, |(_, torch, _)| torch)
    }

    fn bytes(&self) -> Option<u64> {
        self.entry().map(|(.., bytes)| *bytes)
    }

    fn entry(&self) -> Option<&'static (&'static str, &'static str, u64)> {
        DTYPES.iter().find(|(own, ..)| *own == self.0)
    }
}

#[derive(Deserialize)]
struct HeaderEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl Header {
    /// From the beginning of a file of `file_len` bytes.
    ///
    /// # Errors
    /// Why it is not a safetensors file, or not a whole one.
    pub fn read(mut file: impl Read, file_len: u64) -> Result<Header, String> {
        let mut length = [0; 8];
        file.read_exact(&mut length)
            .map_err(|error| format!("it is not a valid safetensors file: {error}"))?;
        let length = u64::from_le_bytes(length);
        let room = file_len.saturating_sub(8);
        if length > room {
            return Err(format!(
                "it is not a valid safetensors file, or cut short: a header of {length} bytes in a file of {file_len}"
            ));
        }
        if length > LARGEST_HEADER {
            return Err(format!("its header has {length} bytes; the limit is {LARGEST_HEADER}"));
        }
        let mut text = vec![0; length as usize];
        file.read_exact(&mut text).map_err(|error| format!("its header cannot be read: {error}"))?;
        let mut entries: BTreeMap<String, serde_json::Value> =
            serde_json::from_slice(&text).map_err(|error| {
                let error = cut(&error.to_string(), LONGEST_MESSAGE);
                format!("it is not a valid safetensors file: its header is not a table: {error}")
            })?;
        // Notes of whoever wrote it.
        entries.remove("__metadata__");
        let (first, end) = (8 + length, room - length);
        let tensors =
            entries.into_iter().map(|(name, entry)| Ok((name.clone(), stored(&name, entry, first)?)));
        let header = Header { tensors: Arc::new(tensors.collect::<Result<_, String>>()?) };
        header.without_gaps(first, first + end)?;
        Ok(header)
    }

    pub fn get(&self, name: &str) -> Option<&Stored> {
        self.tensors.get(name)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.tensors.keys().map(String::as_str)
    }

    /// The tensors fill the file from `start` to `end`, one after another.
    fn without_gaps(&self, start: u64, end: u64) -> Result<(), String> {
        let mut places: Vec<(u64, u64, &str)> =
            self.tensors.iter().map(|(name, stored)| (stored.start, stored.len, name.as_str())).collect();
        places.sort_unstable();
        let mut at = start;
        for (start, len, name) in places {
            if start != at {
                return Err(format!("its tensor `{name}` does not lie behind the one before it"));
            }
            // No overflow: `stored` has added the two before.
            at = start + len;
        }
        if at == end {
            return Ok(());
        }
        Err(format!("it is cut short or damaged: its tensors end at byte {at}, the file at {end}"))
    }
}

fn stored(name: &str, entry: serde_json::Value, first: u64) -> Result<Stored, String> {
    if name.len() > LONGEST_NAME {
        return Err(format!(
            "the name of one of its tensors has {} bytes; the limit is {LONGEST_NAME}",
            name.len()
        ));
    }
    let wrong = |what: String| format!("its tensor `{name}` {}", cut(&what, LONGEST_MESSAGE));
    let entry: HeaderEntry =
        serde_json::from_value(entry).map_err(|error| wrong(format!("is not valid: {error}")))?;
    if entry.shape.len() > MOST_DIMENSIONS {
        return Err(wrong(format!("has {} dimensions; the limit is {MOST_DIMENSIONS}", entry.shape.len())));
    }
    if entry.dtype.len() > LONGEST_DTYPE {
        return Err(wrong(format!("has a dtype of {} letters", entry.dtype.len())));
    }
    let dtype = Dtype(entry.dtype);
    let [begin, end] = entry.data_offsets;
    let len = end.checked_sub(begin).ok_or_else(|| wrong(format!("ends at {end}, before it begins")))?;
    let bytes = dtype
        .bytes()
        .map(|bytes| entry.shape.iter().try_fold(bytes, |product: u64, size| product.checked_mul(*size)));
    if let Some(bytes) = bytes.filter(|bytes| *bytes != Some(len)) {
        let takes = bytes.map_or("more than 2^64".into(), |bytes| bytes.to_string());
        return Err(wrong(format!("of shape {:?} takes {takes} bytes, and the file has {len}", entry.shape)));
    }
    let sizes = entry.shape.iter().map(|size| i64::try_from(*size));
    let shape = sizes.collect::<Result<_, _>>().map_err(|_| wrong("has a size above 2^63".into()))?;
    let start = first.checked_add(begin).filter(|start| start.checked_add(len).is_some());
    Ok(Stored { dtype, shape, start: start.ok_or_else(|| wrong("lies behind any file's end".into()))?, len })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(json: &str, data: usize) -> Vec<u8> {
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend(json.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<Header, String> {
        Header::read(bytes, bytes.len() as u64)
    }

    const ONE: &str =
        r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}"#;

    #[test]
    fn a_header_says_what_lies_where() {
        let header = read(&file(ONE, 24)).unwrap();
        let stored = header.get("a").unwrap();
        assert_eq!((stored.dtype.name(), stored.shape.as_slice(), stored.len), ("float32", &[2, 3][..], 24));
        assert_eq!(stored.start, 8 + ONE.len() as u64);
        assert_eq!(header.names().collect::<Vec<_>>(), ["a"]);
    }

    #[test]
    fn what_is_cut_or_foreign_is_told_and_nothing_large_is_allocated() {
        let whole = file(ONE, 24);
        for length in 0..whole.len() {
            assert!(read(&whole[..length]).is_err(), "{length} bytes");
        }
        assert!(read(&[255; 64]).unwrap_err().starts_with(
            "it is not a valid safetensors file, or cut short: a header of 18446744073709551615"
        ));
        let mut boast = ((LARGEST_HEADER + 1).to_le_bytes()).to_vec();
        boast.extend([b' '; 8]);
        let error = Header::read(boast.as_slice(), u64::MAX).unwrap_err();
        assert_eq!(error, "its header has 16777217 bytes; the limit is 16777216");
    }

    #[test]
    fn tensors_that_lie_about_their_place_are_refused() {
        let one = |entry: &str, data: usize| read(&file(&format!("{{\"a\":{entry}}}"), data)).unwrap_err();
        let entry = |shape: &str, offsets: &str| {
            format!(r#"{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}"#)
        };
        insta::assert_snapshot!(one(&entry("[2]", "[0,4]"), 4), @"its tensor `a` of shape [2] takes 8 bytes, and the file has 4");
        insta::assert_snapshot!(one(&entry("[1]", "[4,0]"), 4), @"its tensor `a` ends at 0, before it begins");
        insta::assert_snapshot!(one(&entry("[1]", "[4,8]"), 8), @"its tensor `a` does not lie behind the one before it");
        insta::assert_snapshot!(one(&entry("[1]", "[0,4]"), 8), @"it is cut short or damaged: its tensors end at byte 66, the file at 70");
        insta::assert_snapshot!(one(&entry("[4294967296,4294967296,2]", "[0,4]"), 4), @"its tensor `a` of shape [4294967296, 4294967296, 2] takes more than 2^64 bytes, and the file has 4");
        insta::assert_snapshot!(one(&entry("[1]", "[18446744073709551612,18446744073709551615]"), 4), @"its tensor `a` of shape [1] takes 4 bytes, and the file has 3");
        insta::assert_snapshot!(one(&entry("[-1]", "[0,4]"), 4), @"its tensor `a` is not valid: invalid value: integer `-1`, expected u64");
        let long = format!(r#"{{"{}":7}}"#, "a".repeat(2000));
        insta::assert_snapshot!(read(&file(&long, 0)).unwrap_err(), @"the name of one of its tensors has 2000 bytes; the limit is 1024");
        let deep = format!("[{}1]", "1,".repeat(100_000));
        insta::assert_snapshot!(one(&entry(&deep, "[0,4]"), 4), @"its tensor `a` has 100001 dimensions; the limit is 64");
        let word = format!(r#""{}""#, "long ".repeat(100_000));
        assert!(one(&word, 0).len() < 2 * LONGEST_MESSAGE);
        assert!(one(&entry(&word, "[0,4]"), 4).len() < 2 * LONGEST_MESSAGE);
        let named = entry("[1]", "[0,4]").replace("F32", &"F".repeat(100_000));
        insta::assert_snapshot!(one(&named, 4), @"its tensor `a` has a dtype of 100000 letters");
        insta::assert_snapshot!(one("7", 0), @"its tensor `a` is not valid: invalid type: integer `7`, expected struct HeaderEntry");
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, len: u64) {
            let _ = Header::read(bytes.as_slice(), len);
        }

        #[test]
        fn no_header_makes_it_panic(begin: u64, end: u64, size: u64, dtype in "[FUI](8|16|32|64)") {
            let json = format!(r#"{{"a":{{"dtype":"{dtype}","shape":[{size}],"data_offsets":[{begin},{end}]}}}}"#);
            let _ = read(&file(&json, 4));
        }
    }
}
