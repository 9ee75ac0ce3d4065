//! Proofs that a rank knows the token, without sending it: HMAC-SHA-256 (RFC 2104).

use hmac::{Hmac, KeyInit as _, Mac as _};
use rand::TryRng;
use rand::rngs::SysRng;
use sha2::Sha256;
use subtle::ConstantTimeEq as _;

use crate::rpc::types::token::Token;

/// What both sides of a connection know.
#[derive(Clone)]
pub(crate) struct Key {
    mac: Hmac<Sha256>,
    /// Everybody knows it.
    is_public: bool,
}

pub(crate) type Mac = [u8; 32];

impl Key {
    /// Without a token everybody knows the key; rank 0 then listens on loopback only, and to processes of its own user.
    pub fn from_token(token: Option<&Token>) -> Key {
        Key::from_bytes(token.map_or(&[], |token| token.key()), token.is_none())
    }

    /// The key for connections between ranks other than 0, from the secret that rank 0 tells them. Only who knows this
    /// key can make it, though the secret goes over the wire.
    pub fn of_session(&self, secret: &[u8; 32]) -> Key {
        Key::from_bytes(&self.mac(&[b"session", secret]), self.is_public)
    }

    fn from_bytes(bytes: &[u8], is_public: bool) -> Key {
        Key { mac: Hmac::new_from_slice(bytes).expect("HMAC takes keys of any length"), is_public }
    }

    /// Whether a proof says nothing: there is no token.
    pub fn is_public(&self) -> bool {
        self.is_public
    }

    /// Over all `parts`; each is preceded by its length, so that no two lists of parts look the same.
    pub fn mac(&self, parts: &[&[u8]]) -> Mac {
        let mut mac = self.mac.clone();
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac.finalize().into_bytes().into()
    }
}

/// Compares in a time that does not depend on where they differ.
pub(crate) fn same(one: &Mac, other: &[u8]) -> bool {
    one.as_slice().ct_eq(other).into()
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

    /// Python: `hmac.new(key, struct.pack("<Q", 28) + b"what do ya want for nothing?", "sha256").hexdigest()`
    #[test]
    fn the_mac_is_that_of_another_implementation() {
        let said: [&[u8]; 1] = [b"what do ya want for nothing?"];
        let (short, long) = (Key::from_bytes(b"Jefe", false), Key::from_bytes(&[0xaa; 131], false));
        assert_eq!(hex(short.mac(&said)), "c0b77cf99718fc7f09c8727ff74305bde25761b2db20b1081cfcc82a3ec6029e");
        assert_eq!(hex(long.mac(&said)), "729de9d8c2ae76eb98d080c1f80ac2e1f29e319ea2718bfb760ec6e04f65ec58");
    }

    #[test]
    fn parts_cannot_be_moved_from_one_to_the_next() {
        let key = Key::from_bytes(b"secret", false);
        assert_ne!(key.mac(&[b"ab", b"c"]), key.mac(&[b"a", b"bc"]));
        assert!(same(&key.mac(&[b"a"]), &key.mac(&[b"a"])));
        assert!(!same(&key.mac(&[b"a"]), &key.mac(&[b"b"])));
        assert!(!same(&key.mac(&[b"a"]), &[]));
    }
}
