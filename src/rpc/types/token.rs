//! The secret that the ranks of a job share, and nobody else.

use std::fmt;
use std::sync::{Arc, OnceLock};

use argon2::{Algorithm, Argon2, Params, Version};
use rand::TryRng;
use rand::rngs::SysRng;

use crate::human::{counted, hex};

/// A join token. Who has seen a handshake can try tokens without asking anybody, so it must not be one that is guessed.
#[derive(Clone)]
pub struct Token(Arc<Secret>);

struct Secret {
    text: String,
    /// Written once, by who needs it first: it takes a tenth of a second.
    key: OnceLock<[u8; KEY_BYTES]>,
}

/// Why a text will not do as a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{problem}\n  hint: `pstrain token` prints one that nobody guesses; set it on all ranks: export PSTRAIN_TOKEN=..."
)]
pub struct WeakToken {
    problem: String,
}

pub(crate) const KEY_BYTES: usize = 32;

/// The shortest token. What people make up has perhaps two bits a character.
const LEAST_CHARACTERS: usize = 16;

/// Different characters of it: fewer are a pattern.
const LEAST_DIFFERENT: usize = 6;

/// What a try costs whoever guesses: 19 MiB of memory that is gone through six times (Argon2id, RFC 9106). On one slow
/// core that takes about a tenth of a second.
const MEMORY_KIB: u32 = 19 << 10;
const PASSES: u32 = 6;

/// The same for all jobs: rank 0 cannot tell the others one before they have proven the token.
const SALT: &[u8] = b"pstrain join token";

impl Token {
    /// One that somebody has chosen.
    ///
    /// # Errors
    /// It would be guessed.
    pub fn new(text: impl Into<String>) -> Result<Token, WeakToken> {
        let text = text.into();
        let weak = |problem: String| Err(WeakToken { problem });
        let count = text.chars().count();
        if count < LEAST_CHARACTERS {
            return weak(format!(
                "the join token has {}, and needs at least {LEAST_CHARACTERS} lest it be guessed",
                counted(count as u64, "character")
            ));
        }
        let mut different: Vec<char> = text.chars().collect();
        different.sort_unstable();
        different.dedup();
        if different.len() < LEAST_DIFFERENT {
            return weak(format!(
                "the join token has only {} different characters, and needs at least {LEAST_DIFFERENT} lest it be guessed",
                different.len()
            ));
        }
        Ok(Token(Arc::new(Secret { text, key: OnceLock::new() })))
    }

    /// One that nobody can guess, for ranks that this process forks: no other ones learn it.
    pub fn random() -> Token {
        Token(Arc::new(Secret { text: String::new(), key: random_bytes().into() }))
    }

    /// A text that makes a good token.
    pub fn suggestion() -> String {
        hex(random_bytes())
    }

    /// The key that follows from it, after a while.
    pub(crate) fn key(&self) -> &[u8; KEY_BYTES] {
        self.0.key.get_or_init(|| {
            let params = Params::new(MEMORY_KIB, PASSES, 1, Some(KEY_BYTES)).expect("inside the limits");
            let mut key = [0; KEY_BYTES];
            let stretched = Argon2::new(Algorithm::Argon2id, Version::V0x13, params).hash_password_into(
                self.0.text.as_bytes(),
                SALT,
                &mut key,
            );
            stretched.expect("there is memory for it");
            key
        })
    }
}

fn random_bytes() -> [u8; KEY_BYTES] {
    let mut bytes = [0; KEY_BYTES];
    SysRng.try_fill_bytes(&mut bytes).expect("the system has random numbers");
    bytes
}

impl fmt::Debug for Token {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(...)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_would_be_guessed_is_refused_with_how_to_make_one() {
        let problem = |text: &str| Token::new(text).map(drop).expect_err("weak").to_string();
        assert!(problem("x").starts_with("the join token has 1 character, and needs at least 16"));
        assert!(problem("hunter2").contains("hint: `pstrain token` prints one"));
        assert!(problem("abababababababababab").contains("has only 2 different characters"));
        Token::new("correct horse battery").expect("good enough");
    }

    #[test]
    fn random_tokens_are_good_and_differ() {
        assert_ne!(Token::random().key(), Token::random().key());
        let text = Token::suggestion();
        assert_ne!(text, Token::suggestion());
        Token::new(text).expect("as good as one that was chosen");
    }

    #[test]
    fn the_key_is_not_the_token_and_the_same_on_all_ranks() {
        let key = || *Token::new("correct horse battery").expect("good enough").key();
        assert_eq!(key(), key());
        assert_ne!(key(), *Token::new("correct horse batterz").expect("good enough").key());
        // argon2-cffi 25.1: hash_secret_raw(b"correct horse battery", b"pstrain join token", time_cost=6, memory_cost=19 << 10,
        // parallelism=1, hash_len=32, type=Type.ID).hex()
        let stretched = "2d84beeab65a73ea100dcc72e626f045e399197d023b5591eba0ce8f7f79af2c";
        assert_eq!(hex(key()), stretched);
    }

    #[test]
    fn a_token_is_in_no_debug_output() {
        assert_eq!(format!("{:?}", Token::random()), "Token(...)");
    }
}
