//! The chapters of docs/guide, each run as it stands: `chapter.rs` says what of its text is run, `output.rs` what its outputs
//! may differ in, `shell.rs` runs it.

mod chapter;
mod output;
mod shell;

use std::fs;
use std::path::{Path, PathBuf};

use crate::program::python_with_torch;
use shell::Have;

/// A test for each chapter, and the list of them.
macro_rules! chapters {
    ($($(#[$attribute:meta])* $name:ident: $file:literal,)*) => {
        const CHAPTERS: &[&str] = &[$($file),*];

        $(#[test]
        $(#[$attribute])*
        fn $name() {
            shell::run($file, None);
        })*
    };
}

chapters! {
    #[ignore = "takes long: `make test-all` runs it"]
    train: "1-train.md",
    #[ignore = "takes long: `make test-all` runs it"]
    look: "2-look.md",
    #[ignore = "takes long: `make test-all` runs it"]
    own_data: "3-own-data.md",
    own_loss: "4-own-loss.md",
    own_model: "5-own-model.md",
    #[ignore = "takes long: `make test-all` runs it"]
    many_machines: "6-many-machines.md",
    #[ignore = "takes long: `make test-all` runs it"]
    resume: "7-resume.md",
    #[ignore = "takes long: `make test-all` runs it"]
    recommender: "8-recommender.md",
    #[ignore = "takes long: `make test-all` runs it"]
    what_goes_wrong: "9-what-goes-wrong.md",
}

/// With what the test above leaves out: PyTorch writes the model, and reads what was trained.
#[test]
#[ignore = "needs a Python with PyTorch: `make interop` runs it"]
fn own_model_in_python() {
    let programs = python_with_torch().parent().map(Path::to_owned);
    shell::run("5-own-model.md", Some(Have { what: "torch", programs }));
}

/// With the building of a plug-in in Python, which has an interpreter in it.
#[test]
#[ignore = "takes long: `make test-all` runs it"]
fn own_loss_whole() {
    shell::run("4-own-loss.md", Some(Have { what: "half a minute", programs: None }));
}

fn guide() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guide")
}

#[test]
fn every_chapter_is_run_and_stands_in_the_index() {
    let files = fs::read_dir(guide()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut files: Vec<String> = files.filter(|name| name.ends_with(".md") && name != "README.md").collect();
    files.sort();
    assert_eq!(files, CHAPTERS);
    let index = fs::read_to_string(guide().join("README.md")).unwrap();
    let places: Vec<_> = CHAPTERS.iter().map(|chapter| index.find(&format!("]({chapter})"))).collect();
    assert!(places.iter().all(Option::is_some), "{places:?}");
    assert!(places.is_sorted(), "the index has the chapters in another order: {places:?}");
}

/// What no test has would be left out by all.
#[test]
fn every_block_is_run_by_some_test() {
    for name in CHAPTERS {
        let text = fs::read_to_string(guide().join(name)).unwrap();
        for needs in chapter::read(&text).unwrap().into_iter().filter_map(|block| block.needs) {
            let is_run = matches!(
                (*name, needs.what.as_str()),
                ("4-own-loss.md", "half a minute") | ("5-own-model.md", "torch")
            );
            assert!(is_run, "docs/guide/{name}: no test has `{}`", needs.what);
        }
    }
}

/// Files and pictures; of `FILE#HEADING` the file has such a heading.
#[test]
fn every_link_of_the_guide_leads_somewhere() {
    let mut links = 0;
    for name in CHAPTERS.iter().chain(&["README.md"]) {
        let text = fs::read_to_string(guide().join(name)).unwrap();
        let prose: String = text.split("```").step_by(2).collect();
        let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for target in targets.filter(|target| !target.starts_with("https://")) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { guide().join(name) } else { guide().join(file) };
            assert!(path.exists(), "docs/guide/{name}: {target}");
            if !heading.is_empty() {
                let linked = fs::read_to_string(&path).unwrap();
                let headings = linked.lines().filter(|line| line.starts_with('#')).map(anchor);
                assert!(
                    headings.collect::<Vec<_>>().contains(&heading.to_owned()),
                    "docs/guide/{name}: {target}"
                );
            }
            links += 1;
        }
    }
    assert!(links > 20, "only {links} links found");
}

/// What GitHub makes of a heading.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    let text: String = heading.trim_start_matches('#').trim().chars().filter(kept).collect();
    text.to_lowercase().replace(' ', "-")
}
