//! Which runs of a sweep are hopeless: successive halving (Jamieson & Talwalkar, "Non-stochastic Best Arm Identification and
//! Hyperparameter Optimization", AISTATS 2016), with a third going on at each rung. Pure.
//!
//! There the runs of a rung wait for one another. Here none waits: a run goes on past a rung until as many others are known to be
//! better there as may go on, which is when its fate is sealed. So no run is stopped at the first rung that the paper would keep,
//! however many of them run side by side and in whatever order they begin. A run that has come to the next rung meanwhile is judged
//! there, so that of those that have come furthest the best one always goes on.

use crate::metrics::Mode;

/// One in so many goes on at each rung.
const ETA: u64 = 3;

/// What all runs of a sweep are compared by.
#[derive(Clone, Debug)]
pub struct Halving {
    mode: Mode,
    rungs: Vec<Rung>,
}

#[derive(Clone, Debug)]
struct Rung {
    /// Which of a run's figures counts here, from 1.
    nth: u64,
    /// So many go on.
    keeps: usize,
    /// Of the runs that have come here: the step, and the figure.
    figures: Vec<Option<(u64, f64)>>,
}

/// Why a run is stopped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hopeless {
    pub step: u64,
    pub figure: f64,
    /// So many others were better at this place.
    pub better: usize,
}

/// Where runs are compared: the last rung at a third of the way, the one before at a third of that, as many as `runs` allow. `length`:
/// how many figures a run comes to, if that is known; else the first rung is at the first.
pub fn places(runs: usize, length: Option<u64>) -> Vec<u64> {
    let mut count = 0;
    while ETA.checked_pow(count + 1).is_some_and(|power| power <= runs as u64) {
        count += 1;
    }
    let nth = |rung: u32| match length {
        Some(length) => length / ETA.pow(count - rung),
        None => ETA.pow(rung),
    };
    let mut places: Vec<u64> = (0..count).map(nth).map(|nth| nth.max(1)).collect();
    places.dedup();
    // At its end a run is not stopped any more.
    places.retain(|nth| length.is_none_or(|length| *nth < length));
    places
}

impl Halving {
    /// `places`: which of a run's figures count, growing.
    pub fn new(runs: usize, places: &[u64], mode: Mode) -> Halving {
        let keeps = |rung: u32| (runs as u64).div_ceil(ETA.saturating_pow(rung + 1)).max(1) as usize;
        let rungs = (0..).zip(places).map(|(rung, nth)| Rung {
            nth: *nth,
            keeps: keeps(rung),
            figures: vec![None; runs],
        });
        Halving { mode, rungs: rungs.collect() }
    }

    /// A run has come to its `nth` figure, from 1.
    pub fn reached(&mut self, run: usize, nth: u64, step: u64, figure: f64) {
        for rung in self.rungs.iter_mut().filter(|rung| rung.nth == nth) {
            rung.figures[run] = Some((step, figure));
        }
    }

    /// Whether `run` has fallen behind.
    pub fn hopeless(&self, run: usize) -> Option<Hopeless> {
        let reached = |rung: &'_ Rung| Some((rung.keeps, rung.figures[run]?));
        let (at, (keeps, (step, figure))) =
            self.rungs.iter().enumerate().rev().find_map(|(at, rung)| Some((at, reached(rung)?)))?;
        let others = self.rungs[at].figures.iter().enumerate().filter(|(other, _)| *other != run);
        let better =
            others.filter_map(|(_, come)| *come).filter(|(_, other)| self.is_better(*other, figure)).count();
        (better >= keeps).then_some(Hopeless { step, figure, better })
    }

    /// Any number is better than none.
    fn is_better(&self, one: f64, other: f64) -> bool {
        self.mode.is_better(one, if other.is_nan() { self.mode.worst() } else { other }, 0.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rungs_lie_at_thirds_of_the_way_and_are_no_more_than_the_runs_allow() {
        assert_eq!(places(9, Some(27)), [3, 9]);
        assert_eq!(places(26, Some(24)), [2, 8]);
        assert_eq!(places(27, Some(24)), [1, 2, 8]);
        assert_eq!(places(27, None), [1, 3, 9]);
        assert_eq!(places(27, Some(3)), [1]);
        assert_eq!(places(2, Some(24)), [0u64; 0]);
        assert_eq!(places(9, Some(1)), [0u64; 0]);
    }

    #[test]
    fn a_run_is_stopped_once_enough_others_are_known_to_be_better_and_not_before() {
        let mut halving = Halving::new(6, &[2], Mode::Min);
        halving.reached(0, 1, 10, 9.0);
        halving.reached(0, 2, 20, 5.0);
        halving.reached(1, 2, 20, 4.0);
        assert_eq!(halving.hopeless(0), None, "two of six go on");
        halving.reached(2, 2, 20, f64::NAN);
        assert_eq!(halving.hopeless(0), None, "NaN is not better");
        halving.reached(3, 2, 20, 3.0);
        assert_eq!(halving.hopeless(0), Some(Hopeless { step: 20, figure: 5.0, better: 2 }));
        assert!(
            halving.hopeless(2).is_some_and(|hopeless| hopeless.better == 3),
            "whose figure is no number falls behind"
        );
        assert_eq!(halving.hopeless(1), None);
    }

    proptest! {
        /// By sorting, as the paper has it, whichever order the figures come in.
        #[test]
        fn of_the_first_rung_just_the_best_third_goes_on(
            figures in prop::collection::vec(-1000..1000i32, 3..40), order in any::<u64>(), max: bool
        ) {
            let runs = figures.len();
            let mode = if max { Mode::Max } else { Mode::Min };
            let mut halving = Halving::new(runs, &[1], mode);
            let mut come: Vec<usize> = (0..runs).collect();
            come.sort_by_key(|run| (order ^ *run as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            for run in come {
                halving.reached(run, 1, 7, f64::from(figures[run]));
            }
            let mut sorted = figures.clone();
            sorted.sort_unstable();
            if max { sorted.reverse(); }
            let last = sorted[runs.div_ceil(3) - 1];
            for (run, figure) in figures.iter().enumerate() {
                let goes_on = if max { *figure >= last } else { *figure <= last };
                prop_assert_eq!(halving.hopeless(run).is_none(), goes_on);
            }
        }

        /// Runs that go side by side, each at a pace of its own, and end when they are found hopeless.
        #[test]
        fn somebody_always_comes_to_the_end(figures in prop::collection::vec(0..50i32, 9..30), order in any::<u64>()) {
            let runs = figures.len();
            let mut halving = Halving::new(runs, &[1, 3], Mode::Min);
            let (mut at, mut ended) = (vec![0u64; runs], vec![false; runs]);
            let mut state = order;
            while let Some(first) = (0..runs).find(|run| !ended[*run] && at[*run] < 4) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let drawn = (state >> 33) as usize % runs;
                let run = if ended[drawn] || at[drawn] == 4 { first } else { drawn };
                at[run] += 1;
                // Another order at each place.
                let figure = figures[run] * 7_i32.pow(at[run] as u32) % 50;
                halving.reached(run, at[run], 10 * at[run], f64::from(figure));
                (0..runs).for_each(|run| ended[run] |= at[run] < 4 && halving.hopeless(run).is_some());
            }
            prop_assert!((0..runs).any(|run| !ended[run] && at[run] == 4));
        }
    }
}
