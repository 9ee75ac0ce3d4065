//! Libtorch and what comes with it, looked at by a process of its own: in this one it may not load.

use std::process::Command;
use std::time::Duration;

use c10d::{Backend, cuda};
use serde::{Deserialize, Serialize};
use wasm_toolchain::child::output_within;

use super::{Finding, State};
use crate::cli::exit::{DONE, Failure};
use crate::cli::stdout;
use crate::human::counted;
use crate::runner::libtorch;

const LIBTORCH: &str = "libtorch";
/// A driver of a GPU may hang.
const LIMIT: Duration = Duration::from_secs(30);

/// What a process with libtorch finds.
#[derive(Debug, Serialize, Deserialize)]
struct Inside {
    libtorch: String,
    threads: i32,
    /// GPUs, or why there is no CUDA.
    cuda: Result<i64, String>,
    nccl: Result<(), String>,
    mpi: Result<(), String>,
}

pub fn findings() -> Vec<Finding> {
    match inside() {
        Ok(inside) => inside.findings(),
        Err(said) => vec![Finding::of_error(LIBTORCH, State::Wrong, said)],
    }
}

/// What another process of this program says, or the error that it ends with.
fn inside() -> Result<Inside, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut inside = Command::new(program);
    inside.args(["doctor", "--inside"]);
    let output = output_within(inside, LIMIT).map_err(|error| error.to_string())?;
    let output = output.ok_or_else(|| {
        format!(
            "a process with it did not say within {LIMIT:?} what is there\n  \
             hint: does `nvidia-smi` answer? CUDA_VISIBLE_DEVICES=\"\" leaves GPUs alone"
        )
    })?;
    if output.status.success()
        && let Ok(inside) = serde_json::from_slice(&output.stdout)
    {
        return Ok(inside);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim().strip_prefix("error: ").unwrap_or(said.trim()).to_owned();
    Err(if said.is_empty() { format!("did not load: {}", output.status) } else { said })
}

/// Prints what is to be found with libtorch, for the process that has started this one.
pub fn look_inside() -> Result<u8, Failure> {
    libtorch::ensure().map_err(Failure::usage)?;
    let folder = libtorch::loaded_from().unwrap_or_default();
    let cuda = cuda::load().map_err(|error| error.to_string()).map(|()| tch::Cuda::device_count());
    let available = |backend: Backend| backend.available().map_err(|error| error.to_string());
    let inside = Inside {
        libtorch: format!("{} in {}", libtorch::VERSION, folder.display()),
        threads: tch::get_num_threads(),
        nccl: if matches!(cuda, Ok(1..)) { available(Backend::Nccl) } else { Err("no GPU".into()) },
        mpi: available(Backend::Mpi),
        cuda,
    };
    stdout::result(&inside, "", true)?;
    Ok(DONE)
}

impl Inside {
    fn findings(self) -> Vec<Finding> {
        let Inside { libtorch, threads, cuda, nccl, mpi } = self;
        let threads = counted(threads.unsigned_abs().into(), "thread");
        let has_gpu = matches!(cuda, Ok(1..));
        let cuda = match cuda {
            Ok(gpus @ 1..) => Finding::fine("CUDA", counted(gpus.unsigned_abs(), "GPU")),
            Ok(_) => Finding::missing(
                "CUDA",
                "libtorch has it, and there is no GPU that it can use",
                "`nvidia-smi` tells whether the driver sees one; CUDA_VISIBLE_DEVICES may hide it",
            ),
            Err(why) => Finding::missing(
                "CUDA",
                why,
                format!(
                    "`python3 -m pip install torch=={}` brings it; without a GPU nothing wants it",
                    libtorch::VERSION
                ),
            ),
        };
        let mut findings = vec![Finding::fine(LIBTORCH, format!("{libtorch}, {threads}")), cuda];
        findings.extend(has_gpu.then(|| backend("NCCL", nccl)));
        findings.push(backend("MPI", mpi));
        findings
    }
}

fn backend(what: &'static str, found: Result<(), String>) -> Finding {
    match found {
        Ok(()) => Finding::fine(what, "there"),
        Err(why) => Finding::of_error(what, State::Missing, why),
    }
}
