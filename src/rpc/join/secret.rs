//! Proofs that a rank knows the token, without sending it: HMAC-SHA-256 (RFC 2104).

use rand::TryRng;
use rand::rngs::SysRng;
use sha2::{Digest, Sha256};

/// What both sides of a connection know.
#[derive(Clone)]
pub(crate) struct Key {
    /// SHA-256's block, as HMAC wants its key.
    block: [u8; 64],
}

pub(crate) type Mac = [u8; 32];

impl Key {
    /// Without a token everybody knows the key; rank 0 then listens on loopback only.
    pub fn from_token(token: Option<&str>) -> Key {
        Key::from_bytes(token.unwrap_or_default().as_bytes())
    }

    pub fn from_bytes(bytes: &[u8]) -> Key {
        let mut block = [0; 64];
        match bytes.len() <= block.len() {
            true => block[..bytes.len()].copy_from_slice(bytes),
            false => block[..32].copy_from_slice(&Sha256::digest(bytes)),
        }
        Key { block }
    }

    /// Over all `parts`; each is preceded by its length, so that no two lists of parts look the same.
    pub fn mac(&self, parts: &[&[u8]]) -> Mac {
        let mut bytes = Vec::new();
        for part in parts {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part);
        }
        self.hmac(&bytes)
    }

    fn hmac(&self, bytes: &[u8]) -> Mac {
        let inner =
            Sha256::new().chain_update(self.block.map(|byte| byte ^ 0x36)).chain_update(bytes).finalize();
        Sha256::new().chain_update(self.block.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize().into()
    }
}

/// Compares in a time that does not depend on where they differ.
pub(crate) fn same(one: &Mac, other: &[u8]) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).fold(0, |differ, (one, other)| differ | (one ^ other)) == 0
}

/// Random bytes that nobody can have known before.
pub(crate) type Nonce = [u8; 32];

pub(crate) fn nonce() -> Nonce {
    let mut nonce = [0; 32];
    SysRng.try_fill_bytes(&mut nonce).expect("the system has random numbers");
    nonce
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::human::hex;

    #[test]
    fn the_mac_is_that_of_rfc_4231() {
        let short = Key::from_bytes(b"Jefe").hmac(b"what do ya want for nothing?");
        assert_eq!(hex(short), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        let long =
            Key::from_bytes(&[0xaa; 131]).hmac(b"Test Using Larger Than Block-Size Key - Hash Key First");
        assert_eq!(hex(long), "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    }

    #[test]
    fn parts_cannot_be_moved_from_one_to_the_next() {
        let key = Key::from_token(Some("secret"));
        assert_ne!(key.mac(&[b"ab", b"c"]), key.mac(&[b"a", b"bc"]));
        assert!(same(&key.mac(&[b"a"]), &key.mac(&[b"a"])));
        assert!(!same(&key.mac(&[b"a"]), &key.mac(&[b"b"])));
        assert!(!same(&key.mac(&[b"a"]), &[]));
    }
}
