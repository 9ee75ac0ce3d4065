use super::*;
use proptest::prelude::*;
use pstrain_plugin::testing;

fn opened(files: &[(&str, &[u8])], config: &str, state: Option<&[u8]>) -> Result<Text, String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let root = folder.path().display().to_string();
    let config = config.replace("FOLDER", &root);
    let opened = match state {
        None => testing::open(&config),
        Some(state) => testing::open_with(&config, state),
    };
    opened.map_err(|error| format!("{error:#}").replace(&format!("{root}/"), ""))
}

fn all(text: &mut Text) -> Vec<(Vec<i64>, Vec<i64>)> {
    let length = text.length as usize;
    let batch = testing::batch(text, &(0..text.len()).collect::<Vec<_>>()).unwrap();
    let [input, target] = [0, 1].map(|field| batch[field].values::<i64>());
    input.chunks(length).map(<[i64]>::to_vec).zip(target.chunks(length).map(<[i64]>::to_vec)).collect()
}

#[test]
fn the_target_is_the_text_one_further_on() {
    let config = r#"{"file": "FOLDER/a.txt", "length": 3, "stride": 2}"#;
    let mut text = opened(&[("a.txt", b"ABCDEFG")], config, None).unwrap();
    let pairs = [(vec![65, 66, 67], vec![66, 67, 68]), (vec![67, 68, 69], vec![68, 69, 70])];
    assert_eq!(all(&mut text), pairs);
    // One more letter, and there is room for another.
    assert_eq!(opened(&[("a.txt", b"ABCDEFGH")], config, None).unwrap().len(), 3);
}

#[test]
fn samples_do_not_go_from_one_file_to_the_next() {
    let config = r#"{"file": ["FOLDER/*.txt"], "length": 2}"#;
    let mut text =
        opened(&[("a.txt", b"abc"), ("b.txt", b"xy"), ("c.txt", b"123456")], config, None).unwrap();
    let inputs: Vec<Vec<i64>> = all(&mut text).into_iter().map(|(input, _)| input).collect();
    assert_eq!(inputs, [[97, 98], [49, 50], [51, 52]]);
}

#[test]
fn characters_are_numbered_as_the_training_text_has_them() {
    let config = r#"{"file": "FOLDER/a.txt", "length": 2, "unit": "characters"}"#;
    let mut text = opened(&[("a.txt", "bäa".as_bytes())], config, None).unwrap();
    assert_eq!(all(&mut text), [(vec![2, 3], vec![3, 1])]);
    let state = text.state().unwrap().unwrap();
    assert_eq!(state, "abä".as_bytes());
    let mut test = opened(&[("a.txt", "azä".as_bytes())], config, Some(&state)).unwrap();
    assert_eq!(all(&mut test), [(vec![1, 0], vec![0, 3])]);
    let error = opened(&[("a.txt", b"ab\xffc")], config, None).err().unwrap();
    assert_eq!(
        error,
        "`a.txt` is not UTF-8 text: byte 2 is not\nhint: save it as UTF-8; `unit = \"bytes\"` takes any file"
    );
}

/// Words are looked up; what is none of them is 0.
const TOKENIZER: &str = r#"{"version": "1.0", "added_tokens": [], "normalizer": {"type": "Lowercase"},
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "low": 1, "lower": 2, "new": 300}, "unk_token": "[UNK]"}}"#;

#[test]
fn a_tokenizer_makes_tokens_line_by_line() {
    let config = r#"{"file": "FOLDER/a.txt", "length": 3, "unit": "tokens", "tokenizer": "FOLDER/t.json"}"#;
    let files: [(&str, &[u8]); 2] = [("a.txt", b"Low lower\nnew x\n"), ("t.json", TOKENIZER.as_bytes())];
    let mut text = opened(&files, config, None).unwrap();
    assert_eq!(all(&mut text), [(vec![1, 2, 300], vec![2, 300, 0])]);
    // The training text's, not the file's.
    let state = text.state().unwrap().unwrap();
    let mut test = opened(&[files[0], ("t.json", b"{}")], config, Some(&state)).unwrap();
    assert_eq!(all(&mut test), all(&mut text));
    let error = opened(&[files[0], ("t.json", b"{}")], config, None).err().unwrap();
    assert!(error.starts_with("`t.json` is not a tokenizer that is known here: "), "{error}");
    let error =
        opened(&files, r#"{"file": "FOLDER/a.txt", "length": 3, "unit": "tokens"}"#, None).err().unwrap();
    assert_eq!(
        error,
        "`unit = \"tokens\"` and `tokenizer`, the tokenizer.json, go together\n\
         hint: set `tokenizer` to the name of the file"
    );
    let error = opened(&files, r#"{"file": "FOLDER/a.txt", "length": 3, "tokenizer": "t.json"}"#, None);
    let error = error.err().unwrap();
    assert!(error.ends_with("\nhint: set `unit = \"tokens\"`, or leave `tokenizer` out"), "{error}");
}

#[test]
fn what_makes_no_sample_is_told() {
    let error = |config: &str| opened(&[("a.txt", b"abc")], config, None).err().unwrap();
    assert_eq!(
        error(r#"{"file": "FOLDER/a.txt", "length": 3}"#),
        "`a.txt` has fewer than 4 bytes: `length` and one more for the target\nhint: lower `length`"
    );
    assert_eq!(
        error(r#"{"file": "FOLDER/a.txt", "length": 0}"#),
        "`length` = 0 is not from 1 to 16777216\nhint: say how many bytes a sample has, for example 128"
    );
    assert_eq!(
        error(r#"{"file": "FOLDER/a.txt", "length": 1, "stride": 0}"#),
        "`stride` = 0 makes endlessly many samples\nhint: leave it out for samples one behind the other"
    );
}

#[test]
fn a_large_file_is_read_where_it_lies() {
    let folder = tempfile::tempdir().unwrap();
    let name = folder.path().join("a").display().to_string();
    std::fs::write(&name, b"0123456789").unwrap();
    let mut tokens = Tokens::bytes(&name, 9).unwrap();
    assert!(matches!(tokens, Tokens::Disk { .. }));
    let mut numbers = [0; 3];
    tokens.read(7, &mut numbers).unwrap();
    assert_eq!(numbers, [55, 56, 57]);
    assert!(tokens.read(8, &mut numbers).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the bytes are, they are read or refused.
    #[test]
    fn any_file_is_read_or_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..60),
        length in 0u64..6,
        stride in prop::option::of(0u64..5),
        unit in prop::sample::select(vec!["bytes", "characters"]),
    ) {
        let config = serde_json::json!({ "file": "FOLDER/a", "length": length, "stride": stride, "unit": unit });
        match opened(&[("a", &bytes)], &config.to_string(), None) {
            Ok(mut text) => {
                for (input, target) in all(&mut text) {
                    prop_assert_eq!(&input[1..], &target[..target.len() - 1]);
                }
            }
            Err(error) => prop_assert!(!error.is_empty()),
        }
    }

    /// Nor does a tokenizer that is spoilt end in a panic.
    #[test]
    fn any_tokenizer_is_read_or_refused(at: prop::sample::Index, with in "[\\PC]{0,3}") {
        let mut json: Vec<char> = TOKENIZER.chars().collect();
        let at = at.index(json.len());
        json.splice(at..(at + 2).min(json.len()), with.chars());
        let json: String = json.into_iter().collect();
        let config = r#"{"file": "FOLDER/a", "length": 1, "unit": "tokens", "tokenizer": "FOLDER/t"}"#;
        let _ = opened(&[("a", b"low lower new"), ("t", json.as_bytes())], config, None);
    }
}
