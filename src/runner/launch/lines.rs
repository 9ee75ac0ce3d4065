//! Cuts a stream of bytes into lines of bounded length.

/// Collects bytes until a line is whole. A line longer than the limit comes in pieces of that length.
#[derive(Debug)]
pub struct Lines {
    pending: Vec<u8>,
    limit: usize,
    /// The pending bytes go on a line of which a piece was given already.
    continued: bool,
}

impl Lines {
    pub fn new(limit: usize) -> Lines {
        Lines { pending: Vec::new(), limit, continued: false }
    }

    /// Adds bytes; returns the lines that they complete, without their ends.
    pub fn push(&mut self, mut bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut complete = Vec::new();
        while !bytes.is_empty() {
            let room = self.limit - self.pending.len();
            let piece = &bytes[..bytes.len().min(room)];
            match piece.iter().position(|&byte| byte == b'\n') {
                Some(end) => {
                    self.pending.extend_from_slice(&piece[..end]);
                    bytes = &bytes[end + 1..];
                    // A line of exactly the limit is one line, not a second, empty one.
                    if !(self.continued && self.pending.is_empty()) {
                        complete.push(self.take());
                    }
                    self.continued = false;
                }
                None => {
                    self.pending.extend_from_slice(piece);
                    bytes = &bytes[piece.len()..];
                    if self.pending.len() == self.limit {
                        complete.push(self.take());
                        self.continued = true;
                    }
                }
            }
        }
        complete
    }

    /// What is left when the stream ends without a line end.
    pub fn finish(&mut self) -> Option<Vec<u8>> {
        (!self.pending.is_empty()).then(|| self.take())
    }

    fn take(&mut self) -> Vec<u8> {
        let mut line = std::mem::take(&mut self.pending);
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(limit: usize, chunks: &[&[u8]]) -> Vec<String> {
        let mut lines = Lines::new(limit);
        let mut all: Vec<Vec<u8>> = chunks.iter().flat_map(|chunk| lines.push(chunk)).collect();
        all.extend(lines.finish());
        all.into_iter().map(|line| String::from_utf8(line).unwrap()).collect()
    }

    #[test]
    fn lines_are_put_together_from_pieces() {
        assert_eq!(split(100, &[b"one\ntw", b"o\r\n\nthr", b"ee"]), ["one", "two", "", "three"]);
    }

    #[test]
    fn a_line_without_end_comes_in_pieces_of_the_limit() {
        assert_eq!(split(4, &[b"abcdefghij\nk\n"]), ["abcd", "efgh", "ij", "k"]);
        assert_eq!(split(4, &[b"abcd\n", b"efgh", b"\n\n"]), ["abcd", "efgh", ""]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn where_the_stream_is_cut_does_not_matter(text in "[a-c\n]{0,60}", cuts in prop::collection::vec(0usize..60, 0..6)) {
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|&cut| cut < text.len()).collect();
            cuts.sort();
            let mut chunks = Vec::new();
            let mut from = 0;
            for cut in cuts.into_iter().chain([text.len()]) {
                chunks.push(&text.as_bytes()[from..cut]);
                from = cut;
            }
            prop_assert_eq!(split(7, &chunks), split(7, &[text.as_bytes()]));
            prop_assert_eq!(split(100, &chunks), text.lines().map(str::to_owned).collect::<Vec<_>>());
        }
    }
}
