//! The keys of a job, so that two ranks with different jobs learn where these differ, and nothing else of each other's.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::human;

/// Each key with four bytes of the hash of its value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobKeys(BTreeMap<String, Short>);

type Short = [u8; 4];

/// The bytes of a digest: four of the path's hash, four of the value's.
const DIGEST_BYTES: usize = 8;

/// What a handshake has room for. Keys beyond that are not compared.
const MAX_KEYS: usize = 512;

/// Names in a message.
const MAX_NAMED: usize = 8;

impl JobKeys {
    /// The digests of paths and values; a path that comes twice stands for its last value.
    pub fn new(keys: impl IntoIterator<Item = (String, String)>) -> JobKeys {
        JobKeys(keys.into_iter().map(|(path, value)| (path, short(value.as_bytes()))).collect())
    }

    /// As they travel.
    pub(crate) fn digests(&self) -> Vec<u8> {
        let keys = self.0.iter().take(MAX_KEYS);
        keys.flat_map(|(path, value)| [short(path.as_bytes()), *value]).flatten().collect()
    }

    /// Whether a peer may send that.
    pub(crate) fn is_digests(bytes: &[u8]) -> bool {
        bytes.len() <= MAX_KEYS * DIGEST_BYTES && bytes.len().is_multiple_of(DIGEST_BYTES)
    }

    /// Where these keys and those of a peer differ, with the names of this rank's own. None: as far as is known nowhere.
    pub(crate) fn compare(&self, digests: &[u8]) -> Option<String> {
        if digests.is_empty() || self.0.is_empty() {
            return None;
        }
        let word = |bytes: &[u8]| Short::try_from(bytes).expect("four of them");
        let mut theirs: BTreeMap<Short, Short> =
            digests.chunks_exact(DIGEST_BYTES).map(|both| (word(&both[..4]), word(&both[4..]))).collect();
        let (mut different, mut only_here) = (Vec::new(), Vec::new());
        for (path, value) in self.0.iter().take(MAX_KEYS) {
            match theirs.remove(&short(path.as_bytes())) {
                Some(other) if other == *value => {}
                Some(_) => different.push(path),
                None => only_here.push(path),
            }
        }
        let only_there = match theirs.len() {
            0 => None,
            more => Some(format!("{} only there", human::counted(more as u64, "key"))),
        };
        let parts = [named("different: ", &different), named("only here: ", &only_here), only_there];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

fn short(bytes: &[u8]) -> Short {
    *Sha256::digest(bytes).first_chunk().expect("a hash is longer")
}

fn named(what: &str, paths: &[&String]) -> Option<String> {
    let names: Vec<String> = paths.iter().take(MAX_NAMED).map(|path| format!("`{path}`")).collect();
    let more = match paths.len() - names.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (!names.is_empty()).then(|| format!("{what}{}{more}", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(keys: &[(&str, &str)]) -> JobKeys {
        JobKeys::new(keys.iter().map(|(path, value)| ((*path).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn keys_that_differ_are_named_on_the_side_that_has_them() {
        let here = keys(&[("seed", "1"), ("train.steps", "20"), ("eval.every_steps", "5")]);
        let there = keys(&[("seed", "1"), ("train.steps", "21"), ("log.every", "7")]);
        let text = here.compare(&there.digests()).expect("they differ");
        assert_eq!(text, "different: `train.steps`; only here: `eval.every_steps`; 1 key only there");
        assert_eq!(here.compare(&here.digests()), None);
        assert_eq!(here.compare(&[]), None, "who sends none");
    }

    #[test]
    fn what_a_peer_sends_is_bounded() {
        let many = JobKeys::new((0..2 * MAX_KEYS).map(|number| (format!("key{number}"), String::new())));
        assert_eq!(many.digests().len(), MAX_KEYS * DIGEST_BYTES);
        assert!(JobKeys::is_digests(&many.digests()));
        assert!(!JobKeys::is_digests(&[0; 9]) && !JobKeys::is_digests(&[0; (MAX_KEYS + 1) * DIGEST_BYTES]));
        let text = many.compare(&keys(&[("other", "1")]).digests()).expect("they differ");
        assert!(text.ends_with("and 504 more; 1 key only there"), "{text}");
    }
}
