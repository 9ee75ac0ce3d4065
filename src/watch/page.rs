//! The page of runs: one file of HTML with everything in it, drawn by `assets/page/page.js` from [`View`]s.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::view::{Setup, View};

const PAGE: &str = include_str!("../../assets/page/page.html");
const PAGE_CSS: &str = include_str!("../../assets/page/page.css");
const TEXT_JS: &str = include_str!("../../assets/page/text.js");
const PAGE_JS: &str = include_str!("../../assets/page/page.js");
/// dygraphs 2.2.1 (MIT): `assets/dygraphs`.
const DYGRAPHS_CSS: &str = include_str!("../../assets/dygraphs/dygraph.min.css");
const DYGRAPHS_JS: &str = include_str!("../../assets/dygraphs/dygraph.min.js");

/// What a page shows.
#[derive(Serialize)]
pub struct Page<'a> {
    /// Whoever serves it sends newer ones.
    pub live: bool,
    pub runs: Vec<View<'a>>,
    /// The keys by which the jobs of several runs differ.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differing: Vec<Differing>,
}

/// A key, with its value in each run. None: the job has it not.
#[derive(Debug, PartialEq, Serialize)]
pub struct Differing {
    key: String,
    values: Vec<Option<String>>,
}

impl Page<'_> {
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and texts are JSON")
    }
}

/// The page with what it shows, which is JSON of a [`Page`].
pub fn html(json: &str) -> String {
    // The end of the element must not stand in it.
    let runs = json.replace("</", "<\\/");
    let parts = [
        ("/*DYGRAPHS_CSS*/", DYGRAPHS_CSS),
        ("/*PAGE_CSS*/", PAGE_CSS),
        ("/*RUNS*/", &runs),
        ("/*DYGRAPHS_JS*/", DYGRAPHS_JS),
        ("/*TEXT_JS*/", TEXT_JS),
        ("/*PAGE_JS*/", PAGE_JS),
    ];
    let (mut html, mut rest) = (String::new(), PAGE);
    for (mark, part) in parts {
        let (before, after) = rest.split_once(mark).expect("the page has each mark, in this order");
        html.extend([before, part]);
        rest = after;
    }
    html + rest
}

/// The keys whose values are not the same in all of them.
pub fn differing(jobs: &[&Setup]) -> Vec<Differing> {
    let jobs: Vec<BTreeMap<String, String>> = jobs.iter().map(|job| job.keys()).collect();
    let keys: BTreeSet<&String> = jobs.iter().flat_map(BTreeMap::keys).collect();
    let values = |key: &String| Differing {
        key: key.clone(),
        values: jobs.iter().map(|job| job.get(key).cloned()).collect(),
    };
    let differs = |found: &Differing| found.values.windows(2).any(|pair| pair[0] != pair[1]);
    keys.into_iter().map(values).filter(differs).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_loads_nothing_from_elsewhere_and_no_text_of_a_run_ends_its_element() {
        let page = Page {
            live: false,
            runs: Vec::new(),
            differing: vec![Differing { key: "</script><script>alert(1)".into(), values: vec![None] }],
        };
        let html = html(&page.json());
        assert_eq!(html.matches("</script>").count(), 4);
        assert!(!html.contains("src=\"http") && !html.contains("href=\"http"));
        assert!(!html.contains("/*RUNS*/"));
    }
}
