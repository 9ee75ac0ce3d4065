//! Random numbers for augmentation: the same in every run, on every machine, and with any number of instances.

/// The random numbers of one sample in one pass over the data.
///
/// SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014, figure 17).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64, epoch: u32, index: u64) -> Self {
        let pass = mix(seed.wrapping_add(GOLDEN)).wrapping_add(u64::from(epoch));
        Random(mix(pass.wrapping_add(GOLDEN)) ^ mix(index.wrapping_add(GOLDEN)))
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// From 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A whole number below `bound`, which is above 0. (Lemire's multiplication; without rejection, the difference between
    /// two numbers is below `bound` in 2^64.)
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    // The first numbers of Vigna's splitmix64.c from the state 1234567.
    #[test]
    fn numbers_are_those_of_splitmix64() {
        let mut random = Random(1_234_567);
        let numbers = [(); 3].map(|()| random.next_u64());
        assert_eq!(
            numbers,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn each_seed_epoch_and_sample_has_numbers_of_its_own() {
        let first = |seed, epoch, index| Random::new(seed, epoch, index).next_u64();
        assert_eq!(first(7, 2, 100), first(7, 2, 100));
        let mut numbers: Vec<u64> = (0..1000).map(|n| first(n % 10, (n / 10 % 10) as u32, n / 100)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 1000);
    }

    #[test]
    fn numbers_are_spread_over_their_range() {
        let mut random = Random::new(0, 0, 0);
        let mut tenths = [0; 10];
        for _ in 0..10_000 {
            tenths[random.below(10) as usize] += 1;
            assert!((0.0..1.0).contains(&random.unit()));
        }
        assert!(tenths.iter().all(|n| (900..1100).contains(n)), "{tenths:?}");
    }
}
