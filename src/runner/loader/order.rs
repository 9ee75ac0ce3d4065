//! Orders of many things by a seed: any position's place, without the places of the others.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::job::shards::mix;

/// So many are shuffled as a list, of 16 MiB; of more any place is computed when it is asked for.
const LONGEST_LIST: u64 = 1 << 22;

/// Which of `0..count` stands at each position.
#[derive(Clone, Debug)]
pub enum Order {
    AsIs,
    List(Vec<u32>),
    Keyed(Permutation),
}

impl Order {
    /// By the seed and the stream alone, on every machine.
    pub fn shuffled(count: u64, seed: u64, stream: u64) -> Order {
        let mut rng = generator(seed, stream);
        if count > LONGEST_LIST {
            return Order::Keyed(Permutation::new(count, &mut rng));
        }
        let mut list: Vec<u32> = (0..count as u32).collect();
        shuffle(&mut list, rng);
        Order::List(list)
    }

    /// `position` is below the count.
    pub fn at(&self, position: u64) -> u64 {
        match self {
            Order::AsIs => position,
            Order::List(list) => list[position as usize].into(),
            Order::Keyed(permutation) => permutation.at(position),
        }
    }
}

/// The key is the job's seed.
fn generator(seed: u64, stream: u64) -> ChaCha8Rng {
    let mut key = *b"--------pstrain sample shuffle 1";
    key[..8].copy_from_slice(&seed.to_le_bytes());
    let mut rng = ChaCha8Rng::from_seed(key);
    rng.set_stream(stream);
    rng
}

/// Fisher and Yates' shuffle (Knuth, TAOCP vol. 2, 3.4.2, algorithm P), written out here: a library's
/// may change its use of the generator, and then old runs could not be repeated.
fn shuffle(order: &mut [u32], mut rng: ChaCha8Rng) {
    for last in (1..order.len()).rev() {
        order.swap(last, below(&mut rng, last as u64 + 1) as usize);
    }
}

/// A number below `bound`, each equally likely. Lemire, "Fast Random Integer Generation in an Interval"
/// (2019), section 4.
fn below(rng: &mut ChaCha8Rng, bound: u64) -> u64 {
    let reject_under = bound.wrapping_neg() % bound;
    loop {
        let wide = u128::from(rng.next_u64()) * u128::from(bound);
        if wide as u64 >= reject_under {
            return (wide >> 64) as u64;
        }
    }
}

const ROUNDS: usize = 8;

/// A Feistel network over the smallest power of two that holds all, whose walk from a position goes on until it is
/// below the count: Black and Rogaway, "Ciphers with Arbitrary Finite Domains" (2002), section 3.
#[derive(Clone, Debug)]
pub struct Permutation {
    count: u64,
    /// The bits of the lower half of a number; the upper one has as many or one more.
    low_bits: u32,
    high_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    fn new(count: u64, rng: &mut ChaCha8Rng) -> Permutation {
        let bits = (u64::BITS - count.saturating_sub(1).leading_zeros()).max(2);
        let low_bits = bits / 2;
        let keys = std::array::from_fn(|_| rng.next_u64());
        Permutation { count, low_bits, high_bits: bits - low_bits, keys }
    }

    /// Takes two rounds through the network on average at most: more than half of its numbers are below the count.
    fn at(&self, position: u64) -> u64 {
        let mut place = self.step(position);
        while place >= self.count {
            place = self.step(place);
        }
        place
    }

    fn step(&self, number: u64) -> u64 {
        let (low_mask, high_mask) = ((1 << self.low_bits) - 1, (1u64 << self.high_bits) - 1);
        let (mut low, mut high) = (number & low_mask, number >> self.low_bits);
        for pair in self.keys.chunks_exact(2) {
            high ^= mix(low.wrapping_add(pair[0])) & high_mask;
            low ^= mix(high.wrapping_add(pair[1])) & low_mask;
        }
        high << self.low_bits | low
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn keyed(count: u64, seed: u64) -> Permutation {
        Permutation::new(count, &mut generator(seed, 0))
    }

    // Computed by a separate implementation (Python, by the same descriptions).
    #[test]
    fn a_computed_order_is_the_same_on_every_machine() {
        let first = |count, seed| (0..6).map(|position| keyed(count, seed).at(position)).collect::<Vec<_>>();
        assert_eq!(first(10, 1234), PINNED_TEN);
        assert_eq!(first(1 << 40, 1234), PINNED_LARGE);
    }

    const PINNED_TEN: [u64; 6] = [5, 3, 0, 2, 4, 9];
    const PINNED_LARGE: [u64; 6] =
        [811393135735, 1030727763871, 583493720563, 228218151427, 555485519753, 348836030140];

    #[test]
    fn many_are_put_in_order_without_a_list() {
        let count = 4_000_000_000;
        let Order::Keyed(order) = Order::shuffled(count, 7, 0) else { panic!("a list of {count}") };
        let places: std::collections::BTreeSet<u64> =
            (0..10_000).map(|position| order.at(position)).collect();
        assert_eq!(places.len(), 10_000);
        assert!(places.iter().all(|&place| place < count));
        // Neighbours are not near one another: as many in each tenth as in the others, about.
        let mut tenths = [0u32; 10];
        places.iter().for_each(|place| tenths[(place / (count / 10)) as usize] += 1);
        assert!(tenths.iter().all(|&n| (850..1150).contains(&n)), "{tenths:?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn each_place_is_taken_once(count in 1u64..3000, seed: u64) {
            let order = keyed(count, seed);
            let mut places: Vec<u64> = (0..count).map(|position| order.at(position)).collect();
            places.sort();
            prop_assert_eq!(places, (0..count).collect::<Vec<u64>>());
        }
    }
}
