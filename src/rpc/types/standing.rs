//! Whether a rank moves on, and what it stands at.

use std::time::Duration;

use crate::topology::Rank;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Grows as the rank moves on.
    pub progress: u64,
    pub at: At,
    /// How long it has stood there.
    pub since: Duration,
    /// It may wait for others in a process group, too.
    pub in_group: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// At work of its own, as far as the mesh knows.
    Working,
    /// A call of its own is not answered.
    Calling {
        to: Rank,
        method: String,
    },
    Barrier {
        name: String,
    },
    /// A call of another rank is served, and waits for something.
    Serving {
        from: Rank,
        method: String,
    },
    /// A call of another rank is served, and computes.
    Computing {
        from: Rank,
        method: String,
    },
}

impl Standing {
    /// For a person: what the rank does.
    pub fn text(&self) -> String {
        let seconds = format!("for {:.1} s", self.since.as_secs_f64());
        match &self.at {
            At::Working if self.in_group => "is at work, or waits in a collective".into(),
            At::Working => "is at work of its own".into(),
            At::Calling { to, method } => format!("waits {seconds} for rank {to} to answer `{method}`"),
            At::Barrier { name } => format!("waits {seconds} at barrier `{name}`"),
            At::Serving { from, method } => {
                format!("serves `{method}` of rank {from} {seconds}, which waits for something")
            }
            At::Computing { from, method } => format!("computes `{method}` of rank {from} {seconds}"),
        }
    }
}
