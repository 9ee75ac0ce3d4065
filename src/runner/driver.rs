//! A job that one rank drives: the master of PyTorch's tutorial "Combining Distributed DataParallel with Distributed
//! RPC Framework". It makes each remote module on its owner, starts the training loop of each trainer by a call that
//! carries references to them, and waits for all.
//!
//! The loop runs on the trainer's main thread, which waits for the call ([`TrainRequests::follow`]); the call is answered when
//! the loop is over.

use std::fmt;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use tokio::sync::oneshot;

use super::calls::driver::Train;
use super::inputs::BadJob;
use super::progress::Reporter;
use super::waiting::receive;
use crate::autograd::Autograd;
use crate::job::{Placement, Training};
use crate::parallel::{RemoteModule, WAIT_FOR_TRAINERS};
use crate::rpc::{CallError, Incoming, Mesh, Methods, PendingReply, RRef};
use crate::topology::Rank;

/// References to the remote modules of a job, by name.
pub type References = Vec<(String, RRef)>;

/// The driver's part.
///
/// # Errors
/// When a module cannot be made. The first error of a trainer, with its name.
pub fn drive(job: &Training, autograd: &Arc<Autograd>, mesh: &Mesh, reporter: &mut Reporter) -> Result<()> {
    let name = |rank: Rank| mesh.peers()[rank.index()].name.as_str();
    let mut modules = References::new();
    for spec in job.modules.iter().filter(|module| module.placement == Placement::Remote) {
        for &host in &spec.place.ranks {
            let what = format!("making module {} on {}", spec.name, name(host));
            mesh.doing(&what);
            reporter.doing(&what);
            let module = RemoteModule::get(autograd, host, &spec.name).context(what);
            let module = module.map_err(BadJob::of_module)?;
            modules.push((spec.name.clone(), module.rref().clone()));
        }
    }
    let trainers = &job.train.trainers.ranks;
    let what = format!("driving {}", trainers.iter().map(|&rank| name(rank)).collect::<Vec<_>>().join(", "));
    mesh.doing(&what);
    reporter.doing(&what);
    let start =
        |&trainer: &Rank| mesh.request_within(trainer, Train { modules: modules.clone() }, WAIT_FOR_TRAINERS);
    let answers = PendingReply::wait_all(trainers.iter().map(start).collect());
    answers.map_err(|error| anyhow!("training on {} failed: {}", name(error.rank), error.message))?;
    Ok(())
}

/// A trainer's side: what the driver has requested.
pub struct TrainRequests {
    driver: Rank,
    /// One at a time: there is one training loop.
    given: SyncSender<TrainRequest>,
    /// Taken from by the main thread.
    taken: Mutex<Receiver<TrainRequest>>,
}

struct TrainRequest {
    modules: References,
    /// Sent what became of the training loop.
    done: oneshot::Sender<Result<(), CallError>>,
}

impl TrainRequests {
    pub fn new(driver: Rank) -> Arc<TrainRequests> {
        let (given, taken) = mpsc::sync_channel(1);
        Arc::new(TrainRequests { driver, given, taken: Mutex::new(taken) })
    }

    pub fn register(self: &Arc<Self>, methods: &mut Methods) {
        let requests = self.clone();
        methods.serve(move |incoming, train| {
            let requests = requests.clone();
            async move { requests.serve(incoming, train).await }
        });
    }

    async fn serve(&self, incoming: Incoming, Train { modules }: Train) -> Result<(), CallError> {
        if incoming.from != self.driver {
            return Err(CallError::failed(format_args!("rank {} drives this job", self.driver)));
        }
        let (done, outcome) = oneshot::channel();
        if self.given.try_send(TrainRequest { modules, done }).is_err() {
            return Err(CallError::failed("this trainer trains already"));
        }
        outcome.await.map_err(|_| CallError::failed("this trainer has ended"))?
    }

    /// Waits for the driver's call, trains with the references that it brings, and answers it.
    ///
    /// # Errors
    /// That of `train`: as [`ReportedToDriver`] if the driver knows of it. When a rank is lost before the call comes.
    pub fn follow<T>(&self, mesh: &Mesh, train: impl FnOnce(References) -> Result<T>) -> Result<T> {
        let request = self.wait(mesh)?;
        let error = match train(request.modules) {
            Ok(trained) => {
                // A driver that is gone is found lost.
                let _ = request.done.send(Ok(()));
                return Ok(trained);
            }
            Err(error) => error,
        };
        // Often the reason is a rank that was lost, which the mesh tells to all.
        if mesh.lost().wait(Some(VERDICT)).is_some() {
            return Err(error);
        }
        let _ = request.done.send(Err(CallError::failed(format_args!("{error:#}"))));
        mesh.lost().wait(Some(ENDED));
        Err(ReportedToDriver(error).into())
    }

    fn wait(&self, mesh: &Mesh) -> Result<TrainRequest> {
        let taken = self.taken.lock().expect("only the main thread takes requests");
        receive(mesh, &taken, "nobody sends requests any more")
    }
}

/// Time from a failed call or collective to the mesh's word on who is lost.
const VERDICT: Duration = Duration::from_secs(1);
/// Time from an answer to the driver to its end of the job.
const ENDED: Duration = Duration::from_secs(4);

/// Why a trainer's loop failed, where the driver has been notified.
#[derive(Debug)]
pub struct ReportedToDriver(anyhow::Error);

impl ReportedToDriver {
    pub fn reason(&self) -> &anyhow::Error {
        &self.0
    }
}

impl fmt::Display for ReportedToDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

impl std::error::Error for ReportedToDriver {}
