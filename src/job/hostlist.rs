//! Slurm's lists of hosts, `rack1,n[01-03,7]`, as the names that they stand for. Pure.

/// No cluster has so many; a text that stands for more is none of Slurm's.
const MOST_HOSTS: usize = 65_536;

/// The names, in the order of the list. Numbers keep the zeros in front that they are written with, as
/// `scontrol show hostnames` does.
///
/// # Errors
/// What is wrong with the list.
pub fn expand(list: &str) -> Result<Vec<String>, String> {
    let mut hosts = Vec::new();
    for part in split(list)? {
        let names = expand_one(part)?;
        if hosts.len() + names.len() > MOST_HOSTS {
            return Err(format!("it stands for more than {MOST_HOSTS} hosts"));
        }
        hosts.extend(names);
    }
    Ok(hosts)
}

/// The parts between commas that are in no brackets.
fn split(list: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut from, mut inside) = (Vec::new(), 0, false);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'[' if !inside => inside = true,
            b']' if inside => inside = false,
            b'[' | b']' => return Err("its brackets do not match".into()),
            b',' if !inside => {
                parts.push(&list[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err("its brackets do not match".into());
    }
    parts.push(&list[from..]);
    match parts.iter().any(|part| part.trim().is_empty()) {
        true => Err("a name in it is empty".into()),
        false => Ok(parts.into_iter().map(str::trim).collect()),
    }
}

/// `rack[1-2]n[01-03]`: the last brackets count fastest.
fn expand_one(part: &str) -> Result<Vec<String>, String> {
    let (prefix, rest) = part.split_once('[').map_or((part, None), |(prefix, rest)| (prefix, Some(rest)));
    if prefix.contains(char::is_whitespace) {
        return Err(format!("`{part}` is not the name of a host"));
    }
    let Some(rest) = rest else { return Ok(vec![part.into()]) };
    let Some((ranges, suffix)) = rest.split_once(']') else { return Err("its brackets do not match".into()) };
    let suffixes = if suffix.is_empty() { vec![String::new()] } else { expand_one(suffix)? };
    let numbers = numbers(ranges)?;
    if numbers.len().saturating_mul(suffixes.len()) > MOST_HOSTS {
        return Err(format!("it stands for more than {MOST_HOSTS} hosts"));
    }
    let name = |number: &String| {
        let number = number.clone();
        suffixes.iter().map(move |suffix| format!("{prefix}{number}{suffix}"))
    };
    Ok(numbers.iter().flat_map(name).collect())
}

/// `01-03,7`, as they are written.
fn numbers(ranges: &str) -> Result<Vec<String>, String> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let wrong = || format!("`[{range}]` is not a range of numbers");
        let parse = |text: &str| match text.bytes().all(|byte| byte.is_ascii_digit()) {
            true => text.parse::<usize>().map_err(|_| wrong()),
            false => Err(wrong()),
        };
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (from, to) = (parse(first)?, parse(last)?);
        if from > to || to - from >= MOST_HOSTS {
            return Err(wrong());
        }
        let width = first.len();
        numbers.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_are_expanded_as_slurm_does() {
        let expanded = |list| expand(list).expect("a list").join(" ");
        assert_eq!(expanded("n1"), "n1");
        assert_eq!(expanded("n[1-3,7]"), "n1 n2 n3 n7");
        assert_eq!(expanded("login,n[08-11]"), "login n08 n09 n10 n11");
        assert_eq!(expanded("r[1-2]n[1-2]-ib,gpu-a"), "r1n1-ib r1n2-ib r2n1-ib r2n2-ib gpu-a");
        assert_eq!(expanded("10.0.0.[1-2]"), "10.0.0.1 10.0.0.2");
    }

    #[test]
    fn what_is_no_list_is_refused_with_the_reason() {
        let refused = |list| expand(list).expect_err("no list");
        assert_eq!(refused(""), "a name in it is empty");
        assert_eq!(refused("a,,b"), "a name in it is empty");
        assert_eq!(refused("0 [0]"), "`0 [0]` is not the name of a host");
        assert_eq!(refused("n[1-3"), "its brackets do not match");
        assert_eq!(refused("n1-3]"), "its brackets do not match");
        assert_eq!(refused("n[[1]]"), "its brackets do not match");
        assert_eq!(refused("n[3-1]"), "`[3-1]` is not a range of numbers");
        assert_eq!(refused("n[a-b]"), "`[a-b]` is not a range of numbers");
        assert_eq!(refused("n[]"), "`[]` is not a range of numbers");
        assert_eq!(refused("n[0-99999999]"), "`[0-99999999]` is not a range of numbers");
        assert_eq!(refused("n[1-900]m[1-900]"), "it stands for more than 65536 hosts");
        assert_eq!(refused("a b"), "`a b` is not the name of a host");
    }

    /// Hosts by the prefix, and the numbers of a range with its width.
    fn range() -> impl Strategy<Value = (usize, usize, usize)> {
        (0usize..200, 0usize..20, 1usize..5)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn names_come_back_in_the_order_of_the_list(prefix in "[a-z]{1,4}-?", ranges in prop::collection::vec(range(), 1..5)) {
            let written: Vec<String> = ranges.iter().map(|&(from, more, width)| match more {
                0 => format!("{from:0width$}"),
                _ => format!("{from:0width$}-{:0width$}", from + more),
            }).collect();
            let names: Vec<String> = ranges
                .iter()
                .flat_map(|&(from, more, width)| (from..=from + more).map(move |n| format!("{n:0width$}")))
                .map(|number| format!("{prefix}{number}"))
                .collect();
            let list = format!("{prefix}[{}]", written.join(","));
            prop_assert_eq!(expand(&list).unwrap(), names.clone());
            prop_assert_eq!(expand(&names.join(",")).unwrap(), names);
        }

        #[test]
        fn any_text_is_expanded_or_refused(text in "[a-c0-9,\\[\\]\\- ]{0,24}") {
            if let Ok(hosts) = expand(&text) {
                prop_assert!(!hosts.is_empty() && hosts.len() <= MOST_HOSTS);
                prop_assert!(hosts.iter().all(|host| !host.is_empty() && !host.contains([',', '[', ']', ' '])));
            }
        }
    }
}
