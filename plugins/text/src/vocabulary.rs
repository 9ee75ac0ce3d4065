//! What the numbers of a text stand for.

use crate::tokens::Tokens;
use pstrain_plugin::{Context, Result, anyhow, data, ensure};
use std::collections::BTreeSet;
use std::str::FromStr;
use tokenizers::Tokenizer;

/// The longest text that is tokenized at once: a line that has no end does not take the memory.
const LONGEST_LINE: usize = 1 << 20;
/// No tokenizer.json is larger: it goes into the state of the training samples.
const LARGEST_TOKENIZER: usize = 48 << 20;

pub enum Vocabulary {
    /// 0 to 255.
    Bytes,
    /// In the order of Unicode, numbered from 1; all others are 0.
    Characters(Vec<char>),
    Tokenizer(Box<Tokenizer>),
}

impl Vocabulary {
    /// All characters of some files.
    ///
    /// # Errors
    /// If one is no text.
    pub fn of_characters(files: &[String]) -> Result<Vocabulary> {
        let mut seen = BTreeSet::new();
        for file in files {
            // Most are ASCII, and the last one looked up again and again otherwise.
            let mut ascii = [false; 128];
            for character in text(file)?.chars() {
                match ascii.get_mut(character as usize) {
                    Some(known) => *known = true,
                    None => drop(seen.insert(character)),
                }
            }
            seen.extend((0..128u8).filter(|&at| ascii[at as usize]).map(char::from));
        }
        Ok(Vocabulary::Characters(seen.into_iter().collect()))
    }

    /// # Errors
    /// If it is no text of characters in order.
    pub fn of_known_characters(known: &[u8]) -> Result<Vocabulary> {
        let known: Vec<char> =
            std::str::from_utf8(known).context("the characters of the training text")?.chars().collect();
        ensure!(known.is_sorted_by(|a, b| a < b), "the characters of the training text are in no order");
        Ok(Vocabulary::Characters(known))
    }

    /// # Errors
    /// If `json` is no tokenizer.json.
    pub fn of_tokenizer(name: &str, json: &[u8]) -> Result<Vocabulary> {
        ensure!(
            json.len() <= LARGEST_TOKENIZER,
            "`{name}` has {} bytes; a tokenizer may have {LARGEST_TOKENIZER}",
            json.len()
        );
        let text = std::str::from_utf8(json).with_context(|| format!("`{name}` is not UTF-8 text"))?;
        // `tokenizers` panics over some of what is no JSON.
        serde_json::from_str::<serde::de::IgnoredAny>(text)
            .map_err(|error| anyhow!("`{name}` is not JSON: {error}\nhint: is it a tokenizer.json?"))?;
        let tokenizer = Tokenizer::from_str(text).map_err(|error| {
            anyhow!("`{name}` is not a tokenizer that is known here: {error}\nhint: is it a tokenizer.json?")
        })?;
        Ok(Vocabulary::Tokenizer(Box::new(tokenizer)))
    }

    /// How many numbers there are: all are below it.
    pub fn size(&self) -> u64 {
        match self {
            Vocabulary::Bytes => 256,
            Vocabulary::Characters(known) => known.len() as u64 + 1,
            Vocabulary::Tokenizer(tokenizer) => {
                let largest = tokenizer.get_vocab(true).into_values().max();
                largest.map_or(0, |largest| u64::from(largest) + 1)
            }
        }
    }

    /// A file as numbers. `in_memory`: bytes that may stay in memory.
    ///
    /// # Errors
    /// If the file is no text.
    pub fn encode(&self, file: &str, in_memory: u64) -> Result<Tokens> {
        match self {
            Vocabulary::Bytes => Tokens::bytes(file, in_memory),
            Vocabulary::Characters(known) => {
                let text = text(file)?;
                let number = |character| known.binary_search(&character).map_or(0, |at| at as u32 + 1);
                Tokens::collect(file, known.len() as u32, text.chars().map(|character| Ok(number(character))))
            }
            Vocabulary::Tokenizer(tokenizer) => {
                let text = text(file)?;
                let lines = text.split_inclusive('\n').zip(1..);
                let encoded = lines.map(|(line, number)| {
                    tokenized(tokenizer, line).with_context(|| format!("`{file}`, line {number}"))
                });
                let numbers = encoded.flat_map(|ids| match ids {
                    Ok(ids) => ids.into_iter().map(Ok).collect(),
                    Err(error) => vec![Err(error)],
                });
                Tokens::collect(file, self.size().saturating_sub(1) as u32, numbers)
            }
        }
    }
}

/// A file that is to be text.
fn text(file: &str) -> Result<String> {
    let bytes = data::read(file)?;
    String::from_utf8(bytes).map_err(|error| {
        anyhow!(
            "`{file}` is not UTF-8 text: byte {} is not\nhint: save it as UTF-8; `unit = \"bytes\"` takes any file",
            error.utf8_error().valid_up_to()
        )
    })
}

fn tokenized(tokenizer: &Tokenizer, line: &str) -> Result<Vec<u32>> {
    ensure!(
        line.len() <= LONGEST_LINE,
        "it has {} bytes; {LONGEST_LINE} are possible\nhint: break the text into lines",
        line.len()
    );
    let encoding =
        tokenizer.encode_fast(line, false).map_err(|error| anyhow!("the tokenizer fails: {error}"))?;
    Ok(encoding.get_ids().to_vec())
}
