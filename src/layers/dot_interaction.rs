//! The interaction of features of DLRM ("Deep Learning Recommendation Model for Personalization and Recommendation
//! Systems", Naumov et al., 2019, section 2.1.4), in the order of its reference implementation.

use c10d::vectors;
use tch::{Device, Kind, TchError, Tensor};

use super::arguments::arguments;
use super::join::{self, joining};
use super::op::Join;
use super::python::{Class, Python};
use super::shape::{Output, Refusal, Signal};
use crate::config::{Flag, Key, flag, key};

arguments! {
    /// A dense vector, and behind it the dot product of each pair of vectors among it and the others, as in DLRM.
    pub struct DotInteraction {
        itself: bool = ITSELF,
    }
}

const ITSELF: Key<Flag> = key("itself", flag())
    .default("false")
    .doc("Also the dot product of each vector with itself (DLRM's `arch_interaction_itself`).");

joining!(DotInteraction);

const INTERACTION: Class = Class(
    r#"
class DotInteraction(nn.Module):
    """A dense vector, and behind it the dot product of each pair of vectors among it and the others, as in DLRM."""

    def __init__(self, itself=False):
        super().__init__()
        self.diagonal = 0 if itself else -1

    def forward(self, dense, *others):
        vectors = torch.cat([x.unsqueeze(1) if x.dim() == 2 else x for x in (dense, *others)], 1)
        count = vectors.size(1)
        rows, columns = torch.tril_indices(count, count, self.diagonal, device=vectors.device)
        dots = torch.bmm(vectors, vectors.transpose(1, 2))
        return torch.cat([dense, dots[:, rows, columns]], 1)
"#,
);

impl DotInteraction {
    /// The pairs of so many vectors, each with those before it: `(1, 0), (2, 0), (2, 1), ...`, the lower triangle of
    /// their matrix row by row. The dense vector is number 0, the others follow in the order of the inputs.
    fn pairs(&self, vectors: i64) -> impl Iterator<Item = (i64, i64)> + use<> {
        let own = i64::from(self.itself);
        (0..vectors).flat_map(move |row| (0..row + own).map(move |column| (row, column)))
    }

    fn count(&self, vectors: i64) -> i64 {
        let others = if self.itself { vectors.saturating_add(1) } else { vectors - 1 };
        vectors.saturating_mul(others) / 2
    }
}

/// How many vectors the inputs have together, and how long each is.
fn vectors_of(inputs: &[Signal]) -> Result<(i64, i64), Refusal> {
    const EXPECTS: &str =
        "a dense vector [d] first, and behind it vectors [d] or lists of vectors [n, d] of the same length";
    let refused = || Refusal::new(EXPECTS, "end the modules that it takes in vectors of one length");
    let shapes = join::floats(inputs)?;
    let [length] = *shapes[0] else { return Err(refused()) };
    let count = |shape: &&[i64]| match **shape {
        [own] if own == length => Some(1),
        [count, own] if own == length => Some(count),
        _ => None,
    };
    let counts: Option<Vec<i64>> = shapes.iter().map(count).collect();
    let all = counts.ok_or_else(refused)?.into_iter().fold(0, i64::saturating_add);
    Ok((all, length))
}

impl Join for DotInteraction {
    fn joined(&self, inputs: &[Signal]) -> Output {
        let (vectors, length) = vectors_of(inputs)?;
        Ok(Signal::floats([length.saturating_add(self.count(vectors))]))
    }

    fn joined_macs(&self, inputs: &[Signal]) -> u64 {
        let (vectors, length) = vectors_of(inputs).unwrap_or_default();
        vectors.saturating_mul(vectors).saturating_mul(length).unsigned_abs()
    }
}

impl DotInteraction {
    fn join(&self, inputs: &[&Tensor]) -> Result<Tensor, TchError> {
        if is_for_one_thread(inputs) {
            let dots = vectors::pair_dots(inputs, self.itself);
            return dots.map_err(|error| TchError::Torch(error.message));
        }
        let lists = inputs.iter().map(|input| match input.dim() {
            2 => input.f_unsqueeze(1),
            _ => Ok(input.shallow_clone()),
        });
        let all = Tensor::f_cat(&lists.collect::<Result<Vec<_>, _>>()?, 1)?;
        let vectors = all.size()[1];
        let dots = all.f_bmm(&all.f_transpose(1, 2)?)?.f_flatten(1, 2)?;
        let places: Vec<i64> = self.pairs(vectors).map(|(row, column)| row * vectors + column).collect();
        let places = Tensor::f_from_slice(&places)?.f_to(all.device())?;
        Tensor::f_cat(&[inputs[0], &dots.f_index_select(1, &places)?], 1)
    }

    fn in_python(&self) -> Python {
        Python::own(INTERACTION).named("itself", self.itself, false)
    }
}

/// Is one pass over the vectors, by one thread, faster than libtorch's operations? Their backward is a long way round.
fn is_for_one_thread(inputs: &[&Tensor]) -> bool {
    let plain = |input: &&Tensor| input.device() == Device::Cpu && input.kind() == Kind::Float;
    let numbers: u64 = inputs.iter().map(|input| input.numel() as u64).sum();
    let of_vectors = inputs.first().map_or(0, |first| first.numel() as u64).max(1);
    inputs.iter().all(plain) && numbers * (numbers / of_vectors) <= vectors::FEW_PRODUCTS
}
