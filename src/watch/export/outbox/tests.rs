use std::sync::mpsc::{self, Receiver, Sender};

use anyhow::anyhow;

use super::*;
use crate::runner::records::MessageRecord;

/// Waits for what would be a matter of minutes take a moment here.
const SHORT: Bounds = Bounds {
    waiting: 4,
    gathering: Duration::ZERO,
    for_a_place: Duration::from_millis(20),
    away: Duration::from_secs(20),
    away_at_the_end: Duration::from_secs(20),
    pause: Duration::from_millis(1),
    longest_pause: Duration::from_millis(2),
    for_the_end: Duration::from_secs(20),
    saving: Duration::from_secs(20),
};

/// Notes what becomes of lines, which are numbers.
struct Noted {
    notes: Sender<String>,
    told: u64,
    /// What comes of each sending, by turns; then all succeed.
    answers: Vec<Failure>,
    /// Each sending waits for one, if there is one.
    gate: Option<Receiver<()>>,
}

impl Noted {
    fn new() -> (Noted, Receiver<String>) {
        let (notes, noted) = mpsc::channel();
        (Noted { notes, told: 0, answers: Vec::new(), gate: None }, noted)
    }

    fn note(&self, note: impl Into<String>) {
        // Nobody may look any more.
        let _ = self.notes.send(note.into());
    }
}

impl Peer for Noted {
    fn name(&self) -> &'static str {
        "log.noted"
    }

    fn told(&self) -> u64 {
        self.told
    }

    fn take(&mut self, line: &MetricsLine, is_new: bool) {
        let MetricsLine::Message(record) = line else { panic!("{line:?}") };
        self.note(format!("{}{}", record.text, if is_new { "" } else { " known" }));
    }

    fn end(&mut self, _: &Ended) {
        self.note("end");
    }

    fn send(&mut self) -> Result<(), Failure> {
        if let Some(gate) = &self.gate {
            // Closed: it is open for ever.
            let _ = gate.recv();
        }
        match self.answers.pop() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    fn save(&mut self, lines: u64) -> Result<()> {
        self.note(format!("saved {lines}"));
        Ok(())
    }
}

fn line(number: u64) -> MetricsLine {
    let level = crate::runner::records::Level::Info;
    MetricsLine::Message(MessageRecord { rank: None, level, text: number.to_string(), time_s: 0.0 })
}

fn no_run() -> Watched {
    Watched::new(std::path::Path::new("/nowhere"), 1)
}

#[test]
fn lines_come_in_their_order_and_the_end_behind_them() {
    let (mut peer, noted) = Noted::new();
    peer.told = 2;
    let mut outbox = Outbox::bounded(peer, SHORT).unwrap();
    (1..=5000).for_each(|number| outbox.line(&line(number)).unwrap());
    outbox.finish(&no_run()).unwrap();
    let notes: Vec<String> = noted.into_iter().collect();
    let taken =
        (1..=5000).map(|number| if number <= 2 { format!("{number} known") } else { number.to_string() });
    let expected: Vec<String> = taken.chain(["end".into(), "saved 5000".into()]).collect();
    assert!(notes == expected, "{:?} ... {:?}", &notes[..4], &notes[notes.len() - 4..]);
}

#[test]
fn a_server_that_is_away_for_a_while_is_told_all() {
    let (mut peer, noted) = Noted::new();
    peer.answers = (0..5).map(|_| Failure::Away(anyhow!("nobody answers"))).collect();
    let mut outbox = Outbox::bounded(peer, SHORT).unwrap();
    (1..=3).for_each(|number| outbox.line(&line(number)).unwrap());
    outbox.finish(&no_run()).unwrap();
    assert_eq!(noted.into_iter().collect::<Vec<_>>(), ["1", "2", "3", "end", "saved 3"]);
}

#[test]
fn one_that_stays_away_is_given_up() {
    let (mut peer, _noted) = Noted::new();
    peer.answers = (0..100).map(|_| Failure::Away(anyhow!("nobody answers"))).collect();
    let bounds = Bounds { away_at_the_end: Duration::from_millis(5), ..SHORT };
    let mut outbox = Outbox::bounded(peer, bounds).unwrap();
    outbox.line(&line(1)).unwrap();
    assert_eq!(outbox.finish(&no_run()).unwrap_err().to_string(), "nobody answers");
}

#[test]
fn one_that_refuses_is_asked_once() {
    let (mut peer, noted) = Noted::new();
    peer.answers = vec![Failure::Refused { status: 403, why: anyhow!("not you") }];
    let mut outbox = Outbox::bounded(peer, SHORT).unwrap();
    outbox.line(&line(1)).unwrap();
    assert_eq!(outbox.finish(&no_run()).unwrap_err().to_string(), "not you");
    assert!(!noted.into_iter().any(|note| note.starts_with("saved")));
}

#[test]
fn one_that_hangs_holds_up_nobody_and_what_it_was_not_told_is_counted() {
    let (mut peer, noted) = Noted::new();
    let (open, gate) = mpsc::channel();
    peer.gate = Some(gate);
    let mut outbox = Outbox::bounded(peer, SHORT).unwrap();
    outbox.line(&line(1)).unwrap();
    // It sends, and waits at the gate.
    assert_eq!(noted.recv().unwrap(), "1");
    let begun = Instant::now();
    (2..=1000).for_each(|number| outbox.line(&line(number)).unwrap());
    // One has waited for a place, and no other.
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    drop(open);
    let told = outbox.finish(&no_run()).unwrap_err().to_string();
    assert_eq!(told, "995 lines were left out: it takes them too slowly");
    assert_eq!(noted.into_iter().collect::<Vec<_>>(), ["2", "3", "4", "5", "end", "saved 5"]);
}

#[test]
fn the_end_is_not_waited_for_without_end() {
    let (mut peer, _noted) = Noted::new();
    let (_open, gate) = mpsc::channel();
    peer.gate = Some(gate);
    let bounds = Bounds { for_the_end: Duration::from_millis(5), ..SHORT };
    let mut outbox = Outbox::bounded(peer, bounds).unwrap();
    outbox.line(&line(1)).unwrap();
    let told = outbox.finish(&no_run()).unwrap_err().to_string();
    assert!(told.starts_with("it takes longer than 0 s to tell the end"), "{told}");
}
