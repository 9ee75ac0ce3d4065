//! Text for language models. Fields: `input` and `target`, int64 [length]: `target` is the text one further on.

mod tokens;
mod vocabulary;

use pstrain_plugin::prelude::*;
use tokens::Tokens;
use vocabulary::Vocabulary;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// One or several, of which the last part may have `*` and `?`.
    file: OneOrMore,
    length: u64,
    /// From one sample's beginning to the next one's; `length` if not given.
    stride: Option<u64>,
    #[serde(default)]
    unit: Unit,
    /// A tokenizer.json.
    tokenizer: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "wanted a file's name, or a list of them")]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum Unit {
    #[default]
    Bytes,
    Characters,
    Tokens,
}

impl Unit {
    fn word(self) -> &'static str {
        match self {
            Unit::Bytes => "bytes",
            Unit::Characters => "characters",
            Unit::Tokens => "tokens",
        }
    }
}

/// A file above this size stays on disk, where its bytes are the numbers.
const IN_MEMORY: u64 = 64 << 20;
const LONGEST: u64 = 1 << 24;

struct Text {
    length: u64,
    stride: u64,
    files: Vec<Windows>,
    /// What the training text settles.
    state: Option<Vec<u8>>,
    numbers: Vec<i64>,
}

/// The samples of one file.
struct Windows {
    tokens: Tokens,
    /// The number of the first among those of all files.
    first: u64,
    count: u64,
}

impl Text {
    fn read(config: Config, state: Option<&[u8]>) -> Result<Self> {
        let Config { file, length, stride, unit, tokenizer } = config;
        ensure!(
            (1..=LONGEST).contains(&length),
            "`length` = {length} is not from 1 to {LONGEST}\nhint: say how many {} a sample has, for example 128",
            unit.word()
        );
        let stride = stride.unwrap_or(length);
        ensure!(
            stride > 0,
            "`stride` = 0 makes endlessly many samples\nhint: leave it out for samples one behind the other"
        );
        let names = data::find_all(&match file {
            OneOrMore::One(name) => vec![name],
            OneOrMore::More(names) => names,
        })?;
        ensure!(
            tokenizer.is_some() == (unit == Unit::Tokens),
            "`unit = \"tokens\"` and `tokenizer`, the tokenizer.json, go together\nhint: {}",
            match unit {
                Unit::Tokens => "set `tokenizer` to the name of the file",
                _ => "set `unit = \"tokens\"`, or leave `tokenizer` out",
            }
        );
        let (vocabulary, state) = match (unit, tokenizer, state) {
            (Unit::Characters, _, None) => {
                let vocabulary = Vocabulary::of_characters(&names)?;
                let known = match &vocabulary {
                    Vocabulary::Characters(known) => known.iter().collect::<String>().into_bytes(),
                    _ => Vec::new(),
                };
                (vocabulary, Some(known))
            }
            (Unit::Characters, _, Some(known)) => (Vocabulary::of_known_characters(known)?, None),
            (Unit::Tokens, Some(name), None) => {
                let json = data::read(&name)?;
                (Vocabulary::of_tokenizer(&name, &json)?, Some(json))
            }
            // The one that the training text had, whatever has become of the file.
            (Unit::Tokens, Some(name), Some(json)) => (Vocabulary::of_tokenizer(&name, json)?, None),
            _ => (Vocabulary::Bytes, None),
        };
        let mut text = Text { length, stride, files: Vec::new(), state, numbers: Vec::new() };
        let mut left = IN_MEMORY;
        for name in &names {
            let tokens = vocabulary.encode(name, left)?;
            if matches!(tokens, Tokens::Bytes(_)) {
                left = left.saturating_sub(tokens.count());
            }
            text.add(tokens);
        }
        ensure!(
            text.len() > 0,
            "`{}` has fewer than {} {}: `length` and one more for the target\nhint: lower `length`",
            names.join("`, `"),
            length + 1,
            unit.word()
        );
        log::info(format!("numbers below {}: the vocabulary of a model", vocabulary.size()));
        Ok(text)
    }

    fn add(&mut self, tokens: Tokens) {
        let count = tokens.count().checked_sub(self.length + 1).map_or(0, |room| room / self.stride + 1);
        let first = self.len();
        self.files.push(Windows { tokens, first, count });
    }

    /// Reads a sample's numbers and the one behind them.
    fn window(&mut self, index: u64) -> Result<()> {
        let at = self.files.partition_point(|file| file.first + file.count <= index);
        let file = self.files.get_mut(at).with_context(|| format!("there is no sample {index}"))?;
        self.numbers.resize(self.length as usize + 1, 0);
        file.tokens.read((index - file.first) * self.stride, &mut self.numbers)
    }
}

impl Dataset for Text {
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        Text::read(config, None)
    }

    fn open_with(config: Config, state: &[u8]) -> Result<Self> {
        Text::read(config, Some(state))
    }

    /// The characters that there are, or the tokenizer.
    fn state(&self) -> Result<Option<Vec<u8>>> {
        Ok(self.state.clone())
    }

    fn len(&self) -> u64 {
        self.files.last().map_or(0, |file| file.first + file.count)
    }

    fn fields(&self) -> Vec<Field> {
        ["input", "target"].map(|name| Field::new(name, DType::Int64, [self.length])).into()
    }

    fn batch(&mut self, batch: &mut Batch) -> Result<()> {
        let length = self.length as usize;
        for (field, start) in [(0, 0), (1, 1)] {
            batch.fill(field, |index, to: &mut [i64]| {
                self.window(index)?;
                to.copy_from_slice(&self.numbers[start..start + length]);
                Ok(())
            })?;
        }
        Ok(())
    }
}

export_dataset!(Text);

#[cfg(test)]
mod tests;
