//! The forms of payloads, and sets of them.

use std::fmt;
use std::ops::BitAnd;

/// How the bytes of a tensor that does not fit into a message reach another rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// In pieces, on the connection of the calls. Every two ranks can do this.
    Inline,
    /// Same host: the receiver reads them out of the sender's memory (`process_vm_readv`).
    Cma,
    /// Same host: in pieces, through memory that both share.
    Shm,
    /// On a second connection, out of the one tensor's memory and into the other's.
    Bulk,
}

/// Forms that a rank, or a connection, takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forms(pub(crate) u32);

impl Form {
    /// As people write them.
    pub const NAMES: [(&str, Form); 4] =
        [("cma", Form::Cma), ("shm", Form::Shm), ("bulk", Form::Bulk), ("inline", Form::Inline)];

    /// The best first.
    pub(crate) const BY_SPEED: [Form; 3] = [Form::Cma, Form::Shm, Form::Bulk];

    /// As in `Hello.forms`.
    pub(crate) fn bit(self) -> u32 {
        match self {
            Form::Inline => 1,
            Form::Cma => 2,
            Form::Shm => 4,
            Form::Bulk => 8,
        }
    }
}

impl Forms {
    pub const ALL: Forms = Forms(1 | 2 | 4 | 8);

    /// `form`, and `Inline`, which all ranks take.
    pub fn only(form: Form) -> Forms {
        Forms(Form::Inline.bit() | form.bit())
    }

    pub(crate) fn has(self, form: Form) -> bool {
        self.0 & form.bit() != 0
    }

    /// Whether ranks of one machine may do what only those can.
    pub(crate) fn near(self) -> bool {
        self.has(Form::Cma) || self.has(Form::Shm)
    }
}

impl BitAnd for Forms {
    type Output = Forms;

    fn bitand(self, other: Forms) -> Forms {
        Forms(self.0 & other.0)
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Form::NAMES.iter().find(|(_, form)| form == self);
        f.write_str(known.expect("each has a name").0)
    }
}
