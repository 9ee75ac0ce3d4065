use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::periods::Occasions;
use super::*;

fn spec(samples: u64, trainers: u32, batch_size: u64) -> ScheduleSpec {
    ScheduleSpec {
        samples,
        trainer: 0,
        trainers,
        batch_size,
        partition: Partition::Split,
        shuffle: true,
        drop_last: false,
        even_steps: false,
        epochs: 2,
        max_steps: 0,
        seed: 1234,
    }
}

/// The schedules of all trainers.
fn world(spec: &ScheduleSpec) -> Vec<Schedule> {
    (0..spec.trainers)
        .map(|trainer| Schedule::new(ScheduleSpec { trainer, ..spec.clone() }).unwrap())
        .collect()
}

#[test]
fn the_same_seed_gives_these_samples_on_every_machine() {
    let first = Schedule::new(spec(10, 1, 4)).unwrap();
    let epochs: Vec<Vec<u64>> = (0..2).map(|epoch| first.epoch(epoch).samples().collect()).collect();
    assert_eq!(epochs, [PINNED_EPOCH_0, PINNED_EPOCH_1]);

    let other = Schedule::new(ScheduleSpec { seed: 1235, ..spec(10, 1, 4) }).unwrap();
    assert_eq!(other.epoch(0).samples().collect::<Vec<_>>(), PINNED_OTHER_SEED);
}

// Computed by a separate implementation of ChaCha8 and of the shuffle (Python, by the same descriptions).
const PINNED_EPOCH_0: [u64; 10] = [0, 3, 5, 4, 8, 2, 1, 9, 6, 7];
const PINNED_EPOCH_1: [u64; 10] = [4, 1, 8, 7, 0, 6, 2, 3, 5, 9];
const PINNED_OTHER_SEED: [u64; 10] = [1, 7, 3, 6, 0, 8, 4, 2, 9, 5];

#[test]
fn trainers_that_each_see_all_data_see_it_in_orders_of_their_own() {
    let whole = world(&ScheduleSpec { partition: Partition::Whole, ..spec(50, 2, 8) });
    let orders: Vec<Vec<u64>> = whole.iter().map(|schedule| schedule.epoch(0).samples().collect()).collect();
    assert_ne!(orders[0], orders[1]);
    let mut sorted = orders[1].clone();
    sorted.sort();
    assert_eq!(sorted, (0..50).collect::<Vec<u64>>());
}

#[test]
fn without_shuffle_samples_keep_their_order() {
    let schedule = Schedule::for_evaluation(5, 2, 0, 1).unwrap();
    let batches: Vec<Vec<u64>> = schedule.batches().map(|batch| batch.indices).collect();
    assert_eq!(batches, [vec![0, 1], vec![2, 3], vec![4]]);
}

#[test]
fn a_limit_on_steps_ends_the_run_inside_an_epoch() {
    let schedule = Schedule::new(ScheduleSpec { max_steps: 4, ..spec(9, 1, 3) }).unwrap();
    let steps: Vec<(u64, u32)> = schedule.batches().map(|batch| (batch.step, batch.epoch)).collect();
    assert_eq!(steps, [(0, 0), (1, 0), (2, 0), (3, 1)]);
    let beyond = Schedule::new(ScheduleSpec { max_steps: 100, ..spec(9, 1, 3) }).unwrap();
    assert_eq!(beyond.total_steps(), 6);
}

#[test]
fn even_steps_leave_out_a_sample_that_would_be_a_batch_of_its_own() {
    // Parts of 5, 4 and 4 with batches of 4: the fifth sample would be a second step for one trainer.
    let uneven: Vec<u64> = world(&spec(13, 3, 4)).iter().map(Schedule::steps_per_epoch).collect();
    assert_eq!(uneven, [2, 1, 1]);
    let even = world(&ScheduleSpec { even_steps: true, ..spec(13, 3, 4) });
    assert_eq!(even.iter().map(Schedule::steps_per_epoch).collect::<Vec<_>>(), [1, 1, 1]);
}

#[test]
fn a_schedule_without_batches_is_refused_with_the_numbers() {
    let refusal = |spec| Schedule::new(spec).unwrap_err().to_string();
    insta::assert_snapshot!(refusal(spec(2, 3, 4)), @r#"
    2 samples cannot be split over 3 trainers: some would have none
      hint: set data.partition = "whole", or use fewer trainers
    "#);
    insta::assert_snapshot!(refusal(ScheduleSpec { drop_last: true, ..spec(10, 3, 4) }), @r"
    `data.drop_last` leaves nothing: a trainer has 3 samples an epoch and `train.batch_size` is 4
      hint: use a batch size of at most 3, or set data.drop_last = false
    ");
    insta::assert_snapshot!(refusal(spec(0, 3, 4)), @r"
    the data set is empty
      hint: is `data.root` the right folder?
    ");
    assert_eq!(Schedule::new(spec(1 << 49, 1, 1)).unwrap_err(), ScheduleError::TooMany(1 << 49));
    assert_eq!(Schedule::new(spec(10, 1, 0)).unwrap_err(), ScheduleError::BadSpec);
    assert_eq!(Schedule::new(spec(10, 0, 1)).unwrap_err(), ScheduleError::BadSpec);
}

/// S-6: lists of these would take 16 GB for each trainer.
#[test]
fn billions_of_samples_are_batched_in_little_memory() {
    let samples = 4_000_000_000;
    let fractions = Partition::Fractions(vec![0.25, 0.5]);
    for partition in [Partition::Split, Partition::Whole, fractions] {
        let first: Vec<Vec<u64>> = world(&ScheduleSpec { partition, ..spec(samples, 2, 32) })
            .iter()
            .map(|schedule| schedule.epoch(1).batch(schedule.steps_per_epoch() / 2))
            .collect();
        let different: BTreeSet<u64> = first.concat().into_iter().collect();
        assert_eq!(different.len(), 64, "{first:?}");
        assert!(different.last().is_some_and(|&last| last < samples));
    }
}

/// S-5
#[test]
fn fractions_are_disjoint_and_keep_to_their_samples() {
    let fractions = Partition::Fractions(vec![0.25, 0.5]);
    let schedules = world(&ScheduleSpec { partition: fractions, ..spec(40, 2, 4) });
    let own = |schedule: &Schedule, epoch| schedule.epoch(epoch).samples().collect::<Vec<u64>>();
    let sets: Vec<BTreeSet<u64>> = schedules.iter().map(|one| own(one, 0).into_iter().collect()).collect();
    assert_eq!((sets[0].len(), sets[1].len()), (10, 20));
    assert!(sets[0].is_disjoint(&sets[1]));
    for (schedule, set) in schedules.iter().zip(&sets) {
        assert_eq!(&own(schedule, 1).into_iter().collect::<BTreeSet<u64>>(), set);
        assert_ne!(own(schedule, 0), own(schedule, 1));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// S-2
    #[test]
    fn split_parts_are_disjoint_and_cover_everything(
        samples in 1u64..500, trainers in 1u32..8, batch_size in 1u64..40, seed: u64, epoch in 0u32..5, shuffle: bool,
    ) {
        prop_assume!(samples >= u64::from(trainers));
        let parts: Vec<Vec<u64>> = world(&ScheduleSpec { seed, shuffle, ..spec(samples, trainers, batch_size) })
            .iter()
            .map(|schedule| schedule.epoch(epoch).samples().collect())
            .collect();
        let together: Vec<u64> = parts.concat();
        let different: BTreeSet<u64> = together.iter().copied().collect();
        prop_assert_eq!(together.len() as u64, samples);
        prop_assert_eq!(different, (0..samples).collect());
        let sizes = parts.iter().map(Vec::len);
        prop_assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1);
    }

    /// S-3
    #[test]
    fn full_batches_together_are_the_batch_of_one_process(
        samples in 1u64..300, trainers in 1u32..6, batch_size in 1u64..20, seed: u64,
    ) {
        prop_assume!(samples >= u64::from(trainers));
        let split = ScheduleSpec { seed, ..spec(samples, trainers, batch_size) };
        let global = batch_size * u64::from(trainers);
        let one = Schedule::new(ScheduleSpec { trainers: 1, batch_size: global, ..split.clone() }).unwrap();
        let epochs: Vec<EpochOrder> = world(&split).iter().map(|schedule| schedule.epoch(1)).collect();
        for nth in 0..samples / global {
            let together: BTreeSet<u64> = epochs.iter().flat_map(|epoch| epoch.batch(nth)).collect();
            prop_assert_eq!(together, one.epoch(1).batch(nth).into_iter().collect::<BTreeSet<u64>>());
        }
    }

    /// S-4
    #[test]
    fn even_steps_are_equal_and_never_empty(
        samples in 1u64..300, trainers in 1u32..6, batch_size in 1u64..20, drop_last: bool, whole: bool,
    ) {
        let partition = if whole { Partition::Whole } else { Partition::Split };
        let even = ScheduleSpec { even_steps: true, drop_last, partition, ..spec(samples, trainers, batch_size) };
        prop_assume!(Schedule::new(even.clone()).is_ok());
        let world = world(&even);
        let left_out = samples - world.iter().map(|schedule| schedule.epoch(0).samples().count() as u64).sum::<u64>().min(samples);
        prop_assert!(drop_last || left_out < u64::from(trainers));
        for schedule in &world {
            prop_assert_eq!(schedule.total_steps(), world[0].total_steps());
            prop_assert_eq!(schedule.batches().count() as u64, schedule.total_steps());
            prop_assert!(schedule.batches().all(|batch| !batch.indices.is_empty()));
        }
    }

    /// S-1, and `batches` agrees with `epoch`.
    #[test]
    fn batches_are_the_epochs_cut_into_pieces(
        samples in 1u64..200, batch_size in 1u64..20, drop_last: bool, seed: u64,
    ) {
        prop_assume!(!drop_last || samples >= batch_size);
        let schedule = Schedule::new(ScheduleSpec { seed, drop_last, ..spec(samples, 1, batch_size) }).unwrap();
        let joined: Vec<u64> = schedule.batches().flat_map(|batch| batch.indices).collect();
        let epochs: Vec<u64> = schedule.epoch(1).samples().collect();
        let first: Vec<u64> = schedule.epoch(0).samples().collect();
        prop_assert_eq!(joined, [first, epochs].concat());
        if drop_last {
            prop_assert!(schedule.batches().all(|batch| batch.indices.len() as u64 == batch_size));
        }
    }
}

/// The schedules of `trainers` that go on behind those of `before`, of which each has taken so many steps.
fn behind(before: &[Schedule], steps: &[u64], now: &ScheduleSpec) -> Result<Vec<Schedule>, ScheduleError> {
    let dealt = before[0].dealt();
    world(now).into_iter().map(|schedule| schedule.going_on(&dealt, steps)).collect()
}

#[test]
fn trainers_that_are_as_many_go_on_with_their_own_samples() {
    let before = world(&spec(40, 2, 4));
    let after = behind(&before, &[3, 7], &spec(40, 2, 4)).unwrap();
    for ((before, after), taken) in before.iter().zip(&after).zip([3, 7]) {
        assert!(before.batches().skip(taken).eq(after.batches()));
    }
}

#[test]
fn trainers_that_are_more_continue_the_batches_of_one_process() {
    // Two have taken batches 0 and 1 of 8 together; what four take next is batch 1 of 16 of the same order.
    let before = world(&spec(64, 2, 4));
    let after = behind(&before, &[2, 2], &spec(64, 4, 4)).unwrap();
    let one = Schedule::new(spec(64, 1, 16)).unwrap();
    let next: BTreeSet<u64> = after.iter().flat_map(|one| one.batches().next().unwrap().indices).collect();
    assert_eq!(next, one.epoch(0).batch(1).into_iter().collect());
    // Eight steps were an epoch; of the first 48 samples are left for three steps, and the second epoch has four.
    let steps: Vec<(u64, u32)> = after[0].batches().map(|batch| (batch.step, batch.epoch)).collect();
    assert_eq!(steps, [(2, 0), (3, 0), (4, 0), (5, 1), (6, 1), (7, 1), (8, 1)]);
    let ends = |period| (1..=9).filter(|&steps| after[0].is_end(period, steps)).collect::<Vec<u64>>();
    assert_eq!(ends(Period::Epochs(1)), [5, 9]);
    assert_eq!(ends(Period::Epochs(2)), [9]);
    assert_eq!(after[0].occasions(Period::Epochs(1), &[]).own, 1);
}

#[test]
fn other_data_and_fractions_are_not_gone_on_with() {
    let before = world(&spec(40, 2, 4));
    let refusal = |now: &ScheduleSpec| behind(&before, &[1, 1], now).unwrap_err().to_string();
    insta::assert_snapshot!(refusal(&spec(41, 2, 4)), @"
    the data had 40 samples where the checkpoint was made, and have 41
      hint: go on with the same data, or begin a new run with `weights` from it
    ");
    let fractions = Partition::Fractions(vec![0.25, 0.25, 0.5]);
    insta::assert_snapshot!(refusal(&ScheduleSpec { partition: fractions, ..spec(40, 3, 4) }), @"
    the trainers' parts are fractions of the data (`data.partition`), and those of the checkpoint cannot be dealt out anew
      hint: go on with as many trainers, under the consistency that they had
    ");
    let mut dealt = before[0].dealt();
    dealt.origin.taken = vec![vec![vec![41, 0]]];
    let broken = Schedule::new(spec(40, 2, 4)).unwrap().going_on(&dealt, &[1, 1]);
    assert_eq!(broken.unwrap_err(), ScheduleError::BadOrigin);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// S-7, over worlds that follow on each other in the middle of epochs.
    #[test]
    fn each_sample_of_an_epoch_is_seen_once_whoever_goes_on(
        samples in 8u64..150, batch_size in 1u64..9, seed: u64, epochs in 1u32..4, even_steps: bool,
        worlds in prop::collection::vec((1u32..6, prop::collection::vec(0u64..40, 6)), 1..4), last in 1u32..6,
    ) {
        let of = |trainers, even_steps| ScheduleSpec { seed, epochs, even_steps, ..spec(samples, trainers, batch_size) };
        let mut seen = vec![BTreeMap::<u64, u32>::new(); epochs as usize];
        let mut take = |batch: Planned| {
            for index in batch.indices {
                *seen[batch.epoch as usize].entry(index).or_default() += 1;
            }
        };
        let mut now = world(&of(worlds[0].0, even_steps));
        for (nth, (_, steps)) in worlds.iter().enumerate() {
            // Where all have to take the same number of steps, they have.
            let taken = now.iter().zip(steps).map(|(one, &own)| {
                let steps = if even_steps { steps[0] } else { own };
                (one.first_step() + steps).min(one.total_steps())
            });
            let taken: Vec<u64> = taken.collect();
            for (one, taken) in now.iter().zip(&taken) {
                one.batches().take_while(|batch| batch.step < *taken).for_each(&mut take);
            }
            let next = worlds.get(nth + 1).map_or(last, |(trainers, _)| *trainers);
            now = behind(&now, &taken, &of(next, even_steps)).unwrap();
        }
        now.iter().flat_map(Schedule::batches).for_each(&mut take);
        for epoch in seen {
            prop_assert!(epoch.values().all(|times| *times == 1), "{:?}", epoch);
            // As many may be left out as without a change: fewer than there are trainers, but where trainers change.
            let left_out = samples - epoch.len() as u64;
            prop_assert!(left_out == 0 || even_steps && left_out < 6 * (worlds.len() as u64 + 1), "{} left out", left_out);
        }
    }

    /// What each trainer comes to, and what the others come to, add up whatever has gone before.
    #[test]
    fn trainers_come_to_as_many_ends_of_periods_as_they_count(
        samples in 8u64..100, batch_size in 1u64..9, steps in prop::collection::vec(0u64..30, 3), every in 1u64..4,
        by_epochs: bool, awaiting in prop::collection::vec(any::<bool>(), 3),
    ) {
        let spec = |trainers| ScheduleSpec { epochs: 4, ..spec(samples, trainers, batch_size) };
        let before = world(&spec(3));
        let taken: Vec<u64> = before.iter().zip(steps).map(|(one, steps)| steps.min(one.total_steps())).collect();
        let period = if by_epochs { Period::Epochs(every) } else { Period::Steps(every) };
        let ends = |one: &Schedule, from: u64, to: u64| {
            (from.max(1)..to).filter(|&steps| one.is_end(period, steps)).count() as u64
        };
        let ahead = |one: &Schedule, awaits: bool| {
            ends(one, one.first_step() + u64::from(!awaits), one.total_steps())
        };
        for one in behind(&before, &taken, &spec(5)).unwrap() {
            prop_assert_eq!(one.occasions(period, &[]).own, ahead(&one, false));
        }
        // As many go on where they were: those that await something, also with the end that they are at.
        let after = behind(&before, &taken, &spec(3)).unwrap();
        let each: Vec<u64> = after.iter().zip(&awaiting).map(|(one, &awaits)| ahead(one, awaits)).collect();
        let passed = after.iter().zip(&awaiting).filter(|(one, _)| one.first_step() < one.total_steps());
        let passed: BTreeSet<u64> =
            passed.map(|(one, &awaits)| ends(one, 1, one.first_step() + u64::from(!awaits))).collect();
        for (one, &own) in after.iter().zip(&each) {
            let most = *each.iter().max().unwrap();
            let expected = Occasions { own, most, are_level: passed.len() < 2 };
            prop_assert_eq!(one.occasions(period, &awaiting), expected);
        }
    }
}
