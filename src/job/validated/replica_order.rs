//! In which order the gradients of one backward come to the replicas of a trainer.
//!
//! What a trainer computes itself falls into pieces: one gradient comes for the loss, one for each value that it sent to a
//! module on another rank, and each is taken through what was computed here. A Reducer averages the replicas of one piece
//! while that runs, which is a collective: so each replica has to be in one piece, and the pieces have to come in the same order on
//! all trainers. In a chain they do: from the loss towards the data.

use std::collections::BTreeSet;

use super::{Average, Placement, Taker, Training};
use crate::layers::InputDtype;

/// What starts a piece: the loss, or the gradient of an input that was sent.
type Piece = Taker;

/// Replicas whose gradients are averaged while they come, and come in no order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unordered {
    #[error("those of `modules.{0}` come in several parts, from other ranks")]
    InParts(String),
    #[error("those of `modules.{0}` and `modules.{1}` come from different ranks, in any order")]
    Between(String, String),
}

impl Training {
    /// The replicas, by their place among the modules, that are averaged together: of each piece of a backward, in the order of
    /// the pieces, or all when the backward is over. Those that have nothing to average are left out.
    ///
    /// # Errors
    /// They are averaged while gradients come, and the pieces come in no order. No job is like that that was read.
    pub fn replica_runs(&self) -> Result<Vec<Vec<usize>>, Unordered> {
        let is_averaged = |at: &usize| {
            let module = &self.modules[*at];
            module.placement == Placement::Replicas && module.has_state()
        };
        let replicas = (0..self.modules.len()).filter(is_averaged);
        match self.replicas.average {
            Average::Ddp => {
                // Of those that are frozen only running statistics are kept equal.
                let (trained, frozen): (Vec<_>, Vec<_>) = replicas.partition(|&at| self.modules[at].trains());
                let mut runs = self.by_pieces(trained.into_iter())?;
                match runs.first_mut() {
                    Some(first) => first.extend(frozen),
                    None => runs.push(frozen),
                }
                Ok(runs)
            }
            Average::AllReduce | Average::Ring => Ok(vec![replicas.collect()]),
        }
    }

    fn by_pieces(&self, replicas: impl Iterator<Item = usize>) -> Result<Vec<Vec<usize>>, Unordered> {
        let pieces = self.pieces();
        let name = |at: usize| self.modules[at].name.clone();
        let mut runs: Vec<(&BTreeSet<Piece>, Vec<usize>)> = Vec::new();
        for at in replicas {
            let Pieces { own, .. } = &pieces[at];
            if own.len() > 1 {
                return Err(Unordered::InParts(name(at)));
            }
            match runs.iter_mut().find(|(piece, _)| *piece == own) {
                Some((_, run)) => run.push(at),
                None => runs.push((own, vec![at])),
            }
        }
        for (nth, (_, run)) in runs.iter().enumerate() {
            for (_, other) in &runs[..nth] {
                let (a, b) = (run[0], other[0]);
                let behind = |a: usize, b: usize| pieces[b].own.is_subset(&pieces[a].earlier);
                if !behind(a, b) && !behind(b, a) {
                    return Err(Unordered::Between(name(b), name(a)));
                }
            }
        }
        Ok(runs.into_iter().map(|(_, run)| run).collect())
    }

    /// The pieces of the backward that each module is in, and those that come before.
    fn pieces(&self) -> Vec<Pieces> {
        let mut all: Vec<Pieces> = vec![Pieces::default(); self.modules.len()];
        for at in (0..self.modules.len()).rev() {
            let mut pieces = Pieces::default();
            for taker in self.takers(at) {
                let (piece, earlier) = match taker {
                    Taker::Loss => (Some([taker].into()), BTreeSet::new()),
                    Taker::Module { module, input } => match self.modules[module].placement {
                        // Ids have no gradient; the weights of bags have one, which is computed here.
                        Placement::Shards(_)
                            if self.modules[module].inputs[input].dtype == InputDtype::Int64 =>
                        {
                            (None, BTreeSet::new())
                        }
                        Placement::Replicas | Placement::Caller | Placement::Shards(_) => {
                            (Some(all[module].own.clone()), all[module].earlier.clone())
                        }
                        Placement::Remote => {
                            let before = &all[module];
                            (Some([taker].into()), before.own.union(&before.earlier).copied().collect())
                        }
                    },
                };
                pieces.own.extend(piece.unwrap_or_default());
                pieces.earlier.extend(earlier);
            }
            all[at] = pieces;
        }
        all
    }
}

/// The pieces in which gradients come to what a module gave, and those that are over before them.
#[derive(Clone, Default)]
struct Pieces {
    own: BTreeSet<Piece>,
    earlier: BTreeSet<Piece>,
}
