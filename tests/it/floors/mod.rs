//! The floors of ARCHITECTURE.md hold: imports go downward only, no two files import each other, and each library stays in
//! its room.

mod circles;
mod documents;
mod labels;

use std::fs;
use std::path::{Path, PathBuf};

/// From the lowest floor to the highest; those on one floor do not import one another.
const FLOORS: [&[&str]; 12] = [
    &["topology", "cache", "files", "profile", "recorder", "human"],
    &["config"],
    &["layers"],
    &["metrics"],
    &["optimizers"],
    &["job"],
    &["rpc", "plugin", "model"],
    &["autograd"],
    &["parallel"],
    &["runner"],
    &["watch"],
    &["cli"],
];

/// Where a library may be named, as the start of a path below `src/`.
const ROOMS: [(&str, &[&str]); 12] = [
    ("capnp", &["rpc/"]),
    ("capnp_rpc", &["rpc/"]),
    ("wasmtime", &["plugin/"]),
    ("wasmtime_wasi", &["plugin/"]),
    ("indicatif", &["runner/progress/bars.rs"]),
    ("ratatui", &["watch/top/"]),
    ("object_store", &["runner/checkpoint/store/s3/"]),
    ("axum", &["watch/serve.rs"]),
    ("crc32c", &["watch/export/tensorboard/"]),
    ("opentelemetry_proto", &["watch/export/otlp/"]),
    ("prometheus_client", &["watch/export/prometheus.rs"]),
    ("prost", &["watch/export/"]),
];

/// A job is plain values: it can be validated where there is neither a runtime nor libtorch.
const PLAIN: [&str; 2] = ["config", "job"];
const NOT_IN_PLAIN: [&str; 3] = ["tokio", "tch", "c10d"];

/// Hand-written `unsafe` beyond `crates/c10d`: fork, and tensors on received memory.
const UNSAFE: [&str; 2] = ["runner/launch.rs", "rpc/transport/memory.rs"];

struct Source {
    /// Below `src/`.
    path: String,
    text: String,
}

impl Source {
    fn room(&self) -> &str {
        let first = self.path.split('/').next().expect("a path has a part");
        first.strip_suffix(".rs").unwrap_or(first)
    }

    /// The code, without comments.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let code = |line: &'_ str| !line.trim_start().starts_with("//");
        self.text.lines().enumerate().filter(move |(_, line)| code(line)).map(|(at, line)| (at + 1, line))
    }

    fn names_crate(line: &str, name: &str) -> bool {
        let path = format!("{name}::");
        line.match_indices(&path).any(|(at, _)| {
            let before = line[..at].chars().next_back();
            !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':')
        })
    }
}

fn sources() -> Vec<Source> {
    below("src")
}

fn below(folder: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut found = Vec::new();
    collect(&root, &root, &mut found);
    assert!(found.len() > 20, "only {} sources found below {}", found.len(), root.display());
    found
}

fn collect(root: &Path, folder: &Path, found: &mut Vec<Source>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    entries.sort();
    for path in entries {
        // Templates are what a plug-in's author starts from; they are not part of the crate.
        if path.is_dir() && path.file_name().is_some_and(|name| name != "templates") {
            collect(root, &path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("text");
            let path = path.strip_prefix(root).expect("below the root").to_string_lossy().into_owned();
            found.push(Source { path, text });
        }
    }
}

fn floor_of(room: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&room))
}

/// The module that a use of `crate::NAME` means.
fn imported(line: &str) -> impl Iterator<Item = &str> {
    line.match_indices("crate::").filter_map(|(at, found)| {
        let rest = &line[at + found.len()..];
        let name = rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
        (!name.is_empty()).then_some(name)
    })
}

#[test]
fn imports_go_downward_only() {
    let mut wrong = Vec::new();
    for source in sources() {
        let Some(mine) = floor_of(source.room()) else { continue };
        for (at, line) in source.lines() {
            for name in imported(line) {
                let Some(theirs) = floor_of(name) else { continue };
                let same_floor = theirs == mine && name != source.room();
                if theirs > mine || same_floor {
                    wrong.push(format!("src/{}:{at} imports {name}", source.path));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "imports against the floors:\n{}", wrong.join("\n"));
}

#[test]
fn every_room_has_a_floor() {
    let rooms = ["lib", "main"];
    for source in sources() {
        let room = source.room();
        assert!(rooms.contains(&room) || floor_of(room).is_some(), "src/{} is on no floor", source.path);
    }
}

#[test]
fn each_library_stays_in_its_room() {
    let mut wrong = Vec::new();
    for source in sources() {
        for (at, line) in source.lines() {
            for (library, rooms) in ROOMS {
                if Source::names_crate(line, library)
                    && !rooms.iter().any(|room| source.path.starts_with(room))
                {
                    wrong.push(format!("src/{}:{at} names {library}", source.path));
                }
            }
            for library in NOT_IN_PLAIN {
                if PLAIN.contains(&source.room()) && Source::names_crate(line, library) {
                    wrong.push(format!("src/{}:{at} names {library}", source.path));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "libraries out of their rooms:\n{}", wrong.join("\n"));
}

#[test]
fn unsafe_code_stays_where_it_is_allowed() {
    for source in sources() {
        for (at, line) in source.lines() {
            let hand_written =
                line.contains("unsafe {") || line.contains("unsafe fn") || line.contains("unsafe impl");
            assert!(
                !hand_written || UNSAFE.contains(&source.path.as_str()),
                "src/{}:{at} has unsafe code: {line}",
                source.path
            );
        }
    }
}

/// The first line of what is shipped of a source that has this in it.
fn shipped_line<'a>(source: &'a Source, wanted: &str) -> Option<&'a str> {
    let is_test = source.path.ends_with("tests.rs");
    let shipped =
        source.text.split("#[cfg(test)]\nmod tests {").next().filter(|_| !is_test).unwrap_or_default();
    shipped.lines().find(|line| line.contains(wanted))
}

/// `files` and the crate `ownership` make folders, and see to it that others can do no more there than they should.
#[test]
fn folders_are_made_in_one_place() {
    for source in sources().iter().filter(|source| source.path != "files.rs") {
        for making in ["create_dir", "DirBuilder"] {
            let line = shipped_line(source, making);
            assert!(line.is_none(), "src/{}: {line:?}: `files::make_folders` does that", source.path);
        }
    }
}

/// A module that is hard to compile ends the process that compiles it, and no rank.
#[test]
fn plug_ins_of_others_are_compiled_in_a_process_of_their_own() {
    for source in sources().iter().filter(|source| source.path != "plugin/host.rs") {
        let line = shipped_line(source, "Host::new(");
        assert!(line.is_none(), "src/{}: {line:?}: `Host::apart` does that", source.path);
    }
}

#[test]
fn main_is_short() {
    let main = sources().into_iter().find(|source| source.path == "main.rs").expect("src/main.rs");
    assert!(main.text.lines().count() < 60);
}

/// The name of the call that a line declares, by `call!` or by hand.
fn declared_call(line: &str) -> Option<&str> {
    let by_macro = line.contains(" struct ") && line.contains("\" -> ");
    if !by_macro && !line.contains("const NAME: &'static str = ") {
        return None;
    }
    line.split('"').nth(1)
}

#[test]
fn each_call_is_named_in_one_place() {
    let sources = sources();
    let declared =
        sources.iter().flat_map(|source| source.lines().filter_map(|(_, line)| declared_call(line)));
    let names: Vec<&str> = declared.collect();
    assert!(names.len() >= 30, "only {} calls found", names.len());
    let tests = below("tests");
    let both = [("src", &sources), ("tests", &tests)];
    let lines = || {
        both.into_iter().flat_map(|(folder, sources)| {
            sources
                .iter()
                .flat_map(move |source| source.lines().map(move |(at, line)| (folder, source, at, line)))
        })
    };
    for name in names {
        let quoted = format!("\"{name}\"");
        let places: Vec<String> = lines()
            .filter(|(.., line)| line.contains(&quoted))
            .map(|(folder, source, at, _)| format!("{folder}/{}:{at}", source.path))
            .collect();
        assert_eq!(places.len(), 1, "the call {quoted} is named in {}", places.join(", "));
    }
}

/// What `cargo test` passes on to the programs that it starts, and these read `PSTRAIN_X` as the job's key `x`.
#[test]
fn no_variable_of_the_build_looks_like_a_key_of_a_job() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut scripts = vec![root.join("build.rs"), root.join("crates/c10d/build.rs")];
    scripts.extend(
        fs::read_dir(root.join("build")).expect("a folder").map(|entry| entry.expect("an entry").path()),
    );
    let variables: Vec<String> = scripts
        .iter()
        .flat_map(|script| {
            let text = fs::read_to_string(script).expect("text");
            let named =
                |(at, set): (usize, &str)| text[at + set.len()..].split('=').next().map(str::to_owned);
            text.match_indices("rustc-env=").filter_map(named).collect::<Vec<_>>()
        })
        .collect();
    assert!(variables.len() >= 2, "only {variables:?} found");
    assert!(variables.iter().all(|name| !name.starts_with("PSTRAIN_")), "{variables:?}");
}
