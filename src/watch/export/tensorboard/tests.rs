use std::fs;

use prost::Message as _;

use super::tfevents::{Event, What};
use super::*;
use crate::watch::export::told::Told;

/// CRC-32C bit by bit, as RFC 3720 has it: independent of the library.
fn crc32c_of(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(
            crc ^ u32::from(*byte),
            |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 },
        )
    })
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> &'a [u8] {
    let (taken, behind) = rest.split_at(count);
    *rest = behind;
    taken
}

/// The events of a file, with all its checksums checked.
fn events(folder: &Path, run: &str) -> Vec<Event> {
    let bytes = fs::read(folder.join(run).join(FILE)).unwrap();
    let (mut rest, mut events) = (bytes.as_slice(), Vec::new());
    let checked = |data: &[u8], crc: &[u8]| {
        let unmasked = u32::from_le_bytes(crc.try_into().unwrap()).wrapping_sub(0xa282_ead8);
        assert_eq!(unmasked.rotate_right(17), crc32c_of(data));
    };
    while !rest.is_empty() {
        let length = take(&mut rest, 8);
        checked(length, take(&mut rest, 4));
        let data = take(&mut rest, u64::from_le_bytes(length.try_into().unwrap()) as usize);
        checked(data, take(&mut rest, 4));
        events.push(Event::decode(data).unwrap());
    }
    events
}

/// Step and value of each scalar of that name; "start" where a session starts.
fn scalars(events: &[Event], tag: &str) -> Vec<(i64, String)> {
    let of_event = |event: &Event| match &event.what {
        Some(What::Summary(summary)) => {
            let value = summary.value.iter().find(|value| value.tag == tag)?.simple_value?;
            Some((event.step, value.to_string()))
        }
        Some(What::SessionLog(_)) => Some((event.step, "start".into())),
        _ => None,
    };
    events.iter().filter_map(of_event).collect()
}

fn step(step: u64, loss: &str) -> MetricsLine {
    let text = format!(
        r#"{{"kind":"step","step":{step},"epoch":1,"rank":1,"loss":{loss},"lr":0.1,"samples_per_s":8.0,"data_wait_pct":0.0,"staleness":null,"time_s":{step},"metrics":{{"hits":0.0}}}}"#
    );
    serde_json::from_str(&text).unwrap()
}

fn others() -> Vec<MetricsLine> {
    let texts = [
        r#"{"kind":"eval","step":2,"epoch":1,"rank":1,"samples":10,"targets":10,"loss":0.75,"accuracy":0.5,"confusion":[[1,2],[3,4]],"time_s":3.0}"#,
        r#"{"kind":"epoch","step":2,"epoch":1,"rank":1,"loss":0.625,"samples":64,"time_s":3.0}"#,
        r#"{"kind":"rank","rank":0,"role":"server","time_s":4.0,"passed_s":2.0,"resident_bytes":1048576,"cpu_pct":50.0,"seconds":{"forward":1.0}}"#,
        r#"{"kind":"message","rank":0,"level":"warn","text":"hot","time_s":4.0}"#,
    ];
    texts.into_iter().map(|text| serde_json::from_str(text).unwrap()).collect()
}

/// Tells all lines to a new exporter.
fn tell(folder: &Path, to: &Path, lines: &[MetricsLine]) {
    let mut board = TensorBoard::new(to, folder, Clock::new(folder, 2)).unwrap();
    lines.iter().for_each(|line| board.line(line).unwrap());
    board.finish(&Watched::new(folder, 2)).unwrap();
}

#[test]
fn every_figure_stands_in_the_file_of_its_rank() {
    let folder = tempfile::tempdir().unwrap();
    let lines: Vec<_> = [step(1, "0.5"), step(2, "null")].into_iter().chain(others()).collect();
    tell(folder.path(), Path::new("tb"), &lines);
    let rank1 = events(&folder.path().join("tb"), "rank1");
    assert_eq!(rank1[0].what, Some(What::FileVersion("brain.Event:2".into())));
    let of = |tag: &str| scalars(&rank1, tag);
    assert_eq!(of("train/loss"), [(1, "0.5".into()), (2, "NaN".into())]);
    // A figure that is 0 is one, too.
    assert_eq!(of("train/hits"), [(1, "0".into()), (2, "0".into())]);
    assert_eq!(of("eval/accuracy"), [(2, "0.5".into())]);
    assert_eq!(of("train/epoch_loss"), [(2, "0.625".into())]);
    let rank0 = events(&folder.path().join("tb/resources"), "rank0");
    let used = |tag: &str| scalars(&rank0, tag).into_iter().map(|(_, value)| value).collect::<Vec<_>>();
    assert_eq!(used("resources/resident_memory_bytes"), ["1048576"]);
    assert_eq!(used("activities/forward"), ["0.5"]);
}

#[test]
fn a_run_that_goes_on_is_told_on_and_what_it_repeats_is_void() {
    let folder = tempfile::tempdir().unwrap();
    let mut lines = vec![step(1, "0.5"), step(2, "0.25")];
    tell(folder.path(), Path::new("tb"), &lines);
    // Bytes that a process has written before it was killed.
    let file = folder.path().join("tb/rank1").join(FILE);
    let mut torn = fs::read(&file).unwrap();
    torn.extend_from_slice(b"torn");
    fs::write(&file, torn).unwrap();
    lines.extend([step(2, "0.75"), step(3, "0.125")]);
    tell(folder.path(), Path::new("tb"), &lines);
    tell(folder.path(), Path::new("tb"), &lines);
    let loss = scalars(&events(&folder.path().join("tb"), "rank1"), "train/loss");
    let expected = [(1, "0.5"), (2, "0.25"), (2, "start"), (2, "0.75"), (3, "0.125")];
    assert_eq!(loss, expected.map(|(step, value)| (step, value.to_owned())));
    let told = Told::<Files>::load(folder.path(), run_folder::TOLD_TENSORBOARD, "tb").unwrap();
    assert_eq!(told.lines, 4);
}

#[test]
fn another_run_in_the_same_folder_begins_its_files_anew() {
    let folder = tempfile::tempdir().unwrap();
    tell(folder.path(), Path::new("tb"), &[step(1, "0.5"), step(2, "0.25")]);
    // As `--overwrite` does.
    fs::remove_file(folder.path().join(run_folder::TOLD_TENSORBOARD)).unwrap();
    tell(folder.path(), Path::new("tb"), &[step(1, "0.875")]);
    let loss = scalars(&events(&folder.path().join("tb"), "rank1"), "train/loss");
    assert_eq!(loss, [(1, "0.875".to_owned())]);
}

#[test]
fn runs_that_share_a_folder_have_their_own_in_it() {
    let (shared, runs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for name in ["a", "b"] {
        let run = runs.path().join(name);
        fs::create_dir(&run).unwrap();
        tell(&run, shared.path(), &[step(1, "0.5")]);
        assert_eq!(events(&shared.path().join(name), "rank1").len(), 2);
    }
}
