//! A rank's side of progress: says what it is at, seldom enough to cost nothing.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use super::Board;
use super::text::{TrainingProgress, Update};

/// Begins a line of JSON among other lines, as in RFC 7464 (JSON Text Sequences).
pub const MARK: u8 = 0x1e;

/// Where a rank's progress goes.
#[derive(Debug)]
pub struct Reporter {
    sink: Sink,
    last: Option<(Instant, Update)>,
    /// The first training update: time left is reckoned from there.
    training_since: Option<(Instant, u64)>,
}

#[derive(Debug)]
enum Sink {
    /// A forked rank: lines of JSON to the parent, which draws.
    Pipe(File),
    /// A rank whose launcher has nothing but its stderr: the same lines, each behind [`MARK`].
    Marked(File),
    /// A rank on its own draws for itself.
    Board(Board),
}

impl Reporter {
    /// Updates of one kind come at most so often.
    const BETWEEN: Duration = Duration::from_millis(100);
    /// A pipe takes so many bytes whole or not at all (POSIX's smallest PIPE_BUF is 512, Linux' is 4096).
    const LONGEST_LINE: usize = 4096;

    /// `pipe` must not block: an update that does not fit is dropped.
    pub fn to_parent(pipe: File) -> Reporter {
        Reporter::new(Sink::Pipe(pipe))
    }

    /// To whoever reads this process's stderr.
    ///
    /// # Errors
    /// When the system gives no descriptor more.
    pub fn among_lines() -> io::Result<Reporter> {
        let stderr = io::stderr().as_fd().try_clone_to_owned()?;
        Ok(Reporter::new(Sink::Marked(stderr.into())))
    }

    /// Draws on `board`, which has this rank alone.
    pub fn to_board(board: Board) -> Reporter {
        Reporter::new(Sink::Board(board))
    }

    fn new(sink: Sink) -> Reporter {
        Reporter { sink, last: None, training_since: None }
    }

    /// Cheap enough for every step.
    pub fn report(&mut self, update: Update) {
        self.report_at(Instant::now(), update);
    }

    pub fn doing(&mut self, what: impl Into<String>) {
        self.report(Update::Doing(what.into()));
    }

    pub fn done(&mut self, what: impl Into<String>) {
        self.report(Update::Done(what.into()));
    }

    fn report_at(&mut self, now: Instant, mut update: Update) {
        if let Update::Training(training) = &mut update {
            let since = *self.training_since.get_or_insert((now, training.step));
            training.left_s = time_left(since, now, training);
        }
        if self.may_skip(now, &update) {
            return;
        }
        match &mut self.sink {
            Sink::Pipe(pipe) => send(pipe, &[], &update),
            Sink::Marked(stderr) => send(stderr, &[MARK], &update),
            Sink::Board(board) => board.update(0, &update),
        }
        self.last = Some((now, update));
    }

    fn may_skip(&self, now: Instant, update: &Update) -> bool {
        let Some((when, last)) = &self.last else { return false };
        if update.is_last() {
            return update == last;
        }
        update.same_kind(last) && now.saturating_duration_since(*when) < Self::BETWEEN
    }
}

fn send(pipe: &mut File, mark: &[u8], update: &Update) {
    let Ok(json) = serde_json::to_vec(update) else { return };
    let line = [mark, &json, b"\n"].concat();
    // A part of a line would spoil the next one.
    if line.len() <= Reporter::LONGEST_LINE {
        // The parent is slow or gone: training goes on without being watched.
        let _ = pipe.write(&line);
    }
}

/// Seconds, at the average pace since training began. None before there is one, and at the end.
fn time_left((began, first): (Instant, u64), now: Instant, training: &TrainingProgress) -> Option<f64> {
    let done = training.step.checked_sub(first).filter(|&done| done > 0)?;
    let left = training.steps.checked_sub(training.step).filter(|&left| left > 0)?;
    let pace = now.saturating_duration_since(began).as_secs_f64() / done as f64;
    Some(left as f64 * pace)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use super::*;

    fn training(step: u64) -> Update {
        Update::Training(TrainingProgress { step, steps: 100, ..TrainingProgress::default() })
    }

    fn pipe() -> (Reporter, BufReader<File>) {
        let (read, write) = nix::unistd::pipe().unwrap();
        (Reporter::to_parent(write.into()), BufReader::new(read.into()))
    }

    fn sent(reporter: Reporter, read: BufReader<File>) -> Vec<Update> {
        drop(reporter);
        read.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect()
    }

    #[test]
    fn steps_are_reported_at_most_ten_times_a_second_and_the_last_one_always() {
        let (mut reporter, read) = pipe();
        let start = Instant::now();
        for step in 1..=100 {
            reporter.report_at(start + Duration::from_millis(5 * step), training(step));
        }
        let steps: Vec<u64> = sent(reporter, read).iter().map(|update| update.counted().unwrap().0).collect();
        assert_eq!(steps, [1, 21, 41, 61, 81, 100]);
    }

    #[test]
    fn a_change_of_what_is_done_is_reported_at_once_and_once() {
        let (mut reporter, read) = pipe();
        let now = Instant::now();
        let doing = Update::Doing("waiting".into());
        for update in [doing.clone(), doing.clone(), training(1), Update::Done("x".into())] {
            reporter.report_at(now, update);
        }
        assert_eq!(sent(reporter, read), [doing, training(1), Update::Done("x".into())]);
    }

    #[test]
    fn time_left_follows_the_pace_so_far() {
        let began = Instant::now();
        let at = |step, seconds| {
            let training = TrainingProgress { step, steps: 100, ..TrainingProgress::default() };
            time_left((began, 1), began + Duration::from_secs(seconds), &training)
        };
        assert_eq!(at(1, 0), None);
        assert_eq!(at(11, 5), Some(44.5));
        assert_eq!(at(100, 50), None);
    }

    #[test]
    fn a_parent_that_does_not_read_or_is_gone_holds_nobody_up() {
        use nix::fcntl::{FcntlArg, OFlag, fcntl};
        let (read, write) = nix::unistd::pipe().unwrap();
        fcntl(&write, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        let mut reporter = Reporter::to_parent(write.into());
        (0..5_000).for_each(|number| reporter.doing(format!("thing {number}")));
        drop(read);
        reporter.doing("alone");
    }
}
