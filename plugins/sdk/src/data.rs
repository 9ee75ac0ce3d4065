//! The job's data folder (`data.root`). Relative paths lead there; it is read-only, and nothing else can be seen.

use crate::{Error, Result};
use anyhow::{Context, anyhow, ensure};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Opens a file of the data folder.
///
/// # Errors
/// Names the file, and if it is missing, what the folder has instead.
pub fn open(path: impl AsRef<Path>) -> Result<File> {
    let path = path.as_ref();
    File::open(path).map_err(|error| explain(path, &error))
}

/// All bytes of a file. It counts against the plug-in's memory.
///
/// # Errors
/// As [`open`].
pub fn read(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    let path = path.as_ref();
    let mut file = open(path)?;
    let size = file.metadata().map(|meta| meta.len()).unwrap_or(0);
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(usize::try_from(size).unwrap_or(usize::MAX))
        .with_context(|| format!("`{}` has {size} bytes, more than the plug-in's memory", path.display()))?;
    file.read_to_end(&mut bytes).map_err(|error| explain(path, &error))?;
    Ok(bytes)
}

/// All text of a file.
///
/// # Errors
/// As [`open`], and if it is not UTF-8.
pub fn read_to_string(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    String::from_utf8(read(path)?).map_err(|error| {
        anyhow!("`{}` is not UTF-8 text: byte {} is not", path.display(), error.utf8_error().valid_up_to())
    })
}

/// The first of some names that the data folder has, for files that may be called differently.
///
/// # Errors
/// If there is none: names them all, and what the folder has instead. If one may not be read.
pub fn find<'a>(names: &[&'a str]) -> Result<&'a str> {
    for name in names {
        match std::fs::metadata(name) {
            Ok(meta) if meta.is_file() => return Ok(name),
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(explain(Path::new(name), &error));
            }
            _ => {}
        }
    }
    Err(missing(names))
}

/// The files that some names stand for, in the order of the names: each is a file, or has `*` and `?` in its last part and is
/// all files that are called so, in alphabetical order.
///
/// # Errors
/// If a name stands for none, or all for far too many. If a folder may not be read.
pub fn find_all(names: &[impl AsRef<str>]) -> Result<Vec<String>> {
    const MOST: usize = 1 << 20;
    let mut found = Vec::new();
    for name in names {
        let name = name.as_ref();
        if !name.contains(['*', '?']) {
            found.push(name.to_owned());
            continue;
        }
        let (folder, pattern) = name.rsplit_once('/').map_or(("", name), |(folder, last)| (folder, last));
        ensure!(!folder.contains(['*', '?']), "`{name}`: `*` and `?` may stand in the last part only");
        let place = Path::new(if folder.is_empty() { "." } else { folder });
        let entries = std::fs::read_dir(place).map_err(|error| explain(place, &error))?;
        let before = found.len();
        for entry in entries {
            let entry = entry.map_err(|error| explain(place, &error))?;
            let called = entry.file_name();
            let Some(called) = called.to_str().filter(|called| matches(pattern, called)) else { continue };
            if std::fs::metadata(entry.path()).is_ok_and(|meta| meta.is_file()) {
                found.push(if folder.is_empty() { called.to_owned() } else { format!("{folder}/{called}") });
            }
            ensure!(found.len() <= MOST, "`{name}` stands for more than {MOST} files");
        }
        ensure!(found.len() > before, "no file is called `{name}`{}", neighbours(Path::new(name)));
        found[before..].sort_unstable();
    }
    ensure!(!found.is_empty(), "no file is named");
    Ok(found)
}

/// Whether `name` is of the form `pattern`, where `*` is any text and `?` any character.
fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut of) = (0, 0);
    // Where the last `*` is, and what of the name it may reach.
    let mut star = None;
    while at < name.len() {
        if of < pattern.len() && pattern[of] == '*' {
            star = Some((of, at));
            of += 1;
        } else if of < pattern.len() && (pattern[of] == '?' || pattern[of] == name[at]) {
            (at, of) = (at + 1, of + 1);
        } else if let Some((last, reached)) = star {
            star = Some((last, reached + 1));
            (at, of) = (reached + 1, last + 1);
        } else {
            return false;
        }
    }
    pattern[of..].iter().all(|&left| left == '*')
}

fn missing(names: &[&str]) -> Error {
    let first = names.first().map_or(Path::new(""), |name| Path::new(name));
    anyhow!("the data folder has no file `{}`{}", names.join("` or `"), neighbours(first))
}

fn explain(path: &Path, error: &std::io::Error) -> Error {
    let name = path.display();
    match error.kind() {
        ErrorKind::NotFound => missing(&[&name.to_string()]),
        // The number stays in: the host knows by it that the path leads out of the folder, and says so.
        _ => anyhow!("cannot read `{name}`: {error}"),
    }
}

/// A few names from the folder where the file should have been.
fn neighbours(path: &Path) -> String {
    const SHOWN: usize = 8;
    let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
    let Ok(entries) = std::fs::read_dir(folder) else { return String::new() };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).take(1000).collect();
    names.sort();
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    match (names.is_empty(), more) {
        (true, _) => "; it is empty".into(),
        (false, 0) => format!("; it has `{}`", names.join("`, `")),
        (false, _) => format!("; it has `{}` and {more} more", names.join("`, `")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_named_with_its_neighbours() {
        let error = open("src/no_such.csv").unwrap_err().to_string();
        assert!(error.starts_with("the data folder has no file `src/no_such.csv`; it has `"), "{error}");
        assert!(error.contains("`config.rs`"), "{error}");
    }

    #[test]
    fn a_file_is_read_whole() {
        assert!(read_to_string("Cargo.toml").unwrap().contains("pstrain-plugin"));
    }

    #[test]
    fn a_file_is_found_by_any_of_its_names() {
        assert_eq!(find(&["no_such.gz", "src", "Cargo.toml"]).unwrap(), "Cargo.toml");
        let error = find(&["no_such", "no_such.gz"]).unwrap_err().to_string();
        assert!(
            error.starts_with("the data folder has no file `no_such` or `no_such.gz`; it has `"),
            "{error}"
        );
    }

    #[test]
    fn a_name_with_stars_stands_for_all_files_of_that_form() {
        assert_eq!(
            find_all(&["Cargo.toml", "src/r*.rs"]).unwrap(),
            ["Cargo.toml", "src/random.rs", "src/raw_loss.rs"]
        );
        let error = find_all(&["src/*.csv"]).unwrap_err().to_string();
        assert!(error.starts_with("no file is called `src/*.csv`; it has `"), "{error}");
        for (pattern, name, fits) in [
            ("*", "", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "abX", false),
            ("?.x", "é.x", true),
            ("a?", "a", false),
        ] {
            assert_eq!(matches(pattern, name), fits, "{pattern} {name}");
        }
    }
}
