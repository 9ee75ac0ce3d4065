//! The labels of invariants: each is of one invariant, and one that is cited is there.

use std::collections::BTreeMap;

use super::sources;

/// `A-1`, `RT-11`: one or two capitals and a number.
fn is_label(word: &str) -> bool {
    let Some((letters, number)) = word.split_once('-') else { return false };
    (1..=2).contains(&letters.len())
        && letters.chars().all(|c| c.is_ascii_uppercase())
        && (1..=2).contains(&number.len())
        && number.chars().all(|c| c.is_ascii_digit())
}

/// The text of a line's comment, if it is one of documentation.
fn documentation(line: &str) -> Option<&str> {
    let line = line.trim_start();
    line.strip_prefix("//!").or_else(|| line.strip_prefix("///"))
}

/// The label that a line of a module's head introduces: as an item of a list, or with a colon behind it.
fn introduced(line: &str) -> Option<&str> {
    let text = documentation(line)?.trim_start();
    let item = text.strip_prefix("- ").or_else(|| text.strip_prefix("* "));
    let word = item.unwrap_or(text).split_whitespace().next()?;
    let is_head = item.is_some() || (line.starts_with("//!") && word.ends_with(':'));
    let label = word.trim_matches(['`', ':']);
    (is_head && is_label(label)).then_some(label)
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !(c.is_alphanumeric() || c == '-' || c == '_')).filter(|word| is_label(word))
}

#[test]
fn each_label_is_of_one_invariant_and_one_that_is_cited_is_there() {
    let sources = sources();
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let lines = || {
        sources
            .iter()
            .flat_map(|source| (1..).zip(source.text.lines()).map(move |(at, line)| (source, at, line)))
    };
    for (source, at, line) in lines() {
        if let Some(label) = introduced(line) {
            places.entry(label).or_default().push(format!("src/{}:{at}", source.path));
        }
    }
    assert!(places.len() >= 60, "only {} labels found", places.len());
    for (label, places) in &places {
        assert_eq!(places.len(), 1, "{label} stands at {}", places.join(" and "));
    }
    for (source, at, line) in lines().filter(|(_, _, line)| line.trim_start().starts_with("//")) {
        for word in words(line) {
            assert!(places.contains_key(word), "src/{}:{at} cites {word}, which is nowhere", source.path);
        }
    }
}
