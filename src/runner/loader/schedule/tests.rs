use std::collections::BTreeSet;

use proptest::prelude::*;

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
