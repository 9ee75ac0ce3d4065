//! What a rank waits for before the world is complete.

use std::fmt;

use crate::topology::Rank;

/// Said every few seconds while a rank joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// At rank 0: these have not come.
    For(Vec<Rank>),
    /// Rank 0 cannot be reached yet.
    ForCoordinator { address: String, why: String },
    /// Rank 0 has let this rank in, and waits for others.
    ForOthers,
}

impl Waiting {
    /// For a person, who knows ranks by the names that `name_of` gives.
    pub fn text(&self, name_of: impl Fn(Rank) -> String) -> String {
        match self {
            Waiting::For(missing) => {
                let named: Vec<_> = missing.iter().take(MAX_NAMED).map(|rank| name_of(*rank)).collect();
                let more = match missing.len() - named.len() {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                format!("waiting for {}{more}", named.join(", "))
            }
            Waiting::ForCoordinator { address, why } => format!("waiting for rank 0 at {address}: {why}"),
            Waiting::ForOthers => "waiting for other ranks; rank 0 says for which".into(),
        }
    }
}

/// A line has room for no more.
const MAX_NAMED: usize = 8;

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(|rank| format!("rank {rank}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_missing_is_named_as_far_as_a_line_goes() {
        let name = |rank: Rank| format!("trainer{rank}");
        let few = Waiting::For(vec![Rank(1), Rank(3)]);
        assert_eq!(few.text(name), "waiting for trainer1, trainer3");
        assert_eq!(few.to_string(), "waiting for rank 1, rank 3");
        let many = Waiting::For((1..12).map(Rank).collect());
        assert!(many.text(name).ends_with("trainer8 and 3 more"), "{}", many.text(name));
    }
}
