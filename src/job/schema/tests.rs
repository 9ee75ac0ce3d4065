use std::path::Path;

use super::*;

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect(path)
}

#[test]
fn the_generated_files_are_current() {
    assert!(read("docs/job.md") == reference(), "docs/job.md is stale: `make docs` writes it anew");
    let schema = format!("{:#}\n", schema());
    assert!(
        read("docs/job.schema.json") == schema,
        "docs/job.schema.json is stale: `make docs` writes it anew"
    );
}

#[test]
fn the_reference_lists_layers_optimizers_losses_and_datasets() {
    let text = reference();
    let layers = LAYERS.iter().map(|layer| layer.name);
    let optimizers = optimizers::OPTIMIZERS.iter().map(|optimizer| optimizer.name);
    let shipped = LOSSES.iter().chain(DATASETS).map(|shipped| shipped.name);
    for name in layers.chain(optimizers).chain(shipped) {
        assert!(text.contains(&format!("\n### {name}\n")), "{name}");
    }
}

/// Is there such a key? Names of the user's own stand as they are.
fn is_known(path: &str) -> bool {
    let mut keys = keys::JOB;
    let mut steps = path.split('.').peekable();
    while let Some(step) = steps.next() {
        let Some(kind) = keys.iter().find(|key| key.name() == step).and_then(|key| key.kind().ok()) else {
            return false;
        };
        match kind {
            Kind::Table(inner) => keys = inner,
            Kind::Map(of) => match (*of, steps.next()) {
                (Kind::Table(inner), Some(_)) => keys = inner,
                (Kind::Table(_), None) => return true,
                // A name of the user's own, and what a plug-in knows of it.
                _ => return true,
            },
            Kind::Variants(_, common, variants) => {
                let of_any = variants().into_iter().flat_map(|variant| variant.keys).chain(common);
                return steps.next().is_none_or(|option| of_any.into_iter().any(|key| key.name() == option));
            }
            _ => return steps.next().is_none(),
        }
    }
    true
}

#[test]
fn every_key_that_a_document_names_is_one() {
    let sections: Vec<&str> = keys::JOB.iter().map(|key| key.name()).collect();
    let mut found = 0;
    for document in ["README.md", "plugins/README.md", "docs/performance.md", "src/job/starter.toml"] {
        let text = read(document);
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || "_.".contains(c)));
        for word in words.map(|word| word.trim_matches('.')) {
            let is_key = word.split_once('.').is_some_and(|(section, rest)| {
                sections.contains(&section)
                    && !["rs", "toml", "md", "json", "csv", "py", "safetensors"].contains(&rest)
            });
            if is_key {
                found += 1;
                assert!(is_known(word), "{document} names `{word}`, which is not a key of a job");
            }
        }
    }
    assert!(found > 20, "{found}");
    assert!(is_known("modules.net.place") && is_known("optimizer.lr") && is_known("data.train.images"));
    assert!(!is_known("train.epoch") && !is_known("modules.net.plce") && !is_known("optimizer.momentem"));
}
