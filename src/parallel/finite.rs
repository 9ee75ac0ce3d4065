//! Gradients that are not finite numbers, found where they are at hand: at the owner of a hosted module or of rows, of
//! replicas and of what is pulled at the trainer, behind the average. What has any is not applied; the trainer whose step it
//! was is told, and does what its job says (`train.on_nan`).
//!
//! - `FI-1` A step's gradients in one owner's hands are applied as a whole or not at all.

use anyhow::Result;
use c10d::finite::{NotFinite, not_finite, not_finite_numbers};
use c10d::torch_message;
use tch::Tensor;

/// The first of a module's gradients that is not finite, in words.
///
/// # Errors
/// What libtorch refuses.
pub(super) fn wrong_gradient<'a>(
    module: &str,
    gradients: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> Result<Option<String>> {
    for (parameter, gradient) in gradients {
        let found = not_finite(gradient).map_err(|error| anyhow::anyhow!("{}", torch_message(&error)))?;
        if let Some(what) = found {
            return Ok(Some(named(module, parameter, what)));
        }
    }
    Ok(None)
}

/// As [`wrong_gradient`], of rows of a table.
pub(super) fn wrong_rows(module: &str, parameter: &str, rows: &[f32]) -> Option<String> {
    not_finite_numbers(rows).map(|what| named(module, parameter, what))
}

fn named(module: &str, parameter: &str, what: NotFinite) -> String {
    format!("module `{module}`: the gradient of parameter `{parameter}` is {what}")
}
