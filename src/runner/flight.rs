//! Flight records in the run folder: which processes the ranks are, and what each of them did last, by [`crate::recorder`].
//!
//! A rank writes its record when another one is lost, when the job stands still, and when it gets SIGUSR1 (`pstrain doctor RUN`
//! sends it). One that does not see the run folder sends its record to the coordinator, or, when there is no mesh any more, writes
//! it to a folder of its own machine, and says so.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use nix::unistd::gethostname;
use serde::{Deserialize, Serialize};

use super::calls::flight::{Put, Register, Registered};
use super::run_folder::clear_flight;
pub use super::run_folder::{FLIGHT, PROCESSES};
use super::run_recorder::COORDINATOR;
use crate::files;
use crate::recorder::{Flight, RECORDER};
use crate::rpc::{CallError, Cause, Json, LostRank, Mesh, Methods};
use crate::topology::Rank;

/// For a record to reach the coordinator.
const PUT_LIMIT: Duration = Duration::from_millis(800);

/// Bytes of a record that is read.
pub const MOST_OF_RECORD: u64 = 4 << 20;

pub fn record_of(rank: Rank) -> String {
    format!("rank{rank}.json")
}

/// Which process a rank is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankProcess {
    pub rank: Rank,
    pub role: String,
    /// The name of its machine, for people.
    pub host: String,
    /// What tells its machine, and its part of it, from others: a process's number counts there.
    pub machine: String,
    pub pid: i32,
    /// In ticks since the machine was started: another process that gets the number has another one.
    pub started: u64,
}

impl RankProcess {
    fn own(rank: Rank, role: &str) -> RankProcess {
        let host = gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let pid = std::process::id() as i32;
        let started = started(pid).unwrap_or(0);
        RankProcess { rank, role: role.into(), host, machine: this_machine(), pid, started }
    }
}

/// This boot of this machine, and this space of numbers of processes on it.
pub fn this_machine() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let space = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", boot.trim(), space.display())
}

/// The fields of `/proc/PID/stat` behind the name, which may have anything in it: the state is the first (proc(5)).
pub fn stat_fields(text: &str) -> Option<Vec<&str>> {
    Some(text.rsplit_once(')')?.1.split_whitespace().collect())
}

/// When a process was started. None: it is gone.
pub fn started(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The 22nd field, counted from 1 with number and name.
    stat_fields(&stat)?.get(19)?.parse().ok()
}

/// What a rank did last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankFlight {
    #[serde(flatten)]
    pub process: RankProcess,
    /// Milliseconds since 1970.
    pub written_ms: u64,
    /// Why it was written.
    pub why: String,
    /// What it has said that it does.
    pub doing: String,
    /// The rank with which the job has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<Lost>,
    #[serde(flatten)]
    pub flight: Flight,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    pub rank: Rank,
    pub why: String,
}

/// The coordinator's side.
pub struct Flights {
    /// The run folder.
    folder: PathBuf,
}

impl Flights {
    /// Of the run in this folder, which has no records yet. Without room for a folder of them there will be none here; a run
    /// does not fail of that.
    pub fn open(folder: &Path) -> Arc<Flights> {
        let own = folder.join(FLIGHT);
        clear_flight(folder);
        let _ = files::make_folders(&own);
        Arc::new(Flights { folder: std::path::absolute(folder).unwrap_or_else(|_| folder.into()) })
    }

    pub fn register(self: &Arc<Self>, methods: &mut Methods) {
        let flights = self.clone();
        methods.serve(move |_, Register { process: Json(process) }| {
            // A rank that does not find its line sends its records.
            let _ = flights.note(&process);
            let folder = flights.folder.display().to_string();
            std::future::ready(Ok::<_, CallError>(Registered { folder }))
        });
        let flights = self.clone();
        methods.serve(move |_, Put { flight }| {
            std::future::ready(write(&flights.folder, &flight).map(drop).map_err(CallError::failed))
        });
    }

    fn note(&self, process: &RankProcess) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(process)?;
        line.push(b'\n');
        files::append_to(&self.folder.join(FLIGHT).join(PROCESSES))?.write_all(&line)
    }

    /// The run has ended, and no rank was lost: there is nobody to ask any more.
    pub fn close(&self) {
        clear_flight(&self.folder);
    }
}

fn write(folder: &Path, flight: &RankFlight) -> Result<PathBuf> {
    let own = folder.join(FLIGHT);
    let name = record_of(flight.process.rank);
    files::write(&own, &name, &serde_json::to_vec(flight)?)
        .with_context(|| format!("cannot write `{}`", own.join(&name).display()))?;
    Ok(own.join(name))
}

/// Writes this rank's records.
pub struct FlightWriter {
    mesh: Mesh,
    process: RankProcess,
    /// The run folder, if this rank sees it.
    folder: Option<PathBuf>,
    /// Whether the record of the job's end is written; held while it is.
    ended: Mutex<bool>,
}

impl FlightWriter {
    /// Tells the coordinator which process this rank is.
    ///
    /// # Errors
    /// When the coordinator cannot take it.
    pub fn register(mesh: &Mesh, role: &str) -> Result<FlightWriter> {
        let process = RankProcess::own(mesh.rank(), role);
        let Registered { folder } =
            mesh.request(COORDINATOR, Register { process: Json(process.clone()) }).wait()?;
        let folder = PathBuf::from(folder);
        // A folder of that name on another machine is another one: this rank's line is not in it.
        let processes = folder.join(FLIGHT).join(PROCESSES);
        let noted = files::text_at_most(&processes, MOST_OF_RECORD).unwrap_or_default();
        let own = |line: &str| serde_json::from_str::<RankProcess>(line).is_ok_and(|noted| noted == process);
        let folder = noted.lines().any(own).then_some(folder);
        Ok(FlightWriter { mesh: mesh.clone(), process, folder, ended: Mutex::new(false) })
    }

    /// The job has ended because of a rank. Once: whoever comes second waits for the first.
    pub fn lost(&self, lost: &LostRank) {
        if lost.cause == Cause::Aborted {
            return;
        }
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::mem::replace(&mut *ended, true) {
            let told = Lost { rank: lost.rank, why: lost.to_string() };
            let why = if lost.cause == Cause::Stalled { "the job stood still" } else { "a rank was lost" };
            self.write(why, Some(told));
        }
    }

    /// Somebody wants to see it.
    pub fn asked(&self) {
        self.write("asked for", None);
    }

    fn write(&self, why: &str, lost: Option<Lost>) {
        let is_over = lost.is_some();
        let written_ms =
            SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        let flight = RankFlight {
            process: self.process.clone(),
            written_ms,
            why: why.into(),
            doing: self.mesh.what_it_does(),
            lost,
            flight: RECORDER.at(Instant::now()),
        };
        let Some(folder) = &self.folder else { return self.send(flight, is_over) };
        if let Err(error) = write(folder, &flight) {
            self.write_elsewhere(&flight, &format!("{error:#}"));
        }
    }

    fn send(&self, flight: RankFlight, is_over: bool) {
        if is_over {
            return self.write_elsewhere(&flight, "there is no mesh any more to send it");
        }
        let sent = self.mesh.request_within(COORDINATOR, Put { flight: flight.clone() }, PUT_LIMIT).wait();
        if let Err(error) = sent {
            self.write_elsewhere(&flight, &error.to_string());
        }
    }

    /// Where this rank may write.
    fn write_elsewhere(&self, flight: &RankFlight, why: &str) {
        let rank = self.process.rank;
        let folders = [PathBuf::from("."), std::env::temp_dir()];
        let name = format!("pstrain-flight-{}-{}", self.process.pid, record_of(rank));
        let bytes = serde_json::to_vec(flight).unwrap_or_default();
        match folders.iter().find(|folder| files::write(folder, &name, &bytes).is_ok()) {
            Some(folder) => {
                let path = std::path::absolute(folder.join(&name)).unwrap_or_else(|_| folder.join(&name));
                eprintln!(
                    "the flight record of rank {rank} is in `{}` of this machine: {why}",
                    path.display()
                );
            }
            None => eprintln!("the flight record of rank {rank} cannot be written: {why}"),
        }
    }
}

/// What the threads of a rank share that may have to write a record, as soon as there is where to write it.
pub type SharedWriter = Arc<OnceLock<FlightWriter>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_its_number_and_its_start() {
        let own = std::process::id() as i32;
        assert!(started(own).is_some_and(|ticks| ticks > 0));
        assert_eq!(started(own), started(own));
        assert_eq!(started(i32::MAX), None);
        let odd = "7 (a ) b) S 1 2";
        assert_eq!(stat_fields(odd).unwrap(), ["S", "1", "2"]);
    }

    #[test]
    fn a_folder_of_that_name_which_is_somebodys_own_keeps_what_is_in_it() {
        let run = tempfile::tempdir().unwrap();
        let own = run.path().join(FLIGHT);
        fs::create_dir(&own).unwrap();
        for name in ["rank1.json", "ranking.json", "delays.csv", PROCESSES] {
            fs::write(own.join(name), b"").unwrap();
        }
        drop(Flights::open(run.path()));
        assert_eq!(crate::runner::testing::names(&own), ["delays.csv", "ranking.json"]);
    }

    #[test]
    fn a_run_that_ends_in_order_leaves_no_trace_of_its_processes() {
        let run = tempfile::tempdir().unwrap();
        let flights = Flights::open(run.path());
        flights.note(&RankProcess::own(Rank(3), "trainer")).unwrap();
        let text = fs::read_to_string(run.path().join(FLIGHT).join(PROCESSES)).unwrap();
        assert!(text.contains("\"rank\":3") && text.ends_with('\n'), "{text}");
        flights.close();
        assert_eq!(fs::read_dir(run.path()).unwrap().count(), 0);
    }
}
