//! What a command said, beside what its chapter says that it says.
//!
//! - `...` alone on a line stands for any lines, or none, and within a line for any text.
//! - A number with a point or a comma in it (or a colon or a dash, as times and dates have) is any number: it is another one in
//!   each run. But a figure that says how good a model is has to be near the one that is shown: a percentage within 5, and
//!   within 0.05 what stands behind a word of [`QUALITIES`].
//! - How many spaces there are does not count. All else has to be as it is shown.

/// How far a percentage may be from the one that is shown.
const NEAR: f64 = 5.0;
const QUALITIES: [&str; 4] = ["accuracy", "auc", "r2", "covered"];

/// Whether the output of a command is what is expected.
pub fn is_as_expected(expected: &[String], output: &str) -> bool {
    let expected: Vec<Vec<char>> = expected.iter().map(|line| one_spaced(line)).collect();
    let output: Vec<Vec<char>> = output.lines().map(one_spaced).collect();
    lines_fit(&expected, &output)
}

fn one_spaced(line: &str) -> Vec<char> {
    line.split_whitespace().collect::<Vec<_>>().join(" ").chars().collect()
}

fn lines_fit(expected: &[Vec<char>], output: &[Vec<char>]) -> bool {
    match (expected, output) {
        ([], _) => output.is_empty(),
        ([first, rest @ ..], _) if is_any(first) => {
            (0..=output.len()).any(|skipped| lines_fit(rest, &output[skipped..]))
        }
        (_, []) => false,
        ([first, rest @ ..], [line, others @ ..]) => line_fits(first, line) && lines_fit(rest, others),
    }
}

fn is_any(line: &[char]) -> bool {
    line == ['.', '.', '.']
}

fn line_fits(expected: &[char], line: &[char]) -> bool {
    rest_fits(expected, 0, line)
}

/// What of the expected line stands behind `at` fits `line`.
fn rest_fits(expected: &[char], at: usize, line: &[char]) -> bool {
    if expected[at..].starts_with(&['.', '.', '.']) {
        return (0..=line.len()).any(|skipped| rest_fits(expected, at + 3, &line[skipped..]));
    }
    let (shown, found) = (number(&expected[at..]), number(line));
    if shown.is_empty() {
        return match (expected.get(at), line.first()) {
            (None, None) => true,
            (Some(one), Some(other)) => one == other && rest_fits(expected, at + 1, &line[1..]),
            _ => false,
        };
    }
    // As a whole: 12 is not the beginning of 1,234.
    let behind = at + shown.len();
    let is_whole = shown.iter().all(char::is_ascii_digit);
    let fits = match tolerance(&expected[..at], &expected[behind..]) {
        Some(near) => (value(shown) - value(found)).abs() <= near,
        None if is_whole => shown == found,
        None => !found.is_empty(),
    };
    fits && rest_fits(expected, behind, &line[found.len()..])
}

/// How far a figure may be from the one that is shown between these two, if that counts.
fn tolerance(before: &[char], behind: &[char]) -> Option<f64> {
    if behind.starts_with(&[' ', '%']) {
        return Some(NEAR);
    }
    let before: String = before.iter().collect();
    let word = before.trim_end_matches([' ', ':', '"']);
    let is_quality = word.len() < before.len() && QUALITIES.iter().any(|quality| word.ends_with(quality));
    is_quality.then_some(NEAR / 100.0)
}

/// The number that a text begins with: digits, and what may stand between them.
fn number(text: &[char]) -> &[char] {
    let is_inside = |at: usize| match text.get(at) {
        Some(c) if c.is_ascii_digit() => true,
        Some('.' | ',' | ':' | '-') => at > 0 && text.get(at + 1).is_some_and(char::is_ascii_digit),
        Some('e') => {
            matches!(text.get(at + 1..at + 3), Some(['-', digit]) if at > 0 && digit.is_ascii_digit())
        }
        _ => false,
    };
    let end = (0..).find(|&at| !is_inside(at)).expect("a text ends");
    &text[..end]
}

fn value(number: &[char]) -> f64 {
    number.iter().filter(|&&c| c != ',').collect::<String>().parse().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn fits(expected: &str, output: &str) -> bool {
        let expected: Vec<String> = expected.lines().map(str::to_owned).collect();
        is_as_expected(&expected, output)
    }

    #[test]
    fn all_of_an_output_is_shown_or_left_out_by_dots() {
        assert!(fits("a\nb", "a\nb\n"));
        assert!(!fits("a", "a\nb\n"));
        assert!(!fits("a\nb", "a\n"));
        assert!(!fits("", "a\n"));
        assert!(fits("a\n...\nc\n...", "a\nb\nb\nc\n"));
        assert!(!fits("...\nc", "a\nc\nb\n"));
        assert!(fits("port ... is taken", "port 4 of 5 is taken"));
        assert!(!fits("port ... is taken", "port 4 is free"));
        assert!(fits("a  b", "a      b"));
    }

    #[test]
    fn figures_that_vary_may_and_no_others() {
        assert!(fits("speed 212.4 steps/s, 6,635 samples/s", "speed 9.25 steps/s, 996 samples/s"));
        assert!(fits("run runs/first-20261125-172137", "run runs/first-20270101-000000"));
        assert!(fits("lr 0.003 (all)", "lr 1e-05 (all)"));
        assert!(!fits("epoch 12", "epoch 13"));
        assert!(!fits("12", "1,234"));
        assert!(!fits("loss 0.6", "loss NaN"));
        assert!(fits("accuracy 97.98 %", "accuracy 94.10 %"));
        assert!(!fits("accuracy 97.98 %", "accuracy 91.00 %"));
        assert!(fits("0 % of the time", "4 % of the time"));
        assert!(!fits("0 % of the time", "14 % of the time"));
        assert!(fits("metrics auc 0.8101, rmse 2.5", "metrics auc 0.8312, rmse 3.1"));
        assert!(!fits("metrics auc 0.8101, rmse 2.5", "metrics auc 0.5312, rmse 2.5"));
        assert!(!fits("\"accuracy\":0.9,", "\"accuracy\":0.7,"));
    }
}
