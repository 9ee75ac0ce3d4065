//! What a reducer is made of: its arguments checked, and as C++ takes them.

use std::collections::HashMap;
use std::ffi::CString;

use tch::Tensor;

use super::ffi;
use super::hooks::CommHook;
use super::options::{Hook, ReducerOptions};
use super::power_sgd::PowerSgd;
use crate::{Error, Result, TorchError, engine};

const BYTES_PER_MB: f64 = 1024.0 * 1024.0;

/// What becomes of [`Hook`].
pub enum Foreign {
    None,
    /// A number of c10::ScalarType.
    Cast(i8),
    /// Up to so many bytes.
    Gather(u64),
    Rust(Box<dyn CommHook>),
}

pub fn foreign(hook: Hook) -> Result<Foreign> {
    Ok(match hook {
        Hook::None => Foreign::None,
        Hook::Gather { up_to_bytes } => Foreign::Gather(up_to_bytes),
        Hook::Fp16 => Foreign::Cast(5),
        Hook::Bf16 => Foreign::Cast(15),
        Hook::PowerSgd(options) => Foreign::Rust(Box::new(PowerSgd::new(options)?)),
        Hook::Custom(hook) => Foreign::Rust(hook),
    })
}

pub fn config(options: &ReducerOptions) -> Result<ffi::ReducerConfig> {
    let bytes = |key: &str, megabytes: f64| {
        let bytes = megabytes * BYTES_PER_MB;
        if bytes >= 1.0 && bytes < i64::MAX as f64 {
            return Ok(bytes as i64);
        }
        Err(wrong(format!("{key} must be above 0, it is {megabytes}")))
    };
    Ok(ffi::ReducerConfig {
        bucket_bytes: bytes("bucket_cap_mb", options.bucket_cap_mb)?,
        first_bucket_bytes: bytes("first_bucket_mb", options.first_bucket_mb)?,
        find_unused_parameters: options.find_unused_parameters,
        gradient_as_bucket_view: options.gradient_as_bucket_view,
        static_graph: options.static_graph,
        broadcast_buffers: options.broadcast_buffers,
        rebuild_buckets: options.rebuild_buckets,
    })
}

pub fn names(parameters: &[Tensor], given: &[String]) -> Vec<String> {
    let name = |i: usize| given.get(i).cloned().unwrap_or_else(|| format!("#{i}"));
    (0..parameters.len()).map(name).collect()
}

pub fn check(parameters: &[Tensor], buffers: &[Tensor], names: &[String]) -> Result<()> {
    defined(parameters)?;
    defined(buffers)?;
    if parameters.is_empty() {
        return Err(wrong("there is no parameter to average the gradient of".into()));
    }
    for (i, (parameter, name)) in parameters.iter().zip(names).enumerate() {
        if !parameter.is_leaf() || !parameter.requires_grad() {
            let fault = if parameter.is_leaf() { "does not require grad" } else { "is not a leaf" };
            return Err(wrong(format!("parameter {i} (`{name}`) {fault}")));
        }
        if parameter.device() != parameters[0].device() {
            let (here, there) = (parameter.device(), parameters[0].device());
            return Err(wrong(format!("parameter {i} (`{name}`) is on {here:?}, parameter 0 on {there:?}")));
        }
    }
    // A leaf is known by the node that collects its gradient, as long as a mark keeps that.
    let marks = parameters.iter().map(engine::mark).collect::<Result<Vec<_>, _>>()?;
    let mut places = HashMap::new();
    for (i, mark) in marks.iter().enumerate() {
        if let Some(first) = places.insert(engine::place(mark)?, i) {
            return Err(wrong(format!("parameters {first} and {i} (`{}`) are the same tensor", names[i])));
        }
    }
    Ok(())
}

pub fn paired(outputs: &[Tensor], grad_outputs: &[Tensor]) -> Result<()> {
    defined(outputs)?;
    defined(grad_outputs)?;
    if outputs.len() == grad_outputs.len() {
        return Ok(());
    }
    Err(wrong(format!("{} outputs but {} gradients for them", outputs.len(), grad_outputs.len())))
}

pub fn defined(tensors: &[Tensor]) -> Result<()> {
    match tensors.iter().position(|tensor| !tensor.defined()) {
        None => Ok(()),
        Some(i) => Err(wrong(format!("tensor {i} is undefined"))),
    }
}

fn wrong(message: String) -> Error {
    TorchError { message }.into()
}

pub fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}
