//! No two files import each other, be it by way of others: whoever changes a file knows that only those above it can
//! notice. Read from the text: `use` declarations, and paths in the code that begin with a module.

use std::collections::{BTreeMap, BTreeSet};

use super::{Source, sources};

/// The circles that there are: below which folder, of how many files at most, and why.
const KNOWN: [(&str, usize, &str); 9] = [
    (
        "autograd/",
        4,
        "a context, its calls and its backward are handles of the one service, which makes them",
    ),
    ("config/", 5, "a table reads its items by keys, whose values are read of items, and may be tables"),
    ("job/plan/", 6, "the plan's parts fill in the plan that holds them"),
    (
        "job/",
        8,
        "the table of keys is made of those of each section's reader, and readers look at other sections by it",
    ),
    ("layers/", 3, "a layer may have layers inside it, and tells shapes through them"),
    ("model/", 4, "a TorchScript body is one kind of module, and its statistics are those of modules"),
    (
        "parallel/",
        4,
        "what is updated and what it is updated by know each other: a table and its snapshots, a step and its pushes",
    ),
    (
        "plugin/",
        7,
        "wasmtime's linker wants the store's state by type, and the state has what the linker made",
    ),
    ("runner/", 2, "a part of a file that became too long, and uses its types"),
];

/// The rooms of `rpc`, from the lowest: each imports only from those before it.
const ROOMS_OF_RPC: [&str; 8] = [
    "rpc/wire",
    "rpc/wait",
    "rpc/types",
    "rpc/transport",
    "rpc/message",
    "rpc/join",
    "rpc/mesh",
    "rpc/thread",
];

type Path = Vec<String>;

/// A file as others see it.
#[derive(Default)]
struct File {
    /// Below `src/`.
    path: String,
    /// What each name that it imports stands for, and whether that is only to pass the name on.
    names: BTreeMap<String, (Path, bool)>,
    /// Globs, and paths in the code that begin with `crate`, `self` or `super`.
    others: Vec<Path>,
    /// Paths in the code that begin with a module which the file declares or imports.
    by_module: Vec<Path>,
}

/// By module.
struct Files(BTreeMap<Path, File>);

impl Files {
    fn read(sources: &[Source]) -> Files {
        let for_tests: Vec<Path> = sources.iter().flat_map(test_modules).collect();
        let mut files = BTreeMap::new();
        for source in sources {
            let module = module_of(&source.path);
            if source.path != "main.rs" && !for_tests.iter().any(|test| module.starts_with(test)) {
                files.insert(module, File::read(source));
            }
        }
        Files(files)
    }

    /// The files that each imports from; `strictly`: also where a call names the module only.
    fn arrows(&self, strictly: bool) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut arrows = BTreeMap::new();
        for (module, file) in &self.0 {
            let used = file.names.values().filter(|(_, passed_on)| !passed_on).map(|(path, _)| path);
            let found = used
                .chain(&file.others)
                .chain(file.by_module.iter().filter(|_| strictly))
                .filter_map(|path| self.find(module, path, 0));
            let found = found.map(|(_, found)| found.path.as_str()).filter(|found| *found != file.path);
            arrows.insert(file.path.as_str(), found.collect());
        }
        arrows
    }

    /// The file in which stands what `path` means in `module`, and how much of the path leads there.
    fn find<'a>(&'a self, module: &[String], path: &[String], depth: usize) -> Option<(Path, &'a File)> {
        let mut at = module.to_vec();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => (at, rest) = (Vec::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|part| part == "super") {
                    at.pop()?;
                    rest = &rest[1..];
                }
            }
            first => {
                let child = self.0.contains_key(&joined(&at, first));
                let known = self.0[module].names.contains_key(first);
                // A library, or a name of the file's own.
                if !child && !known {
                    return None;
                }
            }
        }
        while let Some((first, behind)) = rest.split_first() {
            let child = joined(&at, first);
            if self.0.contains_key(&child) {
                (at, rest) = (child, behind);
                continue;
            }
            // A name that the file imports itself: what it stands for.
            if let Some((meant, _)) = self.0.get(&at)?.names.get(first).filter(|_| depth < 8) {
                let whole: Path = meant.iter().chain(behind).cloned().collect();
                return self.find(&at, &whole, depth + 1);
            }
            break;
        }
        self.0.get(&at).map(|file| (at, file))
    }
}

fn joined(module: &[String], child: &str) -> Path {
    module.iter().cloned().chain([child.to_owned()]).collect()
}

fn module_of(path: &str) -> Path {
    let path = path.strip_suffix(".rs").expect("a source");
    let mut module: Path = path.split('/').map(str::to_owned).collect();
    if module.last().is_some_and(|last| last == "mod" || last == "lib") {
        module.pop();
    }
    module
}

/// Modules that are there for tests only, in files of their own.
fn test_modules(source: &Source) -> Vec<Path> {
    let parts = source.text.split("#[cfg(test)]").skip(1);
    let names =
        parts.filter_map(|after| after.trim_start().strip_prefix("mod ")?.lines().next()?.strip_suffix(';'));
    names.map(|name| joined(&module_of(&source.path), name)).collect()
}

/// Without comments and without tests in the same file.
fn code_of(source: &Source) -> String {
    let mut code = String::new();
    let mut lines = source.text.lines();
    while let Some(line) = lines.next() {
        if line == "#[cfg(test)]" {
            let tests = lines.next().unwrap_or_default();
            if tests.starts_with("mod ") && tests.ends_with('{') {
                lines.by_ref().take_while(|line| *line != "}").for_each(drop);
            }
            continue;
        }
        let end = line.find("//").unwrap_or(line.len());
        // Who may see a thing is no import.
        code.push_str(&line[..end].replace("pub(in crate::", "pub("));
        code.push('\n');
    }
    code
}

impl File {
    fn read(source: &Source) -> File {
        let mut file = File { path: source.path.clone(), ..File::default() };
        let (mut body, mut imports) = (String::new(), Vec::new());
        let code = code_of(source);
        let mut lines = code.lines();
        while let Some(line) = lines.next() {
            let Some((public, begun)) = declaration(line) else {
                body.push_str(line);
                body.push('\n');
                continue;
            };
            let mut tree = begun.to_owned();
            while !tree.contains(';') {
                tree.push_str(lines.next().expect("a declaration ends").trim());
            }
            expand(&[], tree.trim_end_matches(';'), &mut |path, name| imports.push((path, name, public)));
        }
        for (path, name, public) in imports {
            match name.as_str() {
                "*" => file.others.push(path),
                _ => {
                    let passed_on = public && !mentions(&body, &name);
                    file.names.insert(name, (path, passed_on));
                }
            }
        }
        let (whole, by_module) =
            paths(&body).into_iter().partition(|path| ["crate", "self", "super"].contains(&path[0].as_str()));
        file.others.extend::<Vec<_>>(whole);
        file.by_module = by_module;
        file
    }
}

/// What `line` begins to import, and whether for others, too.
fn declaration(line: &str) -> Option<(bool, &str)> {
    let line = line.trim_start();
    match line.strip_prefix("use ") {
        Some(tree) => Some((false, tree)),
        None => line.starts_with("pub").then(|| line.split_once(" use "))?.map(|(_, tree)| (true, tree)),
    }
}

/// Each path of a tree of imports, with the name that it gets ("*": all that is in there).
fn expand(before: &[String], tree: &str, found: &mut impl FnMut(Path, String)) {
    let tree = tree.trim();
    if let Some(inside) = tree.strip_prefix('{') {
        let inside = inside.strip_suffix('}').expect("it is closed");
        let (mut depth, mut start) = (0, 0);
        for (at, c) in inside.char_indices().chain([(inside.len(), ',')]) {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    if !inside[start..at].trim().is_empty() {
                        expand(before, &inside[start..at], found);
                    }
                    start = at + 1;
                }
                _ => {}
            }
        }
    } else if let Some((first, rest)) = tree.split_once("::") {
        expand(&joined(before, first), rest, found);
    } else {
        let (last, name) = tree.split_once(" as ").unwrap_or((tree, tree));
        match last {
            "self" => found(before.to_vec(), before.last().expect("of something").clone()),
            "*" => found(before.to_vec(), last.to_owned()),
            _ => found(joined(before, last), name.trim().to_owned()),
        }
    }
}

fn is_part(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn mentions(body: &str, name: &str) -> bool {
    body.split(|c| !is_part(c)).any(|word| word == name)
}

/// Paths of at least two parts.
fn paths(body: &str) -> Vec<Path> {
    let words = body.split(|c| !is_part(c) && c != ':');
    let split = |word: &str| -> Path { word.split("::").map(str::to_owned).collect() };
    words
        .map(|word| split(word.trim_end_matches(':')))
        .filter(|path| path.len() > 1 && !path[0].is_empty())
        .collect()
}

/// All files to which imports lead from there.
fn reached<'a>(from: &'a str, arrows: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(file) = next.pop() {
        next.extend(arrows[file].iter().copied().filter(|to| seen.insert(*to)));
    }
    seen
}

/// Sets of files each of which leads to all the others.
fn circles(arrows: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<BTreeSet<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        arrows.keys().map(|file| (*file, reached(file, arrows))).collect();
    let mut found = BTreeSet::new();
    for (file, to) in &reached {
        if to.contains(file) {
            let back = to.iter().filter(|other| reached[**other].contains(file));
            found.insert(back.map(|file| (*file).to_owned()).collect::<BTreeSet<_>>());
        }
    }
    found.into_iter().collect()
}

fn is_known(circle: &BTreeSet<String>) -> bool {
    KNOWN
        .iter()
        .any(|(folder, most, _)| circle.len() <= *most && circle.iter().all(|file| file.starts_with(folder)))
}

/// What ties the files of a circle.
fn shown(circle: &BTreeSet<String>, arrows: &BTreeMap<&str, BTreeSet<&str>>) -> String {
    let mut text = String::new();
    for file in circle {
        let to: Vec<_> = arrows[file.as_str()].iter().filter(|to| circle.contains(**to)).collect();
        text.push_str(&format!("  {file} imports from {to:?}\n"));
    }
    text
}

#[test]
fn no_two_files_import_each_other() {
    let sources = sources();
    let files = Files::read(&sources);
    let arrows = files.arrows(false);
    assert!(
        arrows.values().map(BTreeSet::len).sum::<usize>() > 2 * arrows.len(),
        "hardly any imports were read"
    );
    assert_none(circles(&arrows).into_iter().filter(|circle| !is_known(circle)), &arrows);
}

#[test]
fn no_two_files_of_rpc_lead_to_each_other() {
    let sources = sources();
    let files = Files::read(&sources);
    let arrows = files.arrows(true);
    let of_rpc = |circle: &BTreeSet<String>| circle.iter().any(|file| file.starts_with("rpc/"));
    assert_none(circles(&arrows).into_iter().filter(of_rpc), &arrows);
}

fn assert_none(found: impl Iterator<Item = BTreeSet<String>>, arrows: &BTreeMap<&str, BTreeSet<&str>>) {
    let text: Vec<_> = found.map(|circle| shown(&circle, arrows)).collect();
    assert!(text.is_empty(), "{} circles of imports:\n{}", text.len(), text.join("\n"));
}

#[test]
fn the_rooms_of_rpc_import_downward_only() {
    let sources = sources();
    let files = Files::read(&sources);
    let room = |file: &str| ROOMS_OF_RPC.iter().position(|room| file.starts_with(room));
    for (file, imports) in files.arrows(true) {
        let Some(mine) = room(file) else { continue };
        for import in imports {
            let upward = room(import).is_some_and(|theirs| theirs > mine) || import == "rpc/mod.rs";
            assert!(!upward, "{file} imports from {import}");
        }
    }
}

fn source(path: &str, text: &str) -> Source {
    Source { path: path.into(), text: text.into() }
}

#[test]
fn a_circle_is_found_by_whichever_way_it_is_closed() {
    let low = source("a/low.rs", "pub struct Low;\nimpl Low {}\n");
    let face = source("a/mod.rs", "mod low;\nmod high;\npub use self::low::Low;\n");
    let closed_by = |high: &str, low: &str| {
        let sources = [source("a/mod.rs", &face.text), source("a/high.rs", high), source("a/low.rs", low)];
        circles(&Files::read(&sources).arrows(true))
    };
    let none: Vec<BTreeSet<String>> = Vec::new();
    assert_eq!(closed_by("use super::Low;\nfn new(_: Low) {}\n", &low.text), none);
    assert_eq!(
        closed_by("use super::Low;\n", "#[cfg(test)]\nmod tests {\n    use crate::a::high;\n}\n"),
        none
    );
    let both = vec![BTreeSet::from(["a/high.rs".to_owned(), "a/low.rs".to_owned()])];
    let ways = [
        "use super::high::High;\npub struct Low;\n",
        "use crate::a::{\n    high::{self, High},\n};\npub struct Low;\n",
        "pub struct Low;\nfn new() {\n    super::high::new();\n}\n",
        "use super::high;\npub struct Low;\nfn new() {\n    high::new();\n}\n",
    ];
    for way in ways {
        assert_eq!(closed_by("use super::Low;\npub struct High(Low);\n", way), both, "{way}");
    }
}
