//! Standstills, for people.

use std::collections::BTreeSet;
use std::fmt;

use super::{Cause, Culprit, Found, Process, Told, Verdict, barrier_of, comes_to, has_missed};
use crate::human::{bytes, one_line};
use crate::recorder::Noted;
use crate::topology::Rank;

/// What a rank does, for people, and for whom it waits.
pub(super) fn tell(rank: &Found, ranks: &[Found]) -> Told {
    let mut waits_for = BTreeSet::new();
    let mut does = Vec::new();
    if let Some(flight) = &rank.flight {
        does.push(flight.doing.clone());
    }
    for call in rank.open(|flight| &flight.flight.plugins) {
        does.push(format!(
            "in `{}` of plug-in `{}` {}",
            call.what,
            call.of.as_deref().unwrap_or_default(),
            seconds(call)
        ));
    }
    for wait in rank.open(|flight| &flight.flight.collectives) {
        let missing = ranks.iter().filter(|other| has_missed(other, wait));
        let missing: BTreeSet<Rank> = missing.map(|other| other.rank).collect();
        does.push(format!(
            "in `{}` of group `{}`, its {}. collective, {}{}",
            wait.what,
            wait.of.as_deref().unwrap_or_default(),
            wait.number.unwrap_or_default(),
            seconds(wait),
            named(" without ", &missing),
        ));
        waits_for.extend(missing);
    }
    for call in rank.calls() {
        match barrier_of(call) {
            Some(barrier) => {
                let missing = ranks.iter().filter(|other| !comes_to(other, barrier));
                let missing: BTreeSet<Rank> = missing.map(|other| other.rank).collect();
                does.push(format!(
                    "at barrier `{barrier}` {}{}",
                    seconds(call),
                    named(" without ", &missing)
                ));
                waits_for.extend(missing);
            }
            None => {
                let to = call.with.map(Rank);
                waits_for.extend(to);
                let to = to.map_or_else(String::new, |to| to.to_string());
                does.push(format!("waits for rank {to} to answer `{}` {}", call.what, seconds(call)));
            }
        }
    }
    for batch in rank.open(|flight| &flight.flight.batches) {
        let step = batch.number.unwrap_or_default();
        does.push(format!("waits for the data of step {step} {}", seconds(batch)));
    }
    for call in rank.open(|flight| &flight.flight.served) {
        let how = if call.computes == Some(true) { "computes" } else { "serves, and waits in," };
        let of = call.with.unwrap_or_default();
        does.push(format!("{how} `{}` of rank {of} {}", call.what, seconds(call)));
    }
    Told {
        rank: rank.rank,
        role: rank.role.clone(),
        process: rank.process.clone(),
        waits_for,
        does: does.join("; "),
        still_s: rank.still_s(),
    }
}

fn seconds(noted: &Noted) -> String {
    format!("for {:.1} s", noted.ago_s)
}

fn named(before: &str, ranks: &BTreeSet<Rank>) -> String {
    let names: Vec<String> = ranks.iter().take(8).map(Rank::to_string).collect();
    match ranks.len() {
        0 => String::new(),
        1 => format!("{before}rank {}", names[0]),
        more if more > names.len() => {
            format!("{before}ranks {} and {} more", names.join(", "), more - names.len())
        }
        _ => format!("{before}ranks {}", names.join(", ")),
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::FullDisk { free_bytes } => {
                write!(f, "the disk of the run folder is full: {} are left\n  hint: make room, then go on with --resume auto", bytes(*free_bytes))
            }
            Cause::Stopped => f.write_str("its process is stopped, by a signal or a debugger\n  hint: `kill -CONT` has it go on"),
            Cause::Gone => f.write_str("its process is gone\n  hint: `dmesg` says whether memory ran out"),
            Cause::PlugIn { name, function } => write!(
                f,
                "`{function}` of plug-in `{name}` does not come back\n  hint: plugins.time_ms ends such a call; `pstrain plugin check` measures one"
            ),
            Cause::Handler { method, of } => {
                write!(f, "it computes `{method}` of rank {of}, and does not come to an end\n  hint: of a deadlock, `gdb -p` shows where its threads stand")
            }
            Cause::NotInCollective { group, operation, number } => write!(
                f,
                "it has not come to `{operation}`, the {number}. collective of group `{group}`, in which others wait"
            ),
            Cause::NotAtBarrier { barrier } => write!(f, "it has not come to barrier `{barrier}`"),
            Cause::Silent { state: 'D' } => {
                f.write_str("its process waits in the system (state D)\n  hint: for a disk, a network drive or a device that does not answer")
            }
            Cause::Silent { state } => write!(f, "it has not answered when it was asked (state {state})"),
            Cause::NoAnswer { method } => write!(f, "it does not answer `{method}`"),
            Cause::AtWork => f.write_str("it is at work of its own, and nothing begins or ends there"),
            Cause::Lost { why } => f.write_str(why),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Told { rank, role, process, does, still_s, .. } in &self.ranks {
            let process = match process {
                Process::Runs => "runs",
                Process::Stopped => "STOPPED",
                Process::Silent { .. } => "SILENT",
                Process::Gone => "gone",
                Process::Elsewhere => "elsewhere",
            };
            let still = still_s.map_or(String::new(), |still| format!(", nothing new for {still:.1} s"));
            let line = format!(
                "rank {:<4} {:12} {process:9} {does}{still}",
                rank.to_string(),
                format!("{role}{rank}")
            );
            writeln!(f, "{}", one_line(&line))?;
        }
        match &self.culprit {
            // Why a job ended has the rank's name in it.
            Some(Culprit { cause: Cause::Lost { why }, .. }) => write!(f, "the run ended: {why}"),
            None => f.write_str("no rank holds the others up, as far as the ranks tell"),
            Some(Culprit { rank, role, cause, for_s }) => {
                let since = for_s.map_or(String::new(), |for_s| format!(" for {for_s:.1} s"));
                match self.starting {
                    true => write!(
                        f,
                        "the run has taken no step yet, and waits{since} for rank {rank} (`{role}{rank}`), which may be preparing \
                         its first: {cause}"
                    ),
                    false => {
                        write!(f, "the run stands{since} because of rank {rank} (`{role}{rank}`): {cause}")
                    }
                }
            }
        }
    }
}
