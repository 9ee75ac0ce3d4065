//! How the parameters of modules with `run = "caller"` travel, and which server holds what of them.

use std::ops::Range;

use serde::Serialize;

use super::super::size;
use super::ModuleSpec;
use crate::human::counted;

/// `[pull_push]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PullPush {
    pub filter: Filter,
}

/// What pushed gradients and pulled parameters become on their way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Filter {
    /// They travel as they are, f32.
    None,
    Fp16,
    Bf16,
    /// Whole numbers from -127 to 127 and one scale for each [`Filter::INT8_BLOCK`] of them.
    Int8,
    /// The largest values, this share of all; the others wait.
    TopK {
        share: f64,
    },
}

impl Filter {
    /// Values that share a scale.
    pub const INT8_BLOCK: u64 = 256;
    /// Values that share the upper part of their index.
    pub const TOP_K_BLOCK: u64 = 1 << 16;

    /// Bytes of so many f32 values on their way.
    pub fn bytes(self, values: u64) -> u64 {
        match self {
            Filter::None => values.saturating_mul(4),
            Filter::Fp16 | Filter::Bf16 => values.saturating_mul(2),
            Filter::Int8 => values.saturating_add(4 * values.div_ceil(Filter::INT8_BLOCK)),
            // An offset of 16 bits and the value itself; how many there are in each block.
            Filter::TopK { share } => {
                let kept = Filter::kept(share, values);
                kept.saturating_mul(6).saturating_add(4 * values.div_ceil(Filter::TOP_K_BLOCK))
            }
        }
    }

    /// How many of so many values `top_k` sends: one at least.
    pub fn kept(share: f64, values: u64) -> u64 {
        ((share * values as f64).ceil() as u64).clamp(1, values.max(1)).min(values)
    }
}

/// The parts of a module's parameters, taken as one vector, that its servers hold: one for each, next to one another,
/// of sizes that differ by one at most.
pub fn ranges(values: u64, servers: usize) -> Vec<Range<u64>> {
    let servers = servers as u128;
    let start = |server: u128| (u128::from(values) * server / servers) as u64;
    (0..servers).map(|server| start(server)..start(server + 1)).collect()
}

/// Why the servers of a module with so many parameters cannot hold them, and a hint; None if they can.
pub fn unservable(module: &ModuleSpec, parameters: u64) -> Option<(String, String)> {
    const MOST: u64 = size::LARGEST_MESSAGE / size::BYTES_PER_PARAMETER;
    let (role, servers) = (&module.place.name, module.place.ranks.len());
    if parameters < servers as u64 {
        let count = counted(servers as u64, "rank");
        let hint = "use fewer servers; a module that trains nothing needs no run = \"caller\": place it on the role that trains";
        let problem = format!("has {parameters} parameters to train for the {count} of role `{role}`");
        return Some((problem, hint.into()));
    }
    let largest = ranges(parameters, servers).into_iter().map(|range| range.end - range.start).max()?;
    (largest > MOST).then(|| {
        let problem = format!("gives each rank of role `{role}` more than the 4 GiB of a message");
        (problem, format!("use at least {} servers", parameters.div_ceil(MOST)))
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_filter_tells_how_many_bytes_travel() {
        let bytes = |filter: Filter| filter.bytes(100_000);
        assert_eq!(bytes(Filter::None), 400_000);
        assert_eq!((bytes(Filter::Fp16), bytes(Filter::Bf16)), (200_000, 200_000));
        assert_eq!(bytes(Filter::Int8), 100_000 + 4 * 391);
        assert_eq!(bytes(Filter::TopK { share: 0.01 }), 6 * 1000 + 4 * 2);
        assert_eq!(Filter::TopK { share: 1e-9 }.bytes(3), 6 + 4, "one at least");
        assert_eq!(Filter::TopK { share: 0.5 }.bytes(0), 0);
    }

    proptest! {
        #[test]
        fn servers_hold_every_value_once_and_equal_parts(values in 0u64..1 << 40, servers in 1usize..40) {
            let ranges = ranges(values, servers);
            prop_assert_eq!(ranges.len(), servers);
            prop_assert_eq!((ranges[0].start, ranges[servers - 1].end), (0, values));
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            let sizes = || ranges.iter().map(|range| range.end - range.start);
            prop_assert!(sizes().max().unwrap() - sizes().min().unwrap() <= 1);
        }
    }
}
