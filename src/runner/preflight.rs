//! What the ranks have to have in common beside the job and its code ([`agreement`](super::agreement)): compared before the
//! first step, because afterwards a difference is a hang, or a model that is wrong in silence.
//!
//! - `FL-1` No trainer takes a step before the facts of all ranks have been compared.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use super::calls::preflight::{Compare, Compared};
use super::inputs::BadJob;
use super::libtorch;
use super::run_recorder::COORDINATOR;
use crate::files;
use crate::human::{hex, thousands};
use crate::job::weights::Weights;
use crate::job::{ModuleSpec, Partition, Placement, Training};
use crate::parallel::WAIT_FOR_TRAINERS;
use crate::plugin::{DatasetInfo, kind_name};
use crate::rpc::{Json, Mesh, Methods, PendingReply};
use crate::topology::Rank;

/// What a rank starts with, by what it is: to be the same on all ranks that say it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts(BTreeMap<String, String>);

impl Facts {
    /// The facts of `rank`: the program, libtorch, the weights that it starts from.
    ///
    /// # Errors
    /// When a file of weights cannot be read.
    pub fn of_rank(training: &Training, rank: Rank) -> Result<Facts> {
        let mut facts = Facts::default();
        facts.say("versions of pstrain", env!("CARGO_PKG_VERSION").into());
        // What is in the process, not what was built with.
        let loaded = libtorch::loaded_version();
        facts.say("versions of libtorch", loaded.unwrap_or_else(|| "unknown".into()));
        for module in training.modules.iter().filter(|module| starts_from_file(module, training, rank)) {
            let Some(Weights { path, scattered }) = &module.weights else { continue };
            let of_checkpoint = scattered.as_ref().map(|scattered| scattered.sha256().to_owned());
            let digest = of_checkpoint.map_or_else(|| digest(path), Ok);
            let digest = digest.with_context(|| path.display().to_string())?;
            facts.say(
                &format!("files of modules.{}.weights", module.written_name()),
                format!("SHA-256 {}", &digest[..16]),
            );
        }
        Ok(facts)
    }

    /// With the data that a trainer has opened.
    pub fn with_data(mut self, training: &Training, data: &DatasetInfo) -> Facts {
        // Whoever goes through data of its own, in its own time, may have more than the others.
        if training.data.partition != Partition::Whole || training.rounds() {
            self.say("samples of data.train", thousands(data.samples));
        }
        let field = |field: &crate::plugin::Field| {
            format!("{} {} {:?}", field.name, kind_name(field.dtype), field.shape)
        };
        self.say("fields of data.train", data.fields.iter().map(field).collect::<Vec<_>>().join(", "));
        if let Some(state) = &data.state {
            self.say("states of data.train", format!("SHA-256 {}", &hex(Sha256::digest(state))[..16]));
        }
        self
    }

    fn say(&mut self, what: &str, value: String) {
        self.0.insert(what.into(), value);
    }
}

/// Does `rank` read the module's weights, and another rank, too?
fn starts_from_file(module: &ModuleSpec, training: &Training, rank: Rank) -> bool {
    let (holders, trainers) = (&module.place.ranks, &training.train.trainers.ranks);
    let pulled = module.placement == Placement::Caller;
    let reads = holders.contains(&rank) || (pulled && trainers.contains(&rank));
    reads && (pulled || holders.len() > 1)
}

fn digest(file: &Path) -> std::io::Result<String> {
    let (mut file, mut hash, mut chunk) = (files::open_regular(file)?, Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(hex(hash.finalize())),
            length => hash.update(&chunk[..length]),
        }
    }
}

/// The coordinator's side: waits for all ranks, and tells each what differs.
pub struct Preflight {
    world: usize,
    came: watch::Sender<BTreeMap<Rank, Facts>>,
}

impl Preflight {
    pub fn register(world: u32, methods: &mut Methods) {
        let preflight = Arc::new(Preflight { world: world as usize, came: watch::Sender::default() });
        methods.serve(move |incoming, Compare { facts: Json(facts) }| {
            let (preflight, from) = (preflight.clone(), incoming.from);
            async move { preflight.compare(from, facts).await }
        });
    }

    async fn compare(&self, from: Rank, facts: Facts) -> Result<Compared> {
        let mut came = self.came.subscribe();
        self.came.send_modify(|came| drop(came.insert(from, facts)));
        let all = came.wait_for(|came| came.len() == self.world).await.context("this rank has ended")?;
        Ok(Compared { differences: Json(differences(&all)) })
    }
}

/// What differs, a line for each.
fn differences(ranks: &BTreeMap<Rank, Facts>) -> Vec<String> {
    let mut by_what: BTreeMap<&str, BTreeMap<&str, Vec<Rank>>> = BTreeMap::new();
    for (&rank, facts) in ranks {
        for (what, value) in &facts.0 {
            by_what.entry(what).or_default().entry(value).or_default().push(rank);
        }
    }
    let differ = by_what.into_iter().filter(|(_, values)| values.len() > 1);
    let told = |(what, values): (&str, BTreeMap<&str, Vec<Rank>>)| {
        let values = values.iter().map(|(value, ranks)| format!("{value} on {}", listed(ranks)));
        format!("{what} differ: {}", values.collect::<Vec<_>>().join("; "))
    };
    differ.map(told).collect()
}

/// `rank 1`, `ranks 1, 2 and 7`.
fn listed(ranks: &[Rank]) -> String {
    match ranks {
        [] => "no rank".into(),
        [rank] => format!("rank {rank}"),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(Rank::to_string).collect();
            format!("ranks {} and {last}", first.join(", "))
        }
    }
}

/// The comparison that this rank takes part in.
#[must_use = "the ranks that wait for it would wait in vain"]
pub struct Comparison(PendingReply<Compared>);

/// Sends this rank's facts. Only trainers wait for what comes of it: without them nothing begins.
pub fn compare(mesh: &Mesh, facts: Facts) -> Comparison {
    Comparison(mesh.request_within(COORDINATOR, Compare { facts: Json(facts) }, WAIT_FOR_TRAINERS))
}

/// How long the others wait for the first trainer to say what is wrong.
const TOLD: Duration = Duration::from_secs(1);

impl Comparison {
    /// Waits for all ranks (FL-1). `tells`: this rank is the one that says what differs.
    ///
    /// # Errors
    /// When something differs, as [`BadJob`]; when a rank is lost.
    pub fn wait(self, mesh: &Mesh, tells: bool) -> Result<()> {
        let Compared { differences: Json(differences) } = self.0.wait()?;
        if differences.is_empty() {
            return Ok(());
        }
        if !tells {
            mesh.lost().wait(Some(TOLD));
        }
        let hint = "every rank needs the same data, the same weights and the same program";
        Err(BadJob(anyhow!(
            "what the ranks start with is not the same: {}\n  hint: {hint}",
            differences.join("\n  ")
        ))
        .into())
    }
}

#[cfg(test)]
mod tests {
    use tch::Kind;

    use super::*;
    use crate::job::{JobText, Resolved, Sources, load, starter};
    use crate::plugin::Field;

    fn facts(said: &[(&str, &str)]) -> Facts {
        Facts(said.iter().map(|&(what, value)| (what.into(), value.into())).collect())
    }

    #[test]
    fn what_differs_is_named_with_both_values_and_their_ranks() {
        let ranks = BTreeMap::from([
            (Rank(0), facts(&[("versions of pstrain", "1.0")])),
            (Rank(1), facts(&[("versions of pstrain", "1.0"), ("samples of data.train", "1,437")])),
            (Rank(2), facts(&[("versions of pstrain", "1.1"), ("samples of data.train", "1,436")])),
            (Rank(3), facts(&[("versions of pstrain", "1.0"), ("samples of data.train", "1,437")])),
        ]);
        assert_eq!(
            differences(&ranks),
            [
                "samples of data.train differ: 1,436 on rank 2; 1,437 on ranks 1 and 3",
                "versions of pstrain differ: 1.0 on ranks 0, 1 and 3; 1.1 on rank 2",
            ]
        );
    }

    fn resolved() -> Resolved {
        let file = JobText { name: "starter", text: starter() };
        load(&Sources { file, env: Vec::new(), overrides: &[] }).unwrap()
    }

    #[test]
    fn a_rank_says_which_versions_it_runs() {
        let Facts(said) = Facts::of_rank(resolved().job.training().unwrap(), Rank(1)).unwrap();
        assert_eq!(said["versions of pstrain"], env!("CARGO_PKG_VERSION"));
        assert_eq!(said["versions of libtorch"], "2.11.0");
    }

    #[test]
    fn the_data_of_trainers_are_compared_by_samples_fields_and_dtypes() {
        let resolved = resolved();
        let training = resolved.job.training().unwrap();
        let of = |samples, dtype, state: &[u8]| {
            let field =
                |name: &str, dtype, shape: &[i64]| Field { name: name.into(), dtype, shape: shape.into() };
            let fields = vec![field("image", Kind::Uint8, &[1, 8, 8]), field("label", dtype, &[])];
            Facts::default().with_data(training, &DatasetInfo { samples, fields, state: Some(state.into()) })
        };
        let ranks = BTreeMap::from([
            (Rank(1), of(1_437, Kind::Int64, b"abc")),
            (Rank(2), of(1_436, Kind::Float, b"")),
        ]);
        assert_eq!(
            differences(&ranks),
            [
                "fields of data.train differ: image uint8 [1, 8, 8], label float32 [] on rank 2; \
                 image uint8 [1, 8, 8], label int64 [] on rank 1",
                "samples of data.train differ: 1,436 on rank 2; 1,437 on rank 1",
                // sha256sum of `abc` and of nothing.
                "states of data.train differ: SHA-256 ba7816bf8f01cfea on rank 1; SHA-256 e3b0c44298fc1c14 on rank 2",
            ]
        );
    }

    #[test]
    fn what_one_rank_alone_has_differs_from_nothing() {
        let ranks = BTreeMap::from([
            (Rank(0), facts(&[("versions of pstrain", "1.0"), ("files of modules.net.weights", "a")])),
            (Rank(1), facts(&[("versions of pstrain", "1.0")])),
        ]);
        assert_eq!(differences(&ranks), [""; 0]);
    }
}
