//! What a dataset hands over, and what happens when it does not.

use std::time::Instant;

use insta::assert_snapshot;
use pstrain::job::PluginLimits;
use pstrain::plugin::{Dataset, PluginErrorKind, Purpose};
use serde_json::json;
use tch::{Kind, Tensor};

use super::{EVALUATION, EVIL, LIMITS, SHORT, any_folder, dataset, endless_dataset, told, without_size};

/// The error of opening with `sin`.
fn open_error(sin: &str) -> String {
    told(&dataset(sin).err().expect("it does not open"))
}

/// The error of the first batch.
fn batch_error(sin: &str) -> String {
    told(&dataset(sin).expect("it opens").batch(&[1, 2], EVALUATION).expect_err("no batch"))
}

#[test]
fn a_batch_has_one_tensor_for_each_field_with_the_samples_in_order() {
    let mut dataset = dataset("none").unwrap();
    let info = dataset.info();
    assert_eq!(info.samples, 10);
    assert_eq!(
        info.fields.iter().map(|f| (&*f.name, f.dtype, &*f.shape)).collect::<Vec<_>>(),
        [("x", Kind::Uint8, &[2][..]), ("y", Kind::Int64, &[][..])]
    );
    let batch = dataset.batch(&[7, 0, 7], EVALUATION).unwrap();
    assert_eq!(batch[0].size(), [3, 2]);
    assert_eq!(Vec::<u8>::try_from(batch[0].flatten(0, -1)).unwrap(), [7, 7, 0, 0, 7, 7]);
    assert_eq!(Vec::<i64>::try_from(&batch[1]).unwrap(), [7, 0, 7]);
}

#[test]
fn bytes_arrive_as_they_are_in_every_dtype() {
    let mut dataset = dataset("dtypes").unwrap();
    let kinds =
        dataset.info().fields.iter().map(|field| (field.name.clone(), field.dtype)).collect::<Vec<_>>();
    assert_eq!(kinds.len(), 10);
    let batch = dataset.batch(&[3, 4], EVALUATION).unwrap();
    for ((name, kind), tensor) in kinds.into_iter().zip(batch) {
        assert_eq!((tensor.kind(), tensor.size()), (kind, vec![2, 2, 3]), "{name}");
        let size = kind.elt_size_in_bytes();
        let mut bytes = vec![0; 12 * size];
        tensor.copy_data_u8(&mut bytes, 12);
        let sent: Vec<u8> =
            (0..12 * size).map(|byte| (if kind == Kind::Bool { byte % 2 } else { byte }) as u8).collect();
        assert_eq!(bytes, sent, "{name}");
    }
}

#[test]
fn batches_stay_as_they_were_when_the_guest_goes_on() {
    let mut dataset = dataset("none").unwrap();
    let first = dataset.batch(&[1, 2, 3], EVALUATION).unwrap();
    for _ in 0..100 {
        dataset.batch(&[9, 9, 9], EVALUATION).unwrap();
    }
    assert_eq!(first[1], Tensor::from_slice(&[1i64, 2, 3]));
}

#[test]
fn a_batch_is_told_what_it_is_for() {
    let mut dataset = dataset("purpose").unwrap();
    let mut told = |purpose| Vec::<i64>::try_from(&dataset.batch(&[0, 0, 0], purpose).unwrap()[1]).unwrap();
    assert_eq!(told(Purpose::training(1234, 5)), [1, 5, 1234]);
    assert_eq!(told(Purpose::evaluation(99)), [0, 0, 99]);
}

#[test]
fn what_one_instance_settles_reaches_the_others() {
    let first = dataset("settle 12").unwrap();
    let state = first.info().state.clone();
    assert_eq!(state.as_deref(), Some(&[7; 12][..]));
    let other = Dataset::open(&EVIL, &json!("settle 12"), any_folder(), LIMITS, state.clone()).unwrap();
    assert_eq!(other.info().samples, 12);
    assert_eq!(other.info().state, state, "it stays what the first has settled");
    assert!(dataset("none").unwrap().info().state.is_none());
}

#[test]
fn a_state_of_any_size_is_refused() {
    let limits = PluginLimits { memory_bytes: 256 << 20, ..LIMITS };
    let open = |size: usize| {
        Dataset::open(&EVIL, &json!(format!("settle {size}")), any_folder(), limits, None).map(drop)
    };
    assert!(open(64 << 20).is_ok());
    assert_snapshot!(told(&open((64 << 20) + 1).unwrap_err()), @"plug-in `evil`: `open` handed over bad data: it has a state of 64.0 MiB for the other samples; the limit is 64 MiB");
}

#[test]
fn a_dataset_cannot_describe_itself_impossibly() {
    assert_snapshot!(open_error("empty"), @"plug-in `evil`: `open` handed over bad data: it has no samples");
    assert_snapshot!(open_error("endless-data"), @r"
    plug-in `evil`: `open` handed over bad data: it claims to have 18,446,744,073,709,551,615 samples; the limit is 1,099,511,627,776
      hint: if it has that many, raise `plugins.max_samples`
    ");
    assert_snapshot!(open_error("no-fields"), @"plug-in `evil`: `open` handed over bad data: it has 0 fields; 1 to 64 are possible");
    assert_snapshot!(open_error("same-names"), @"plug-in `evil`: `open` handed over bad data: two fields are named `x`");
    assert_snapshot!(open_error("odd-name"), @"plug-in `evil`: `open` handed over bad data: a field is named `�[31mred`; 1 to 64 printable characters are possible");
    assert_snapshot!(open_error("huge-sample"), @"plug-in `evil`: `open` handed over bad data: a sample of field `x` has the shape [1099511627776, 1099511627776]; the limit of a batch is 4 MiB (`plugins.batch_mb`)");
    assert_snapshot!(open_error("flat-sample"), @"plug-in `evil`: `open` handed over bad data: a sample of field `x` has the shape [0]; the limit of a batch is 4 MiB (`plugins.batch_mb`)");
    assert_snapshot!(open_error("emit-early"), @"plug-in `evil`: `open` handed over bad data: `emit` was called outside of `batch`");
}

#[test]
fn what_is_handed_over_must_be_what_was_promised() {
    assert_snapshot!(batch_error("wrong-shape"), @"plug-in `evil`: `batch` handed over bad data: field `x` came as uint8[2, 3] and should be uint8[2, 2]");
    assert_snapshot!(batch_error("wrong-batch"), @"plug-in `evil`: `batch` handed over bad data: field `x` came as uint8[3, 2] and should be uint8[2, 2]");
    assert_snapshot!(batch_error("wrong-dtype"), @"plug-in `evil`: `batch` handed over bad data: field `x` came as int8[2, 2] and should be uint8[2, 2]");
    assert_snapshot!(batch_error("wrong-bytes"), @"plug-in `evil`: `batch` handed over bad data: field `x` came with 3 bytes; uint8[2, 2] has 4");
    assert_snapshot!(batch_error("wrong-field"), @"plug-in `evil`: `batch` handed over bad data: field 7 was emitted; the fields are 0 to 1");
    assert_snapshot!(batch_error("endless-shape"), @"plug-in `evil`: `batch` handed over bad data: field `x` came as uint8[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1] and should be uint8[2, 2]");
    assert_snapshot!(batch_error("twice"), @"plug-in `evil`: `batch` handed over bad data: field `x` was emitted twice");
    assert_snapshot!(batch_error("half"), @"plug-in `evil`: `batch` handed over bad data: field `y` was not emitted");
}

#[test]
fn a_batch_over_the_limit_is_refused_before_the_guest_is_asked() {
    let mut dataset = dataset("big 3000000").unwrap();
    assert!(dataset.batch(&[0], EVALUATION).is_ok());
    assert_snapshot!(told(&dataset.batch(&[0, 1], EVALUATION).unwrap_err()), @r"
    plug-in `evil`: `batch`: a batch of 2 samples has 5.7 MiB; the limit is 4 MiB
      hint: take smaller batches or raise `plugins.batch_mb`
    ");
    assert!(dataset.batch(&[0], EVALUATION).is_ok());
}

#[test]
fn indices_must_exist() {
    let mut dataset = dataset("none").unwrap();
    assert_snapshot!(told(&dataset.batch(&[3, 10], EVALUATION).unwrap_err()), @"plug-in `evil`: `batch`: sample 10 was asked for; there are 10, counted from 0");
    assert_snapshot!(told(&dataset.batch(&[], EVALUATION).unwrap_err()), @"plug-in `evil`: `batch`: a batch of no samples was asked for");
}

#[test]
fn a_runaway_is_stopped_at_its_limit() {
    let mut dataset = endless_dataset("loop");
    let start = Instant::now();
    let error = dataset.batch(&[0], EVALUATION).unwrap_err();
    let taken = start.elapsed();
    assert_eq!(error.kind, PluginErrorKind::TimedOut { limit: SHORT.time });
    assert!(taken >= SHORT.time && taken < 10 * SHORT.time, "{taken:?}");
    assert_snapshot!(told(&error), @r"
    plug-in `evil`: `batch` was stopped after 200ms, its limit
      hint: it may be in an endless loop; if it needs longer, raise `plugins.time_ms`
    ");
}

#[test]
fn a_sleeper_is_stopped_too() {
    let mut dataset = endless_dataset("sleep");
    let start = Instant::now();
    let error = dataset.batch(&[0], EVALUATION).unwrap_err();
    assert_eq!(error.kind, PluginErrorKind::TimedOut { limit: SHORT.time });
    assert!(start.elapsed() < 20 * SHORT.time, "{:?}", start.elapsed());
}

#[test]
fn opening_has_a_limit_of_its_own() {
    let limits = pstrain::job::PluginLimits { open_time: SHORT.time / 2, ..LIMITS };
    let opened = Dataset::open(&EVIL, &json!("open-loop"), any_folder(), limits, None);
    assert_snapshot!(told(&opened.err().unwrap()), @r"
    plug-in `evil`: `open` was stopped after 100ms, its limit
      hint: it may be in an endless loop; if it needs longer, raise `plugins.open_time_ms`
    ");
}

#[test]
fn memory_has_a_limit() {
    let error = dataset("grow").unwrap().batch(&[0], EVALUATION).unwrap_err();
    assert_eq!(error.kind, PluginErrorKind::OutOfMemory { limit_bytes: LIMITS.memory_bytes });
    assert_snapshot!(without_size(&told(&error)), @r"
    plug-in `evil`: `batch` wanted more memory than its limit, 64 MiB: it asked for 64... MiB
      hint: if it needs more, raise `plugins.memory_mb`
    ");
}

#[test]
fn an_instance_larger_than_the_limit_does_not_start() {
    let limits = pstrain::job::PluginLimits { memory_bytes: 1 << 16, ..LIMITS };
    let opened = Dataset::open(&EVIL, &json!("none"), any_folder(), limits, None);
    assert_snapshot!(told(&opened.err().unwrap()), @r"
    plug-in `evil`: `start` wanted more memory than its limit, 64.0 KiB: it asked for 1.4 MiB
      hint: if it needs more, raise `plugins.memory_mb`
    ");
}

#[test]
fn a_panic_is_told_with_its_message_and_place() {
    let error = dataset("panic row 7 has 3 columns, not 4").unwrap().batch(&[0], EVALUATION).unwrap_err();
    let place = error.place.clone().unwrap();
    assert!(place.starts_with("testing/evil/src/sins.rs:"), "{place}");
    assert!(error.to_string().ends_with(&format!(" ({place})")), "{error}");
    assert_snapshot!(told(&error), @"plug-in `evil`: `batch` panicked: row 7 has 3 columns, not 4");
    assert_snapshot!(open_error("open-panic no"), @"plug-in `evil`: `open` panicked: no");
}

#[test]
fn where_there_was_no_panic_the_place_is_the_guests_function() {
    for sin in ["loop", "recurse"] {
        let place = endless_dataset(sin).batch(&[0], EVALUATION).unwrap_err().place.unwrap_or_default();
        assert!(place.starts_with("in testing_evil::"), "{sin}: {place}");
    }
}

#[test]
fn other_ends_are_told_too() {
    let error = dataset("recurse").unwrap().batch(&[0], EVALUATION).unwrap_err();
    assert_eq!(error.kind, PluginErrorKind::Panicked);
    assert!(error.message.starts_with("wasm trap: "), "{error}");
    assert_snapshot!(batch_error("exit"), @"plug-in `evil`: `batch` panicked: it called `exit`");
}

#[test]
fn an_error_that_the_guest_returns_keeps_its_words_and_its_hint() {
    assert_snapshot!(batch_error("fail row 3: `abc` is no number"), @"plug-in `evil`: `batch` failed: row 3: `abc` is no number");
    assert_snapshot!(batch_error("fail row 3: `abc` is no number / hint: set `skip_rows` = 1"), @r"
    plug-in `evil`: `batch` failed: row 3: `abc` is no number
      hint: set `skip_rows` = 1
    ");
    assert_snapshot!(open_error("open-fail"), @"plug-in `evil`: `open` failed: it gave no reason");
}

#[test]
fn a_guests_text_cannot_play_tricks_on_the_terminal() {
    let error = dataset("fail-red").unwrap().batch(&[0], EVALUATION).unwrap_err();
    assert_eq!(error.message, "\u{fffd}[31mred");
}

#[test]
fn after_a_trap_the_next_call_has_a_fresh_instance() {
    for sin in ["once panic x", "once loop", "once grow", "once exit", "once recurse"] {
        let limits = if sin == "once loop" { SHORT } else { LIMITS };
        let mut dataset = Dataset::open(&EVIL, &json!(sin), any_folder(), limits, None).unwrap();
        dataset.batch(&[1], EVALUATION).unwrap_err();
        // Fresh means that this is its first call again.
        dataset.batch(&[1], EVALUATION).unwrap_err();
    }
    let mut dataset = dataset("wrong-shape").unwrap();
    for _ in 0..3 {
        assert_eq!(dataset.batch(&[1], EVALUATION).unwrap_err().kind, PluginErrorKind::BadData);
    }
}

#[test]
fn after_an_error_that_was_returned_the_instance_goes_on() {
    let mut dataset = dataset("once fail not yet").unwrap();
    assert_eq!(dataset.batch(&[1], EVALUATION).unwrap_err().kind, PluginErrorKind::Failed);
    assert!(dataset.batch(&[1], EVALUATION).is_ok());
}

#[test]
fn what_a_guest_prints_never_stops_it() {
    // Some 7 MB.
    let mut dataset = dataset("print 100000").unwrap();
    assert!(dataset.batch(&[1], EVALUATION).is_ok());
}

#[test]
fn instances_on_many_threads_do_not_meet() {
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            scope.spawn(move || {
                let mut dataset = dataset("none").unwrap();
                for _ in 0..200 {
                    let batch = dataset.batch(&[thread, thread + 1], EVALUATION).unwrap();
                    assert_eq!(Vec::<i64>::try_from(&batch[1]).unwrap(), [thread as i64, thread as i64 + 1]);
                }
            });
        }
    });
}
