use super::*;
use proptest::prelude::*;
use pstrain_plugin::testing;
use std::cell::RefCell;
use std::panic::{self, Location, UnwindSafe};
use std::sync::Once;

/// Made by tests/data/parquet.py: row r of column c is 10 r + c.
const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/parquet");

fn opened(config: &str) -> Result<Parquet, String> {
    let opened = testing::open(&config.replace("DATA", DATA));
    opened.map_err(|error| format!("{error:#}").replace(&format!("{DATA}/"), ""))
}

const FIELDS: &str = r#""fields": [
    {"name": "dense", "columns": ["f32", "i32", "f64"]},
    {"name": "id", "columns": "i64"},
    {"name": "flag", "columns": ["flag"], "dtype": "float32"},
    {"name": "maybe", "columns": "maybe", "missing": -1}]"#;

#[test]
fn columns_of_every_compression_are_fields() {
    for compression in ["snappy", "gzip", "lz4", "none"] {
        // With room for all row groups, and for one.
        for room in [64, 0] {
            let config =
                format!(r#"{{"file": "DATA/{compression}.parquet", {FIELDS}, "in_memory_mb": {room}}}"#);
            let mut table = opened(&config).unwrap();
            assert_eq!(
                table.fields(),
                [
                    Field::new("dense", DType::Float32, [3]),
                    Field::new("id", DType::Int64, []),
                    Field::new("flag", DType::Float32, [1]),
                    Field::new("maybe", DType::Float32, []),
                ]
            );
            let batch = testing::batch(&mut table, &[9, 0, 5, 9]).unwrap();
            assert_eq!(
                batch[0].values::<f32>(),
                [92.0, 90.0, 93.0, 2.0, 0.0, 3.0, 52.0, 50.0, 53.0, 92.0, 90.0, 93.0]
            );
            assert_eq!(batch[1].values::<i64>(), [91, 1, 51, 91]);
            assert_eq!(batch[2].values::<f32>(), [1.0, 0.0, 1.0, 1.0]);
            assert_eq!(batch[3].values::<f32>(), [-1.0, -1.0, 55.0, -1.0]);
        }
    }
}

#[test]
fn several_files_are_one_table() {
    let config = r#"{"file": ["DATA/gzip.parquet", "DATA/snap*.parquet"], "fields": [{"name": "id", "columns": "i32"}]}"#;
    let mut table = opened(config).unwrap();
    assert_eq!(table.len(), 20);
    assert_eq!(testing::batch(&mut table, &[3, 13, 19]).unwrap()[0].values::<i64>(), [30, 30, 90]);
}

#[test]
fn what_is_no_number_is_told() {
    let error = |field: &str| {
        let config = format!(r#"{{"file": "DATA/snappy.parquet", "fields": [{field}]}}"#);
        let told = opened(&config).and_then(|mut table| {
            testing::batch(&mut table, &[0, 1])
                .map(drop)
                .map_err(|error| format!("{error:#}").replace(&format!("{DATA}/"), ""))
        });
        told.unwrap_err()
    };
    assert!(
        error(r#"{"name": "x", "columns": "text"}"#)
            .starts_with("`snappy.parquet`, column `text` is of BYTE_ARRAY")
    );
    assert!(error(r#"{"name": "x", "columns": "list.list.element"}"#).contains("has lists in it\nhint: "));
    assert_eq!(
        error(r#"{"name": "x", "columns": "nothing"}"#),
        "`snappy.parquet` has no column `nothing`; it has `i32`, `i64`, `f32`, `f64`, `flag`, `maybe`, `text`, `list.list.element`"
    );
    assert_eq!(
        error(r#"{"name": "x", "columns": "maybe"}"#),
        "`snappy.parquet`, column `maybe`, row 1 of its row group: there is no value\nhint: `missing` of a field fills it"
    );
    let error = opened(r#"{"file": "DATA/../parquet.py"}"#).err().unwrap();
    assert!(error.starts_with("`../parquet.py` is broken, or of a kind that is not read: "), "{error}");
    assert!(error.ends_with("\nhint: is it one, and all of it? `csv` reads tables of text"), "{error}");
}

#[test]
fn what_float32_has_not_is_told_with_what_has() {
    assert_eq!(Value::Whole(-(1 << 24)).float32(), Ok(-16_777_216.0));
    assert_eq!(Value::Fraction(0.1).float32(), Ok(0.1));
    assert_eq!(
        Value::Whole((1 << 24) + 1).float32().unwrap_err(),
        "16777217 is not a number of float32\nhint: set `dtype = \"int64\"` for its field"
    );
    assert!(Value::Fraction(1e300).float32().unwrap_err().ends_with(" is too large for float32"));
    assert_eq!(
        Value::Fraction(f64::NAN).float32().unwrap_err(),
        "NaN is not a finite number\nhint: write no value there, which `missing` of the field fills"
    );
}

#[test]
fn zstd_is_refused_with_what_to_write_instead() {
    let mut table =
        opened(r#"{"file": "DATA/zstd.parquet", "fields": [{"name": "id", "columns": "i32"}]}"#).unwrap();
    let error = format!("{:#}", testing::batch(&mut table, &[0]).unwrap_err());
    assert!(error.ends_with("\nhint: write it with compression=\"snappy\""), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the bytes are, they are read or refused: those of good files with some that are wrong, or cut.
    /// The crate panics at some pages, which the host tells like any other error of a plug-in: nothing of ours does.
    #[test]
    fn any_file_is_read_or_refused(
        compression in prop::sample::select(vec!["snappy", "gzip", "lz4", "none"]),
        spoilt in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = std::fs::read(format!("{DATA}/{compression}.parquet")).unwrap();
        for (at, byte) in spoilt {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x").display().to_string();
        std::fs::write(&path, bytes).unwrap();
        let place = place_of_panic(|| {
            if let Ok(mut table) = opened(&format!(r#"{{"file": "{path}", {FIELDS}}}"#)) {
                let last = table.len() - 1;
                let _ = testing::batch(&mut table, &[last, 0]);
            }
        });
        prop_assert!(place.as_ref().is_none_or(|place| place.contains("/parquet-")), "{place:?}");
    }
}

/// Runs `work` and says in which file it panicked, if it did.
fn place_of_panic(work: impl FnOnce() + UnwindSafe) -> Option<String> {
    static HOOK: Once = Once::new();
    thread_local!(static PLACE: RefCell<Option<String>> = const { RefCell::new(None) });
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |told| match told.location().map(Location::file) {
            Some(file) if file.contains("/parquet-") => PLACE.set(Some(file.to_owned())),
            file => {
                PLACE.set(file.map(str::to_owned));
                before(told);
            }
        }));
    });
    panic::catch_unwind(work).err().map(|_| PLACE.take().unwrap_or_else(|| "an unknown file".into()))
}

#[test]
fn the_place_of_a_panic_is_found() {
    assert_eq!(place_of_panic(|| ()), None);
    assert_eq!(place_of_panic(|| panic!("a panic of ours")).as_deref(), Some(file!()));
}
