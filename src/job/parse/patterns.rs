//! Patterns of parameters, as keys of a job have them.

use crate::optimizers::matches;

/// Where no name matches the pattern: which names there are, for a hint; `none` where there are none.
pub(in crate::job) fn unmatched(pattern: &str, names: &[String], none: &str) -> Option<String> {
    if names.iter().any(|name| matches(pattern, name)) {
        return None;
    }
    Some(match names {
        [] => none.to_owned(),
        [only] => format!("the only parameter is `{only}`"),
        [first, .., last] => format!("the {} parameters are `{first}` to `{last}`", names.len()),
    })
}
