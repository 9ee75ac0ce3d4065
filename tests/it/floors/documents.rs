//! What ARCHITECTURE.md, CONTRIBUTING.md and README.md name is there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::program::{finish, pstrain};

const DOCUMENTS: [&str; 3] = ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"];

/// What a build or a run makes, or lies outside the repository.
const NOT_OURS: [&str; 5] = ["target/", "runs/", "flight/", "model.py", "/"];

/// A word without a folder is a file if it ends so. (`job.toml` and `metrics.jsonl` are names in a run folder.)
const SOURCES: [&str; 4] = [".rs", ".py", ".cpp", ".wit"];

/// Words in backticks that look like paths, outside of blocks of code.
fn named_paths(text: &str) -> Vec<&str> {
    let prose: Vec<&str> = text.split("```").step_by(2).collect();
    let words = prose.iter().flat_map(|part| part.split('`').skip(1).step_by(2));
    let plain = |word: &&str| word.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
    let path = |word: &&str| word.contains('/') || SOURCES.iter().any(|end| word.ends_with(end));
    let ours = |word: &&str| !NOT_OURS.iter().any(|start| word.starts_with(start));
    words.filter(plain).filter(path).filter(ours).collect()
}

/// All files and folders below `folder`, as paths from there.
fn below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(below(&path));
        }
        found.push(path);
    }
    found
}

/// From the root, or from anywhere in `src/`, as a text that has said where it is.
fn is_there(root: &Path, sources: &[PathBuf], word: &str) -> bool {
    let word = word.trim_end_matches('/');
    root.join(word).exists() || sources.iter().any(|path| path.ends_with(word))
}

#[test]
fn every_path_that_the_documents_name_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = below(&root.join("src"));
    let mut stale = Vec::new();
    for document in DOCUMENTS {
        let text = fs::read_to_string(root.join(document)).expect("text");
        let named = named_paths(&text);
        assert!(named.len() >= 5, "{document} names only {named:?}");
        let missing = named.into_iter().filter(|word| !is_there(root, &sources, word));
        stale.extend(missing.map(|word| format!("{document}: `{word}`")));
    }
    assert!(stale.is_empty(), "not there:\n{}", stale.join("\n"));
}

#[test]
fn a_path_that_is_not_there_is_found() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = below(&root.join("src"));
    let text = "See `rpc/mesh/call.rs` and `tour.rs`, `net/outbox.rs`, `tests/it`, `Mesh::call`.\n\
                ```\n`no/code`\n```\nOr `runs/NAME/`, `job.toml`, `src/gone/`.";
    let named = named_paths(text);
    assert_eq!(named, ["rpc/mesh/call.rs", "tour.rs", "net/outbox.rs", "tests/it", "src/gone/"]);
    let missing: Vec<_> = named.into_iter().filter(|word| !is_there(root, &sources, word)).collect();
    assert_eq!(missing, ["tour.rs", "net/outbox.rs", "src/gone/"]);
}

/// The module that a source is, without the folders above the first: `hostile::files` of `tests/it/hostile/files.rs`.
fn module_of(root: &Path, path: &Path) -> String {
    let below = path.strip_prefix(root).expect("inside").with_extension("");
    let all: Vec<&str> = below.iter().map(|part| part.to_str().expect("text")).collect();
    let above = match all[..] {
        ["src", ..] => 1,
        ["tests", ..] => 2,
        ["crates", _, "src", ..] | ["plugins", _, "src", ..] => 3,
        _ => 4,
    };
    all.into_iter().skip(above).filter(|part| *part != "mod").collect::<Vec<_>>().join("::")
}

/// Whether `module` is what `name` is the end of. `..` at the end stands for modules in it.
fn is_module(module: &str, name: &str) -> bool {
    let (name, deeper) =
        name.strip_suffix("..").map_or((name, false), |name| (name.trim_end_matches(':'), true));
    let (module, name) = (format!("::{module}::"), format!("::{name}::"));
    name == "::::" || module.ends_with(&name) || deeper && module.contains(&name)
}

/// Whether a test or a module of this source is called so, with what stands in front of it.
fn has_test(module: &str, text: &str, name: &str) -> bool {
    let name = name.trim_start_matches("..").replace("::..", "..::");
    let (within, test) = name.rsplit_once("::").unwrap_or(("", &name));
    is_module(module, &name) || is_module(module, within) && text.contains(&format!("fn {test}("))
}

#[test]
fn tests_are_found_by_their_modules() {
    let has = |name| has_test("hostile::files", "fn a_pipe() {", name);
    assert!(
        ["hostile::files", "files", "files::a_pipe", "hostile::..a_pipe", "a_pipe", "..a_pipe"]
            .into_iter()
            .all(has)
    );
    assert!(
        !["host::files", "scripts::a_pipe", "files::a_pip", "model::..a_pipe", "hostile"]
            .into_iter()
            .any(has)
    );
    let module = |path: &str| module_of(Path::new("/"), &Path::new("/").join(path));
    assert_eq!(module("tests/processes/signals.rs"), "signals");
    assert_eq!(module("crates/c10d/tests/it/strangers.rs"), "strangers");
    assert_eq!(module("src/rpc/join/mod.rs"), "rpc::join");
}

/// A test is named by the end of its path, and a module of tests by the end of its.
#[test]
fn every_test_that_a_promise_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(root.join("docs/security.md")).expect("text");
    let mut folders = ["src", "tests", "crates"].map(|folder| root.join(folder)).to_vec();
    let plugins = fs::read_dir(root.join("plugins")).expect("a folder").map(|entry| entry.expect("an entry"));
    folders.extend(plugins.map(|entry| entry.path().join("src")).filter(|source| source.is_dir()));
    let sources = folders.iter().flat_map(|folder| below(folder));
    let sources = sources.filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let sources: Vec<(String, String)> =
        sources.map(|path| (module_of(root, &path), fs::read_to_string(path).expect("text"))).collect();
    let rows = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| promise"));
    let mut promises = 0;
    for row in rows {
        let tests: Vec<&str> =
            row.rsplit('|').nth(1).unwrap_or_default().split('`').skip(1).step_by(2).collect();
        let (paths, names): (Vec<&str>, Vec<&str>) = tests.iter().partition(|name| name.contains('/'));
        assert!(!names.is_empty(), "a promise without a test: {row}");
        for name in names {
            let is_there = sources.iter().any(|(module, text)| has_test(module, text, name));
            assert!(is_there, "docs/security.md names `{name}`, which is not there");
        }
        for path in paths {
            assert!(root.join(path).exists(), "docs/security.md names `{path}`, which is not there");
        }
        promises += 1;
    }
    assert!(promises > 10, "only {promises} promises found");
}

/// Commands that have commands of their own.
const GROUPS: [&str; 5] = ["bench", "checkpoint", "data", "launch", "plugin"];

/// What stands behind `pstrain` in backticks, at the beginning of an indented line, or behind a prompt.
fn named_commands(text: &str) -> impl Iterator<Item = Vec<&str>> {
    ["`pstrain ", "\n    pstrain ", "\n$ pstrain "].into_iter().flat_map(move |before| {
        text.match_indices(before).filter_map(move |(at, _)| {
            let rest = text[at + before.len()..].split(['`', '\n']).next()?;
            let mut words = rest.split(' ');
            let group = words
                .next()
                .filter(|word| *word != "help" && word.chars().all(|c| c.is_ascii_lowercase()))?;
            let inner = words.next().filter(|_| GROUPS.contains(&group));
            let inner = inner.filter(|word| !word.is_empty() && word.chars().all(|c| c.is_ascii_lowercase()));
            Some([group].into_iter().chain(inner).collect())
        })
    })
}

#[test]
fn every_command_that_a_message_or_a_document_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = [below(&root.join("src")), below(&root.join("docs"))].concat().into_iter();
    let files = files.chain(["README.md", "plugins/README.md"].map(|name| root.join(name)));
    let texts: Vec<String> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs" || extension == "md"))
        .map(|path| fs::read_to_string(path).expect("text"))
        .collect();
    let named: BTreeSet<Vec<&str>> = texts.iter().flat_map(|text| named_commands(text)).collect();
    assert!(named.len() > 25, "only {named:?} found");
    let missing =
        named.iter().filter(|words| !finish(pstrain(root).args(*words).arg("--help")).status.success());
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&Vec<&str>>::new());
    assert!(!finish(pstrain(root).args(["plugin", "bench", "--help"])).status.success());
}
