//! A component of TorchX: a function in Python that gives an `AppDef`.

use std::ffi::OsStr;
use std::fmt::Write as _;

use super::args::TorchxArgs;
use super::planned::{Planned, head};
use super::{submit, words};
use crate::cli::exit::{DONE, Failure};
use crate::cli::stdout;

const PORT: u16 = 29_500;
/// The function's name, behind the file's.
const FUNCTION: &str = "pstrain";

pub fn launch(args: &TorchxArgs) -> Result<u8, Failure> {
    let planned = Planned::new(&args.common, (args.nodes, &format!("--nodes {}", args.nodes)))?;
    planned.look_at_inputs();
    let component = component(args, &planned)?;
    if !args.common.submit {
        stdout::as_it_is(component.trim_end())?;
        return Ok(DONE);
    }
    let failed = |error: std::io::Error| Failure::from(anyhow::anyhow!("the component's file: {error}"));
    let folder = tempfile::tempdir().map_err(failed)?;
    let file = folder.path().join("component.py");
    std::fs::write(&file, &component).map_err(failed)?;
    let named = format!("{}:{FUNCTION}", file.display());
    let scheduler = words::plain("--scheduler", &args.scheduler)?;
    submit::run("torchx", &["run", "-s", scheduler, &named].map(OsStr::new))
}

/// A string of Python. What JSON escapes Python reads alike.
fn python(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn component(args: &TorchxArgs, planned: &Planned) -> Result<String, Failure> {
    let name = planned.name.clone().unwrap_or_else(|| words::as_label(&planned.job.name, 48));
    let name = words::label("--name", &name, 48)?;
    // An image has a program of its own; without one this machine's is meant.
    let program = match args.image.is_empty() {
        true => planned.program_here(),
        false => planned.program.clone().unwrap_or_else(|| "pstrain".into()),
    };
    let run = planned.run(&program, &planned.path.to_string_lossy());
    // A shell reads the line, and TorchX' macros before it: dollars are doubled for these, but for the macros themselves.
    let line = words::line(run).replace('$', "$$");
    let run_dir = match &planned.run_dir {
        Some(folder) => python(&words::line([folder.to_string_lossy()]).replace('$', "$$")),
        None => "f\"runs/{specs.macros.app_id}\"".into(),
    };
    let port = planned.port.unwrap_or(PORT);
    let mut env = String::new();
    for (variable, value) in &planned.env {
        let _ = writeln!(env, "            {}: {},", python(variable), python(&value.replace('$', "$$")));
    }
    Ok(format!(
        r#"{head}# On several machines the ranks need the same PSTRAIN_TOKEN (`pstrain token` prints one) in their environment: give it by the
# secrets of your scheduler, not here, where `torchx run --dryrun` would show it.
#   torchx run -s local_cwd FILE:{FUNCTION}

import torchx.specs as specs

# TorchX tells where replica 0 runs by a variable, whose name it gives here.
MASTER = f"$${{{{{{specs.macros.rank0_env}}:=localhost}}}}"
RUN_DIR = {run_dir}
COMMAND = f"export MASTER_ADDR={{MASTER}}; exec " + {line} + f" --run-dir {{RUN_DIR}} --resume auto"


def {FUNCTION}(image: str = {image}, port: int = {port}) -> specs.AppDef:
    """Trains the job, one rank a replica.

    Args:
        image: an image with pstrain and libtorch, for schedulers that run images
        port: the port that rank 0 listens on
    """
    rank = specs.Role(
        name="rank",
        image=image,
        entrypoint="sh",
        args=["-c", COMMAND],
        env={{
            "RANK": specs.macros.replica_id,
            "WORLD_SIZE": "{world}",
            "MASTER_PORT": str(port),
{env}        }},
        num_replicas={world},
        # What a rank has lost others have lost, too: they begin again together, from the last checkpoint.
        max_retries={restarts},
        retry_policy=specs.RetryPolicy.APPLICATION,
        resource=specs.Resource(cpu={cpus}, gpu={gpus}, memMB={mem}),
        port_map={{"master": port}},
    )
    return specs.AppDef(name={name}, roles=[rank])
"#,
        head = head(planned, "Written by `pstrain launch torchx`; a replica is a rank."),
        line = python(&line),
        image = python(&args.image),
        world = planned.world_size,
        restarts = args.restarts,
        cpus = args.cpus,
        gpus = planned.gpus(),
        mem = args.mem_mb,
        name = python(name),
    ))
}
