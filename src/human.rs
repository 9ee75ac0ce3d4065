//! Numbers as people read them: sizes, counts, times, hashes; and what others wrote, so that a terminal does not obey it.

use std::borrow::Cow;

/// `12 bytes`, `1.5 KiB`, `64.0 KiB`, `4 MiB`: limits are whole numbers of MiB, and what is smaller was measured.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return counted(bytes, "byte");
    }
    let (mut size, mut unit) = (bytes as f64 / 1024.0, 0);
    // Not 1024.0 of a unit, which 1023.96 would be shown as.
    while size >= 1023.95 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    let digits = if unit > 0 && size.fract() == 0.0 { 0 } else { 1 };
    format!("{size:.digits$} {}", UNITS[unit])
}

/// To the byte, for a limit beside what is a little above it: `4 GiB`, `262145 bytes`.
pub fn exact_bytes(bytes: u64) -> String {
    let mut units = [(30, "GiB"), (20, "MiB"), (10, "KiB")].into_iter();
    match units.find(|(shift, _)| bytes >= 1 << shift && bytes.is_multiple_of(1 << shift)) {
        Some((shift, unit)) => format!("{} {unit}", bytes >> shift),
        None => format!("{bytes} bytes"),
    }
}

/// `1 rank`, `3 ranks`, `1,199,882 parameters`.
pub fn counted(count: u64, what: &str) -> String {
    let end = match count {
        1 => "",
        _ if what.ends_with("tch") => "es",
        _ => "s",
    };
    format!("{} {what}{end}", thousands(count))
}

/// `1,199,882`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().filter_map(|group| std::str::from_utf8(group).ok()).collect();
    groups.join(",")
}

/// `12.3 s`, `2 min 05 s`, `1 h 02 min`.
pub fn seconds(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match whole {
        0..60 => format!("{:.1} s", seconds.max(0.0)),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
    }
}

/// What somebody else wrote, cut to what reads well in a message.
pub fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{} ... ({} in all)", &text[..end], counted(text.len() as u64, "byte")),
        None => text.into(),
    }
}

/// Two digits for each byte.
pub fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What others wrote, on one line: characters that a terminal would obey, or that hide or turn around what stands beside
/// them, stand there as escapes.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, |_| false)
}

/// The same of a text of several lines: only these and tabs stay.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |c| matches!(c, '\n' | '\t'))
}

fn escaped(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    let is_plain = |c: char| !is_obeyed(c) || stays(c);
    if text.chars().all(is_plain) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match is_plain(c) {
            true => shown.push(c),
            false => shown.extend(c.escape_default()),
        }
    }
    shown.into()
}

/// Control characters, separators of lines, marks of direction and what has no width.
fn is_obeyed(c: char) -> bool {
    let unseen = ['\u{ad}', '\u{61c}', '\u{180e}', '\u{feff}'];
    let ranges =
        ['\u{200b}'..='\u{200f}', '\u{2028}'..='\u{202e}', '\u{2060}'..='\u{206f}', '\u{fff9}'..='\u{fffb}'];
    c.is_control()
        || unseen.contains(&c)
        || ranges.iter().any(|range| range.contains(&c))
        || ('\u{e0000}'..='\u{e007f}').contains(&c)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        let evil = "\u{1b}]0;owned\u{7}a\u{9b}2J\r\nb\tc \u{202e}txt.exe";
        assert_eq!(one_line(evil), r"\u{1b}]0;owned\u{7}a\u{9b}2J\r\nb\tc \u{202e}txt.exe");
        assert_eq!(printable(evil), "\\u{1b}]0;owned\\u{7}a\\u{9b}2J\\r\nb\tc \\u{202e}txt.exe");
        assert!(matches!(one_line("größe 3 µm, 名前"), Cow::Borrowed(_)));
    }

    proptest! {
        #[test]
        fn nothing_that_is_obeyed_is_left(text in any::<String>()) {
            prop_assert!(!one_line(&text).chars().any(|c| c.is_control()));
            prop_assert!(!printable(&text).chars().any(|c| c.is_control() && c != '\n' && c != '\t'));
        }
    }

    #[test]
    fn sizes_have_the_unit_that_fits_and_no_needless_digits() {
        let sizes = [0, 1, 1023, 1024, 1536, 1 << 20, (1 << 20) + (1 << 19), (1 << 30) - 1, 3 << 40];
        assert_eq!(
            sizes.map(bytes),
            [
                "0 bytes",
                "1 byte",
                "1,023 bytes",
                "1.0 KiB",
                "1.5 KiB",
                "1 MiB",
                "1.5 MiB",
                "1.0 GiB",
                "3 TiB"
            ]
        );
    }

    #[test]
    fn a_limit_that_is_not_round_is_told_to_the_byte() {
        assert_eq!([4 << 30, 1 << 18, (1 << 18) + 1].map(exact_bytes), ["4 GiB", "256 KiB", "262145 bytes"]);
        assert_eq!([1_536, 1_025 << 10].map(exact_bytes), ["1536 bytes", "1025 KiB"]);
    }

    #[test]
    fn things_are_counted_in_plain_words() {
        assert_eq!(counted(1, "rank"), "1 rank");
        assert_eq!(counted(1_200, "parameter"), "1,200 parameters");
        assert_eq!(counted(0, "micro-batch"), "0 micro-batches");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(cut("épée", 4), "épée");
        assert_eq!(cut("épée", 3), "épé ... (6 bytes in all)");
    }

    #[test]
    fn hashes_have_two_digits_a_byte() {
        assert_eq!(hex([0x00, 0x0f, 0xff]), "000fff");
    }
}
