//! A process that follows a run for as long as it goes on: it serves the run's page, and tells those whom the job names. It is
//! not the training: whatever becomes of it, that goes on.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::sync::watch;

use super::export::{self, Exporter, prometheus};
use super::page::Page;
use super::report::Run;
use super::run::Watched;
use super::serve::Shown;
use super::timeline::Timeline;
use super::view::{Setup, View};
use crate::runner::records::MetricsLine;

/// How often the files are looked at.
const EVERY: Duration = Duration::from_millis(500);

/// The page is made anew when so many times as long has passed as making it took: that costs at most a fiftieth of a processor, of
/// however many ranks.
const PAUSES: u32 = 50;

/// The fastest that a person looks at.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// Follows the run in `folder` until `ended` says that no more will come, and tells those whom its job names. `shown`: where its
/// page is served, if it is.
///
/// # Errors
/// When a file of the run cannot be read.
pub fn follow(folder: &Path, shown: Option<&watch::Sender<Arc<Shown>>>, ended: &Receiver<()>) -> Result<()> {
    let setup = Setup::read(folder);
    let exporters = Exporters::of(&setup, folder);
    watch_until(folder, &setup, exporters, shown, ended)
}

/// Shows the run in `folder` until `ended` says that no more will come. Nobody is told: it may be somebody else's run, and those
/// whom its job names are told already.
///
/// # Errors
/// When a file of the run cannot be read.
pub fn look_on(folder: &Path, shown: &watch::Sender<Arc<Shown>>, ended: &Receiver<()>) -> Result<()> {
    watch_until(folder, &Setup::read(folder), Exporters(Vec::new()), Some(shown), ended)
}

fn watch_until(
    folder: &Path,
    setup: &Setup,
    mut exporters: Exporters,
    shown: Option<&watch::Sender<Arc<Shown>>>,
    ended: &Receiver<()>,
) -> Result<()> {
    let mut run = Watched::new(folder, setup.world_size());
    let mut due = Instant::now();
    loop {
        let is_last = ended.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout);
        let mut has_news = false;
        let read = run.read_on(|line| {
            has_news = true;
            exporters.tell(line);
        });
        read.with_context(|| format!("cannot read the run in `{}`", folder.display()))?;
        let begun = Instant::now();
        if let Some(shown) = shown
            && (is_last || begun >= due && has_news)
        {
            let timeline = if is_last { Timeline::read(folder).ok().flatten() } else { None };
            shown.send_replace(Arc::new(show(&run, setup, timeline, is_last)));
            due = begun + SHORTEST_PAUSE.max(begun.elapsed() * PAUSES);
        }
        if is_last {
            exporters.finish(&run);
            return Ok(());
        }
    }
}

/// Shows a run as it is now.
///
/// # Errors
/// When a file of the run cannot be read.
pub fn shown(folder: &Path) -> Result<Shown> {
    let Run { setup, watched, timeline, under_way } = Run::read(folder)?;
    Ok(show(&watched, &setup, timeline, !under_way))
}

fn show(run: &Watched, setup: &Setup, timeline: Option<Timeline>, is_last: bool) -> Shown {
    let view = View::of(run, setup, timeline.as_ref(), !is_last);
    let page = Page { live: !is_last, runs: vec![view], differing: Vec::new() };
    Shown { page: page.json(), metrics: prometheus::text(run, !is_last), is_last }
}

/// Those who are told of the run. One that fails is of no more use, which is said once.
struct Exporters(Vec<Box<dyn Exporter>>);

impl Exporters {
    fn of(setup: &Setup, folder: &Path) -> Exporters {
        let all = setup.job().map_or_else(|| Ok(Vec::new()), |job| export::of_job(job, folder));
        Exporters(all.unwrap_or_else(|error| {
            tracing::warn!("the run is told to nobody: {error:#}");
            Vec::new()
        }))
    }

    fn tell(&mut self, line: &MetricsLine) {
        self.0.retain_mut(|exporter| is_told(exporter.name(), exporter.line(line)));
    }

    /// Side by side: one that hangs takes no time of the others'.
    fn finish(mut self, run: &Watched) {
        thread::scope(|scope| {
            for exporter in &mut self.0 {
                scope.spawn(move || is_told(exporter.name(), exporter.finish(run)));
            }
        });
    }
}

fn is_told(name: &str, told: Result<()>) -> bool {
    told.inspect_err(|error| tracing::warn!("{name} is not told of the run any more: {error:#}")).is_ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::mpsc;

    use super::*;
    use crate::runner::run_folder::JOB;

    /// For a request that nobody answers; one after the other the two would take twice as long.
    const DEADLINE: Duration = Duration::from_secs(10);

    #[test]
    fn two_servers_that_hang_take_no_longer_than_one_and_who_only_looks_asks_none() {
        let folder = tempfile::tempdir().unwrap();
        // They take connections, and say nothing.
        let hang = || TcpListener::bind("127.0.0.1:0").unwrap();
        let servers = [hang(), hang()];
        let [otlp, mlflow] = servers.each_ref().map(|server| server.local_addr().unwrap());
        let job = include_str!("../../jobs/digits_ps.toml");
        let told =
            format!("[log]\notlp = \"http://{otlp}\"\nmlflow = \"http://{mlflow}\"\ntensorboard = \"tb\"");
        std::fs::write(folder.path().join(JOB), job.replace("[log]", &told)).unwrap();
        let line = r#"{"kind":"step","step":5,"epoch":1,"rank":1,"loss":0.5,"lr":0.25,"samples_per_s":64.0,"data_wait_pct":2.0,"staleness":null,"time_s":1.0}"#;
        std::fs::write(folder.path().join("metrics.jsonl"), format!("{line}\n")).unwrap();
        let (end, ended) = mpsc::channel();
        drop(end);
        let (show, _shown) = watch::channel(Arc::new(shown(folder.path()).unwrap()));
        look_on(folder.path(), &show, &ended).unwrap();
        for server in &servers {
            server.set_nonblocking(true).unwrap();
            assert!(server.accept().is_err(), "who looks tells nobody");
        }
        assert!(!folder.path().join("tb").exists());
        let begun = Instant::now();
        follow(folder.path(), None, &ended).unwrap();
        assert!(begun.elapsed() < 2 * DEADLINE, "{:?}", begun.elapsed());
        for server in servers {
            assert!(server.accept().is_ok(), "each was asked");
        }
        assert!(
            folder.path().join("tb/rank1/events.out.tfevents.pstrain").is_file(),
            "and a third was told meanwhile"
        );
    }
}
