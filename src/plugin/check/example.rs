//! Inputs to try a loss or a metric with.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use tch::{Kind, Tensor};

use super::{Request, Sketch};
use crate::plugin::dtype::is_floating;
use crate::plugin::error::{PluginError, PluginErrorKind};

/// Outputs of a model, and targets.
pub struct Example {
    pub outputs: Vec<Tensor>,
    pub targets: Vec<Tensor>,
}

/// The shapes that were asked for, or the first usual ones that the plug-in takes.
pub fn fitting(
    request: &Request,
    mut takes: impl FnMut(&Example) -> Result<(), PluginError>,
) -> Result<(Vec<Sketch>, Vec<Sketch>), PluginError> {
    if !request.outputs.is_empty() {
        return Ok((request.outputs.clone(), request.targets.clone()));
    }
    let float = |shape: &[i64]| Sketch::new(Kind::Float, shape);
    let usual = [
        (float(&[8, 10]), Sketch::new(Kind::Int64, &[8])),
        (float(&[8, 10]), float(&[8, 10])),
        (float(&[8]), float(&[8])),
        (float(&[8, 1]), float(&[8, 1])),
        (float(&[8, 1]), float(&[8])),
        (float(&[2, 4, 6, 6]), Sketch::new(Kind::Int64, &[2, 6, 6])),
        (float(&[2, 1, 6, 6]), float(&[2, 1, 6, 6])),
    ];
    // An error that it returned may well be about the shapes; any other kind says more.
    let says_more = |kind| !matches!(kind, PluginErrorKind::Failed | PluginErrorKind::BadOperation);
    let mut told: Option<(PluginError, String)> = None;
    for (output, target) in usual {
        let given = format!("{output} and {target}");
        let sketches = (vec![output], vec![target]);
        let example = Example::random(&sketches.0, &sketches.1, None);
        let Err(error) = takes(&example) else {
            return Ok(sketches);
        };
        if told.as_ref().is_none_or(|(told, _)| says_more(error.kind) && !says_more(told.kind)) {
            told = Some((error, given));
        }
    }
    let (mut error, given) = told.expect("there are usual shapes");
    error.message = format!("given {given}: {}", error.message);
    if !says_more(error.kind) {
        let hint = "none of the usual shapes went well; say what it takes by --outputs and --targets";
        error.hint = Some(hint.into());
    }
    Err(error)
}

impl Example {
    /// The same numbers at each call. `kind` takes the place of every floating-point dtype.
    pub fn random(outputs: &[Sketch], targets: &[Sketch], kind: Option<Kind>) -> Example {
        let mut random = ChaCha8Rng::seed_from_u64(0);
        let cast = |tensor: Tensor| match kind {
            Some(kind) if is_floating(tensor.kind()) => tensor.to_kind(kind),
            _ => tensor,
        };
        // Scores of classes: the second dimension, or yes and no.
        let classes = outputs.first().and_then(|output| output.shape.get(1)).map_or(2, |&c| c.max(2));
        Example {
            outputs: outputs.iter().map(|sketch| cast(sketch.output(&mut random))).collect(),
            targets: targets.iter().map(|sketch| cast(sketch.target(classes, &mut random))).collect(),
        }
    }
}
