//! What this rank uses and says, told to the coordinator while it works: memory, processor, device, what its time goes into, what it
//! logs.

use std::fs;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use super::calls::record::Record;
use super::gpu::Gpus;
use super::messages;
use super::records::{MessageRecord, MetricsLine, RankRecord};
use super::run_recorder::COORDINATOR;
use crate::profile;
use crate::rpc::{CallError, Json, Mesh};

/// Tells until it is dropped.
pub struct Telling {
    /// Dropped to end it.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Telling {
    /// Tells in such distances of time. A rank that does not move on tells nothing: its calls would be a sign of progress.
    ///
    /// # Errors
    /// When there is no thread for it.
    pub fn start(mesh: &Mesh, role: &str, devices: &[tch::Device], every: Duration) -> Result<Telling> {
        let (end, ended) = mpsc::channel();
        let mut teller = Teller::new(mesh.clone(), role.into(), devices);
        let tell = move || {
            let mut moved = 0;
            loop {
                let is_last = ended.recv_timeout(every) != Err(RecvTimeoutError::Timeout);
                if !is_last && profile::beats() == moved {
                    continue;
                }
                // Without the coordinator this rank has other worries.
                if teller.tell().is_err() || is_last {
                    return;
                }
                moved = profile::beats();
            }
        };
        let thread =
            thread::Builder::new().name("usage".into()).spawn(tell).context("cannot start a thread")?;
        Ok(Telling { end: Some(end), thread: Some(thread) })
    }

    /// Tells once more, and ends.
    pub fn finish(mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            // It does not panic, and nobody needs to know.
            let _ = thread.join();
        }
    }
}

struct Teller {
    mesh: Mesh,
    role: String,
    gpus: Option<Gpus>,
    begun: Instant,
    /// The previous record.
    before: Used,
}

/// What a process has used until a moment.
struct Used {
    at: Instant,
    /// Seconds of processors.
    cpu_s: f64,
    seconds: std::collections::BTreeMap<profile::Activity, f64>,
}

impl Used {
    fn now() -> Used {
        let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        let usage = getrusage(UsageWho::RUSAGE_SELF);
        let cpu_s = usage.map_or(0.0, |usage| seconds(usage.user_time()) + seconds(usage.system_time()));
        Used { at: Instant::now(), cpu_s, seconds: profile::spent() }
    }
}

impl Teller {
    fn new(mesh: Mesh, role: String, devices: &[tch::Device]) -> Teller {
        Teller { mesh, role, gpus: Gpus::of(devices), begun: Instant::now(), before: Used::now() }
    }

    fn tell(&mut self) -> Result<(), CallError> {
        let used = self.used();
        self.send(MetricsLine::Rank(used))?;
        for messages::Logged { level, text, at } in messages::take() {
            let time_s = at.saturating_duration_since(self.begun).as_secs_f64();
            let rank = Some(self.mesh.rank());
            self.send(MetricsLine::Message(MessageRecord { rank, level, text, time_s }))?;
        }
        Ok(())
    }

    fn send(&self, line: MetricsLine) -> Result<(), CallError> {
        self.mesh.request(COORDINATOR, Record { line: Json(line) }).wait()
    }

    fn used(&mut self) -> RankRecord {
        let now = Used::now();
        let before = std::mem::replace(&mut self.before, now);
        let now = &self.before;
        let passed = now.at.saturating_duration_since(before.at).as_secs_f64();
        let spent =
            now.seconds.iter().map(|(activity, seconds)| (*activity, seconds - before.seconds[activity]));
        RankRecord {
            rank: self.mesh.rank(),
            role: self.role.clone(),
            time_s: now.at.saturating_duration_since(self.begun).as_secs_f64(),
            resident_bytes: resident_bytes(),
            cpu_pct: if passed > 0.0 { 100.0 * (now.cpu_s - before.cpu_s) / passed } else { 0.0 },
            gpu: self.gpus.as_ref().and_then(Gpus::used),
            passed_s: passed,
            seconds: spent.filter(|(_, seconds)| *seconds > 0.0).collect(),
        }
    }
}

/// 0 where the system does not tell.
fn resident_bytes() -> u64 {
    // Size and resident set, in pages (proc(5)).
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4096);
    pages * page as u64
}
