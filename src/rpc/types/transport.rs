//! Transports of large tensors, and sets of them.

use std::fmt;
use std::ops::BitAnd;

/// How the bytes of a tensor that does not fit into a message reach another rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// In pieces, on the connection of the calls. Every two ranks can do this.
    Inline,
    /// Same host: the receiver reads them out of the sender's memory (`process_vm_readv`).
    Cma,
    /// Same host: in pieces, through memory that both share.
    Shm,
    /// On a second connection, out of the one tensor's memory and into the other's.
    Bulk,
}

/// Transports by which a rank can receive, or that both sides of a connection have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transports(pub(crate) u32);

impl Transport {
    /// As people write them.
    pub const NAMES: [(&str, Transport); 4] = [
        ("cma", Transport::Cma),
        ("shm", Transport::Shm),
        ("bulk", Transport::Bulk),
        ("inline", Transport::Inline),
    ];

    /// The best first.
    pub(crate) const BY_SPEED: [Transport; 4] =
        [Transport::Cma, Transport::Shm, Transport::Bulk, Transport::Inline];

    /// As in `Hello.transports`.
    pub(crate) fn bit(self) -> u32 {
        match self {
            Transport::Inline => 1,
            Transport::Cma => 2,
            Transport::Shm => 4,
            Transport::Bulk => 8,
        }
    }
}

impl Transports {
    pub const ALL: Transports = Transports(1 | 2 | 4 | 8);

    /// `transport`, and `Inline`, which all ranks take.
    pub fn only(transport: Transport) -> Transports {
        Transports(Transport::Inline.bit() | transport.bit())
    }

    pub(crate) fn has(self, transport: Transport) -> bool {
        self.0 & transport.bit() != 0
    }

    /// Whether ranks of one machine may do what only those can.
    pub(crate) fn near(self) -> bool {
        self.has(Transport::Cma) || self.has(Transport::Shm)
    }
}

impl BitAnd for Transports {
    type Output = Transports;

    fn bitand(self, other: Transports) -> Transports {
        Transports(self.0 & other.0)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Transport::NAMES.iter().find(|(_, transport)| transport == self);
        f.write_str(known.expect("each has a name").0)
    }
}
