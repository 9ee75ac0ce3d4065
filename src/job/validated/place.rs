//! Where checkpoints are.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

/// A folder, or objects of a bucket whose keys begin alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Folder(PathBuf),
    Bucket(InBucket),
}

/// What is in `bucket` under `prefix`, which has no `/` at its ends, and is empty where it is all of the bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InBucket {
    pub bucket: String,
    pub prefix: String,
}

/// Why a text names no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}\n  hint: {hint}")]
pub struct NoPlace {
    pub problem: &'static str,
    pub hint: &'static str,
}

const S3: &str = "s3://";
/// Bytes of the longest key are 1024 for the store; what is in a checkpoint has names below 100.
const LONGEST_PREFIX: usize = 900;

impl Place {
    /// As a job or an option names it.
    ///
    /// # Errors
    /// It is empty, or of another kind of store, or no store takes it.
    pub fn parse(text: &str) -> Result<Place, NoPlace> {
        let no = |problem, hint| Err(NoPlace { problem, hint });
        if text.is_empty() {
            return no(
                "is not a folder",
                "name a folder that all ranks see at the same path, or s3://BUCKET/PREFIX",
            );
        }
        if let Some(rest) = text.strip_prefix(S3) {
            return InBucket::parse(rest).map(Place::Bucket);
        }
        if text.contains("://") || text.starts_with("s3:") {
            return no(
                "is neither a folder nor s3://BUCKET/PREFIX",
                "stores that speak S3 are known, others are not: write s3://BUCKET/PREFIX, with AWS_ENDPOINT_URL in the environment \
                 where it is not Amazon's",
            );
        }
        Ok(Place::Folder(text.into()))
    }

    /// As a command is given it: a path that is no text is a folder's.
    ///
    /// # Errors
    /// As [`Place::parse`].
    pub fn given(path: &Path) -> Result<Place, NoPlace> {
        match path.to_str() {
            Some(text) if text.contains("://") => Place::parse(text),
            _ => Ok(Place::Folder(path.into())),
        }
    }

    /// What is called `name` in it.
    pub fn join(&self, name: &str) -> Place {
        match self {
            Place::Folder(path) => Place::Folder(path.join(name)),
            Place::Bucket(InBucket { bucket, prefix }) => {
                let prefix = if prefix.is_empty() { name.into() } else { format!("{prefix}/{name}") };
                Place::Bucket(InBucket { bucket: bucket.clone(), prefix })
            }
        }
    }

    /// What is called `name` beside it. None: it is in nothing.
    pub fn beside(&self, name: &str) -> Option<Place> {
        match self {
            // `.` has no name of its own.
            Place::Folder(path) if path.file_name().is_none() => {
                Some(Place::Folder(path.canonicalize().ok()?.parent()?.join(name)))
            }
            Place::Folder(path) => Some(Place::Folder(path.parent()?.join(name))),
            Place::Bucket(InBucket { bucket, prefix }) if !prefix.is_empty() => {
                let within = prefix.rsplit_once('/').map_or("", |(within, _)| within).into();
                Some(Place::Bucket(InBucket { bucket: bucket.clone(), prefix: within }).join(name))
            }
            Place::Bucket(_) => None,
        }
    }

    /// To pass on; [`Place::parse`] reads it.
    pub fn text(&self) -> Option<String> {
        match self {
            Place::Folder(path) => path.to_str().map(str::to_owned),
            Place::Bucket(_) => Some(self.to_string()),
        }
    }

    /// Whether both lead to the same, where that can be told.
    pub fn is_same(&self, other: &Place) -> bool {
        let real = |place: &Place| place.folder().and_then(|folder| folder.canonicalize().ok());
        self == other || real(self).is_some_and(|one| Some(one) == real(other))
    }

    pub fn folder(&self) -> Option<&Path> {
        match self {
            Place::Folder(path) => Some(path),
            Place::Bucket(_) => None,
        }
    }
}

impl InBucket {
    fn parse(text: &str) -> Result<InBucket, NoPlace> {
        let no = |problem, hint| Err(NoPlace { problem, hint });
        let (bucket, prefix) = text.split_once('/').unwrap_or((text, ""));
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        if bucket.is_empty() {
            return no("names no bucket", "write s3://BUCKET/PREFIX");
        }
        let of_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
        let ends = bucket.starts_with(['.', '-']) || bucket.ends_with(['.', '-']);
        if !(3..=63).contains(&bucket.len()) || !bucket.bytes().all(of_name) || ends || bucket.contains("..")
        {
            let hint = "a bucket has 3 to 63 letters, digits, dots and hyphens, and begins and ends with a letter or a digit";
            return no("names no bucket that there can be", hint);
        }
        if prefix.split('/').any(|part| [".", ".."].contains(&part)) {
            return no("has `.` or `..` in it, which lead nowhere in a bucket", "write the whole prefix");
        }
        if !prefix.is_empty() && prefix.split('/').any(str::is_empty) {
            return no("has an empty part between two `/`", "write one `/` between parts of the prefix");
        }
        if !prefix.bytes().all(|byte| of_name(byte) || b"/=+@,!".contains(&byte)) {
            return no(
                "has characters that not every store takes",
                "use letters, digits and - _ . = + @ , ! in the prefix",
            );
        }
        if prefix.len() > LONGEST_PREFIX {
            return no("is longer than a key may be", "use a prefix of at most 900 characters");
        }
        Ok(InBucket { bucket: bucket.into(), prefix: prefix.into() })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Folder(path) => path.display().fmt(f),
            Place::Bucket(InBucket { bucket, prefix }) if prefix.is_empty() => write!(f, "{S3}{bucket}"),
            Place::Bucket(InBucket { bucket, prefix }) => write!(f, "{S3}{bucket}/{prefix}"),
        }
    }
}

impl Serialize for Place {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_folders_or_parts_of_buckets() {
        let shown = |text: &str| Place::parse(text).unwrap().to_string();
        for text in ["runs/a b", "/shared/x", "s3://bucket", "s3://bucket/a/b=1", "./-"] {
            assert_eq!(shown(text), text);
        }
        assert_eq!(shown("s3://bucket/"), "s3://bucket");
        assert_eq!(shown("s3://bucket/a/"), "s3://bucket/a");
        let step = |text: &str| Place::parse(text).unwrap().join("step").to_string();
        assert_eq!(step("s3://bucket"), "s3://bucket/step");
        assert_eq!(step("s3://bucket/a/"), "s3://bucket/a/step");
        assert_eq!(step("a"), "a/step");
    }

    #[test]
    fn what_no_store_takes_is_refused() {
        let refused = |text: &str| Place::parse(text).unwrap_err().problem;
        for text in ["s3://", "s3:///prefix"] {
            assert_eq!(refused(text), "names no bucket");
        }
        for text in
            ["s3://ab", "s3://-bucket", "s3://buck..et", "s3://buc:ket/a", "s3://bück/a", "s3://buc ket"]
        {
            assert_eq!(refused(text), "names no bucket that there can be", "{text}");
        }
        for text in ["s3://bucket/../other", "s3://bucket/a/..", "s3://bucket/./a"] {
            assert_eq!(refused(text), "has `.` or `..` in it, which lead nowhere in a bucket");
        }
        assert_eq!(refused("s3://bucket//a"), "has an empty part between two `/`");
        for text in
            ["s3://bucket/a?b", "s3://bucket/a b", "s3://bucket/ä", "s3://bucket/a%2f", "s3://bucket/a\n"]
        {
            assert_eq!(refused(text), "has characters that not every store takes", "{text}");
        }
        assert_eq!(refused(&format!("s3://bucket/{}", "a".repeat(901))), "is longer than a key may be");
        for text in ["gs://bucket/a", "http://host/a", "s3:/bucket/a", "s3:bucket"] {
            assert_eq!(refused(text), "is neither a folder nor s3://BUCKET/PREFIX");
        }
    }
}
