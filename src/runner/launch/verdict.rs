//! What the ends of the ranks mean for the launch. Pure.

use std::fmt;

use nix::sys::signal::Signal;

/// Exit code: all is well.
pub const DONE: u8 = 0;
/// Exit code: the job failed.
pub const FAILED: u8 = 1;
/// Exit code: bad usage or job file.
pub const USAGE: u8 = 2;
/// Exit code: a rank was lost or never came.
pub const LOST: u8 = 3;
/// Exit code: somebody stopped it.
pub const INTERRUPTED: u8 = 130;
/// Exit code: SIGTERM stopped it, and what it had come to is saved.
pub const TERMINATED: u8 = 143;

/// How a rank ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Exited(i32),
    Killed(Signal),
    /// Its machine was not reached, or not any more.
    Unreached,
}

/// What ssh ends with when it is not the command's exit code.
const OF_SSH: i32 = 255;

/// How a rank on another machine ended, of how the command ended that had it there. A shell tells signals by 128 and more.
pub fn of_remote(end: End) -> End {
    match end {
        End::Exited(OF_SSH) => End::Unreached,
        End::Exited(code) if [INTERRUPTED, TERMINATED].map(i32::from).contains(&code) => end,
        End::Exited(code @ 129..) => Signal::try_from(code - 128).map_or(end, End::Killed),
        _ => end,
    }
}

/// What the supervisor had done when the rank ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// It had passed a signal from outside on to the ranks.
    pub interrupted: bool,
    /// It had killed this rank.
    pub killed: bool,
}

/// The exit code that a rank's end counts as.
///
/// A rank that some signal killed is lost. One that we killed says nothing: what made us do it counts already.
/// After an interrupt no end but success has a meaning of its own: ranks lose one another while they leave.
pub fn code(end: End, context: Context) -> u8 {
    match end {
        End::Exited(0) => DONE,
        End::Exited(code) if code == i32::from(TERMINATED) => TERMINATED,
        _ if context.interrupted => INTERRUPTED,
        End::Killed(_) | End::Unreached if context.killed => DONE,
        End::Killed(_) | End::Unreached => LOST,
        End::Exited(code) => match u8::try_from(code) {
            Ok(known @ (FAILED | USAGE | LOST | INTERRUPTED)) => known,
            // A panic, or an exit from inside a library.
            _ => FAILED,
        },
    }
}

/// The worse of two exit codes: the one nearer to the cause.
///
/// When one rank ends early the others lose it, so 3 is often only a consequence and gives way to 1, and a job
/// that should not have been started (2) explains any failure after it: 0 < 130 < 143 < 3 < 1 < 2.
pub fn worst(a: u8, b: u8) -> u8 {
    let badness = |code| match code {
        DONE => 0,
        INTERRUPTED => 1,
        TERMINATED => 2,
        LOST => 3,
        USAGE => 5,
        _ => 4,
    };
    if badness(b) > badness(a) { b } else { a }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Exited(code) if *code == i32::from(INTERRUPTED) => write!(f, "was interrupted"),
            End::Exited(code) if *code == i32::from(TERMINATED) => write!(f, "was terminated"),
            End::Exited(code) => write!(f, "ended with exit code {code}"),
            End::Killed(signal) => write!(f, "was killed by {signal}"),
            End::Unreached => write!(f, "was not reached, or not any more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Context = Context { interrupted: false, killed: false };

    #[test]
    fn the_worst_code_is_the_one_nearest_to_the_cause() {
        let order = [DONE, INTERRUPTED, TERMINATED, LOST, FAILED, USAGE];
        for (place, &code) in order.iter().enumerate() {
            for &milder in &order[..=place] {
                assert_eq!((worst(code, milder), worst(milder, code)), (code, code));
            }
        }
    }

    #[test]
    fn a_rank_that_a_signal_killed_is_lost_unless_we_killed_it() {
        assert_eq!(code(End::Killed(Signal::SIGSEGV), QUIET), LOST);
        assert_eq!(code(End::Killed(Signal::SIGKILL), QUIET), LOST);
        assert_eq!(code(End::Killed(Signal::SIGKILL), Context { killed: true, ..QUIET }), DONE);
    }

    #[test]
    fn after_an_interrupt_all_but_success_counts_as_interrupted() {
        let interrupted = Context { interrupted: true, killed: false };
        for end in [End::Exited(130), End::Exited(3), End::Exited(1), End::Killed(Signal::SIGINT)] {
            assert_eq!(code(end, interrupted), INTERRUPTED);
        }
        assert_eq!(
            code(End::Killed(Signal::SIGKILL), Context { interrupted: true, killed: true }),
            INTERRUPTED
        );
        assert_eq!(code(End::Exited(0), interrupted), DONE);
    }

    #[test]
    fn a_rank_elsewhere_that_was_not_reached_or_was_killed_is_lost() {
        let codes = [0, 1, 2, 3, 127, 130, 143, 137, 255];
        let codes = codes.map(|number| code(of_remote(End::Exited(number)), QUIET));
        assert_eq!(codes, [DONE, FAILED, USAGE, LOST, FAILED, INTERRUPTED, TERMINATED, LOST, LOST]);
        let interrupted = Context { interrupted: true, killed: false };
        assert_eq!(code(End::Unreached, interrupted), INTERRUPTED);
    }

    #[test]
    fn an_unknown_exit_code_is_a_failed_job() {
        assert_eq!([101, 42, 255].map(|number| code(End::Exited(number), QUIET)), [FAILED; 3]);
        assert_eq!([0, 1, 2, 3, 130].map(|number| code(End::Exited(number), QUIET)), [0, 1, 2, 3, 130]);
    }
}
