//! A process that follows a run for as long as it goes on, and serves its page. It is not the training: whatever becomes of it,
//! that goes on.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use tokio::sync::watch;

use super::page::Page;
use super::report::Run;
use super::run::Watched;
use super::serve::Shown;
use super::timeline::Timeline;
use super::view::{Setup, View};

/// How often the files are looked at.
const EVERY: Duration = Duration::from_millis(500);

/// The page is made anew when this part of the time has passed since it took so long: making it costs at most a fiftieth of a
/// processor, of however many ranks.
const PAUSES: u32 = 50;

/// The fastest that a person looks at.
const SHORTEST_PAUSE: Duration = Duration::from_secs(1);

/// Follows the run in `folder`, and shows it, until `ended` says that no more will come.
///
/// # Errors
/// When a file of the run cannot be read.
pub fn follow(folder: &Path, shown: &watch::Sender<Arc<Shown>>, ended: &Receiver<()>) -> Result<()> {
    let setup = Setup::read(folder);
    let mut run = Watched::new(folder, setup.world_size());
    let mut due = Instant::now();
    loop {
        let is_last = ended.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout);
        let mut has_news = is_last;
        run.read_on(|_| has_news = true)
            .with_context(|| format!("cannot read the run in `{}`", folder.display()))?;
        if is_last {
            shown.send_replace(Arc::new(show(&run, &setup, Timeline::read(folder).ok().flatten(), true)));
            return Ok(());
        }
        let begun = Instant::now();
        // Who is not looked at need not be drawn; whoever comes is shown what there is.
        if begun >= due && (has_news || shown.borrow().page.is_empty()) {
            shown.send_replace(Arc::new(show(&run, &setup, None, false)));
            due = begun + SHORTEST_PAUSE.max(begun.elapsed() * PAUSES);
        }
    }
}

/// Shows a run that has ended.
///
/// # Errors
/// When a file of the run cannot be read.
pub fn show_ended(folder: &Path) -> Result<Shown> {
    let Run { setup, watched, timeline, .. } = Run::read(folder)?;
    Ok(show(&watched, &setup, timeline, true))
}

fn show(run: &Watched, setup: &Setup, timeline: Option<Timeline>, is_last: bool) -> Shown {
    let page = Page {
        live: !is_last,
        runs: vec![View::of(run, setup, timeline.as_ref(), !is_last)],
        differing: Vec::new(),
    };
    Shown { page: page.json(), metrics: String::new(), is_last }
}
