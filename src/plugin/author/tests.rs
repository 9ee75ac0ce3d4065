use super::*;
use std::collections::BTreeSet;

fn plugin(parent: &Path, lang: Lang, kind: Kind) -> NewPlugin {
    NewPlugin { name: "my-plugin".into(), lang, kind, parent: parent.to_owned() }
}

#[test]
fn a_new_folder_has_all_that_a_build_needs() {
    for (lang, manifest, source) in
        [(Lang::Rust, "Cargo.toml", "src/lib.rs"), (Lang::Python, "pyproject.toml", "plugin.py")]
    {
        for kind in [Kind::Dataset, Kind::Loss, Kind::RawLoss, Kind::Metric] {
            let parent = tempfile::tempdir().unwrap();
            let written = new(&plugin(parent.path(), lang, kind)).unwrap();
            let folder = parent.path().join("my-plugin");
            assert!(written.iter().all(|file| file.is_file() && file.starts_with(&folder)));
            let read = |file: &str| std::fs::read_to_string(folder.join(file)).unwrap();
            assert!(read(manifest).contains("name = \"my-plugin\""));
            assert!(read(source).contains("my-plugin.wasm"));
            assert!(read("job.toml").contains("my-plugin.wasm"));
            assert!(read("wit/plugin.wit").contains("package pstrain:plugin@"));
            for text in [read(manifest), read(source), read("job.toml")] {
                assert!(
                    !text.contains("NAME") && !text.contains("KIND") && !text.contains("DEPENDENCIES"),
                    "{text}"
                );
                assert!(text.ends_with('\n') && !text.ends_with("\n\n"));
            }
        }
    }
}

/// One that is forgotten in the list would be missed only by those who write plug-ins.
#[test]
fn the_whole_sdk_is_inside_the_program() {
    fn walk(folder: &Path, into: &mut BTreeSet<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, into);
            } else {
                into.insert(path);
            }
        }
    }
    let plugins = Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins");
    let mut there = BTreeSet::new();
    walk(&plugins.join("sdk"), &mut there);
    let embedded: BTreeSet<PathBuf> = sources::SDK.iter().map(|(path, _)| plugins.join(path)).collect();
    assert_eq!(embedded, there);
}

#[test]
fn a_folder_that_is_there_is_left_alone() {
    let parent = tempfile::tempdir().unwrap();
    std::fs::create_dir(parent.path().join("my-plugin")).unwrap();
    let error = new(&plugin(parent.path(), Lang::Rust, Kind::Loss)).unwrap_err();
    assert!(matches!(error, AuthorError::Exists { .. }), "{error}");
    assert_eq!(std::fs::read_dir(parent.path().join("my-plugin")).unwrap().count(), 0);
}

#[test]
fn names_that_no_crate_can_have_are_refused() {
    for name in ["", "My", "9lives", "a b", "../x", "a/b", "match", "serde", &"x".repeat(65)] {
        let error = check_name(name).unwrap_err().to_string();
        assert!(error.starts_with(&format!("`{name}` cannot be a plug-in's name: ")), "{error}");
    }
    for name in ["a", "my-data", "data_2"] {
        check_name(name).unwrap();
    }
}

#[test]
fn a_folder_without_a_plugin_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let error = build(folder.path(), None).unwrap_err();
    assert!(matches!(error, AuthorError::NotAPlugin { .. }), "{error}");
    let file = folder.path().join("pyproject.toml");
    std::fs::write(&file, "[project]\nname = \"x\"\n[tool.pstrain]\nkind = \"los\"\n").unwrap();
    assert_eq!(
        build(folder.path(), None).unwrap_err().to_string(),
        format!(
            "`{}`: `los` is not a kind of plug-in; use dataset, loss, raw-loss or metric\n  hint: `pstrain plugin new \
             NAME --lang python` writes one that works",
            file.display()
        )
    );
}
