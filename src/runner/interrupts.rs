//! What Ctrl-C, SIGTERM and SIGHUP ask of a process, be it one that launched ranks or a rank on its own.

use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// An end in order.
    End,
    /// What the signal before it asked for.
    Same,
    /// An end at once.
    Kill,
}

/// The requests that signals make. One press of Ctrl-C may come as several: the terminal signals its whole foreground
/// group, and `timeout`, which is in it, passes on what it gets, first to the program and then to the group.
#[derive(Clone, Copy, Debug, Default)]
pub struct Requests {
    first: Option<Instant>,
}

impl Requests {
    /// So close together nobody presses twice and means it.
    pub const ONE_PRESS: Duration = Duration::from_millis(400);

    /// Counts a signal that came at `now`.
    pub fn count(&mut self, now: Instant) -> Request {
        match self.first {
            None => {
                self.first = Some(now);
                Request::End
            }
            Some(first) if now.saturating_duration_since(first) < Self::ONE_PRESS => Request::Same,
            Some(_) => Request::Kill,
        }
    }
}

/// What ends a job: SIGINT, SIGTERM and, but under `nohup`, SIGHUP.
pub fn stops() -> SigSet {
    let hangup = (!hangup_is_ignored()).then_some(Signal::SIGHUP);
    [Signal::SIGINT, Signal::SIGTERM].into_iter().chain(hangup).collect()
}

/// Whether the process was started by `nohup`.
pub fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & 1 << (Signal::SIGHUP as u32 - 1) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_of_one_press_count_once_and_a_second_press_kills() {
        let (mut requests, start) = (Requests::default(), Instant::now());
        let mut at = |ms| requests.count(start + Duration::from_millis(ms));
        assert_eq!([0, 0, 3, 399].map(&mut at), [Request::End, Request::Same, Request::Same, Request::Same]);
        assert_eq!([400, 401].map(&mut at), [Request::Kill, Request::Kill]);
    }
}
