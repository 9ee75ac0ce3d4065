//! A script for Slurm's sbatch.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::args::SlurmArgs;
use super::planned::{Planned, head};
use super::{submit, words};
use crate::cli::exit::{DONE, Failure};
use crate::cli::stdout;
use crate::human::counted;

/// What is added to the time that saving takes, in seconds: Slurm looks at limits twice a minute.
const MARGIN_S: u64 = 60;

pub fn launch(args: &SlurmArgs) -> Result<u8, Failure> {
    let SlurmArgs { nodes, ranks_per_node, .. } = *args;
    let world = nodes.saturating_mul(ranks_per_node);
    let planned =
        Planned::new(&args.common, (world, &format!("--nodes {nodes} --ranks-per-node {ranks_per_node}")))?;
    planned.look_at_inputs();
    let folder = std::env::current_dir()
        .map_err(|error| Failure::usage(format_args!("the current folder is not known: {error}")))?;
    let script = script(args, &planned, &folder)?;
    if args.common.submit {
        return submit::piped("sbatch", &[], &script);
    }
    stdout::as_it_is(script.trim_end())?;
    Ok(DONE)
}

/// What becomes of Slurm's warning.
const WARNED: &str = r#"# Slurm tells this shell alone that time is running out; the ranks are told by SIGTERM, on which they save and end. Not by way of
# srun: it takes that for the end of all.
time_is_up=
trap 'time_is_up=1; scancel --signal=TERM "$SLURM_JOB_ID"' USR1
"#;

/// The lines for sbatch itself.
fn directives(args: &SlurmArgs, planned: &Planned, folder: &Path) -> Result<Vec<String>, Failure> {
    let name = planned.name.as_deref().unwrap_or(&planned.job.name);
    let name = words::plain("--name", name)?;
    let SlurmArgs { nodes, ranks_per_node, .. } = args;
    let output = args.output.clone().unwrap_or_else(|| format!("{name}-%j.log"));
    let folder = folder.to_string_lossy();
    let mut lines = vec![
        format!("--job-name={name}"),
        format!("--nodes={nodes}"),
        format!("--ntasks-per-node={ranks_per_node}"),
        format!("--chdir={}", words::plain("the current folder", &folder)?),
        format!("--output={}", words::plain("--output", &output)?),
        // What it wrote before it was queued again stays.
        "--open-mode=append".into(),
        "--requeue".into(),
    ];
    let given = [
        ("--partition", &args.partition),
        ("--account", &args.account),
        ("--qos", &args.qos),
        ("--mem", &args.mem),
        ("--time", &args.time),
    ];
    for (option, value) in given {
        if let Some(value) = value {
            lines.push(format!("{option}={}", words::plain(option, value)?));
        }
    }
    lines.extend(args.cpus_per_rank.map(|cores| format!("--cpus-per-task={cores}")));
    if planned.gpus() > 0 {
        // Of the node and not of the task: a rank sees them all and takes its own by its number there.
        lines.push(format!("--gpus-per-node={}", planned.gpus() * ranks_per_node));
    }
    if let Some(before) = save_before(args, planned)? {
        lines.push(format!("--signal=B:USR1@{before}"));
    }
    for option in &args.sbatch {
        lines.push(words::plain("--sbatch", option)?.into());
    }
    Ok(lines)
}

/// How long before the time limit the ranks are told to save, in seconds. None: there is nothing to save.
fn save_before(args: &SlurmArgs, planned: &Planned) -> Result<Option<u64>, Failure> {
    let limit = args.time.as_deref().map(|time| {
        seconds(time).ok_or_else(|| {
            Failure::usage(format_args!(
                "--time {time}: that is not a time of Slurm's\n  hint: write it as 90 (minutes), 1:30:00 or 2-12:00:00"
            ))
        })
    });
    let limit = limit.transpose()?;
    let before = match (planned.saves(), args.save_before) {
        (true, given) => given.unwrap_or(planned.ends_within().as_secs() + MARGIN_S),
        (false, None) => return Ok(None),
        (false, Some(_)) => {
            return Err(Failure::usage(format_args!(
                "--save-before: the job saves no checkpoints\n  hint: give `{}` a section [checkpoint], or leave the option out",
                planned.path.display()
            )));
        }
    };
    match limit {
        Some(limit) if limit <= before => Err(Failure::usage(format_args!(
            "--time is {limit} s, and the ranks are told to save {before} s before it ends\n  \
             hint: use a longer time, or a shorter --save-before"
        ))),
        _ => Ok(Some(before)),
    }
}

/// A time as sbatch reads it, in seconds: `M`, `M:S`, `H:M:S`, `D-H`, `D-H:M`, `D-H:M:S`.
fn seconds(time: &str) -> Option<u64> {
    let number = |text: &str| match text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        true => None,
        false => text.parse::<u64>().ok(),
    };
    let numbers = |text: &str| text.split(':').map(number).collect::<Option<Vec<u64>>>();
    let (days, hours, minutes, seconds) = match time.split_once('-') {
        Some((days, rest)) => match numbers(rest)?[..] {
            [hours] => (number(days)?, hours, 0, 0),
            [hours, minutes] => (number(days)?, hours, minutes, 0),
            [hours, minutes, seconds] => (number(days)?, hours, minutes, seconds),
            _ => return None,
        },
        None => match numbers(time)?[..] {
            [minutes] => (0, 0, minutes, 0),
            [minutes, seconds] => (0, 0, minutes, seconds),
            [hours, minutes, seconds] => (0, hours, minutes, seconds),
            _ => return None,
        },
    };
    let hours = days.checked_mul(24)?.checked_add(hours)?;
    hours.checked_mul(60)?.checked_add(minutes)?.checked_mul(60)?.checked_add(seconds)
}

/// The script as a whole.
fn script(args: &SlurmArgs, planned: &Planned, folder: &Path) -> Result<String, Failure> {
    let mut script = String::from("#!/bin/bash\n");
    for directive in directives(args, planned, folder)? {
        let _ = writeln!(script, "#SBATCH {directive}");
    }
    let what = format!(
        "{} on {}, written by `pstrain launch slurm`.",
        counted(u64::from(args.ranks_per_node), "rank"),
        if args.nodes == 1 { "one node".into() } else { format!("each of {} nodes", args.nodes) }
    );
    let program = planned.program_here();
    let _ = write!(script, "\n{}", head(planned, &what));
    script.push_str("\nset -u\n");
    for (name, value) in &planned.env {
        let _ = writeln!(script, "export {name}={}", words::line([value]));
    }
    let port = planned.port.map_or("$((20000 + SLURM_JOB_ID % 10000))".into(), |port| port.to_string());
    let run_dir: Option<PathBuf> = planned.run_dir.clone();
    let run_dir = match run_dir {
        Some(folder) => words::line([folder.to_string_lossy()]),
        // The number stays when the job is queued again, and is another for the next one.
        None => format!("runs/{}-\"$SLURM_JOB_ID\"", words::line([&planned.job.name])),
    };
    let run = words::line(planned.run(&program, &planned.path.to_string_lossy()));
    let _ = write!(
        script,
        r#"
# A secret that the ranks share; in the environment alone, which srun passes on.
export PSTRAIN_TOKEN=${{PSTRAIN_TOKEN:-$({program} token)}}
# Rank 0 is on the first host of the step. A job that is queued again may get others.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT={port}

{warned}# When the job is cancelled or queued again, the ranks have heard of it themselves: this shell only waits for them.
trap : TERM

srun --kill-on-bad-exit=0 {run} \
  --run-dir {run_dir} --resume auto &
step=$!
# A signal ends `wait` before the step has ended.
while kill -0 "$step" 2>/dev/null; do wait "$step"; done
wait "$step"
code=$?
"#,
        warned = if planned.saves() { WARNED } else { "" },
        program = words::line([&program])
    );
    let again = "scontrol requeue \"$SLURM_JOB_ID\"";
    if planned.saves() {
        let _ = write!(
            script,
            "\n# What was saved when time ran out goes on in another allocation.\n\
             if [ -n \"$time_is_up\" ]; then\n  \
             # 1 and 2: it would fail again.\n  \
             case $code in 0|1|2) ;; *) {again} ;; esac\nfi\n"
        );
    }
    if args.restarts > 0 {
        let not_yet = if planned.saves() { "[ -z \"$time_is_up\" ] && " } else { "" };
        let _ = write!(
            script,
            "\n# 3: a rank was lost. So often it is worth another try.\n\
             if {not_yet}[ \"$code\" -eq 3 ] && [ \"${{SLURM_RESTART_COUNT:-0}}\" -lt {} ]; then\n  {again}\nfi\n",
            args.restarts
        );
    }
    script.push_str("exit \"$code\"\n");
    Ok(script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_sbatch_reads_them() {
        let times = ["90", "1:30", "1:30:00", "2-12", "2-12:30", "2-12:30:05", "0"];
        let read = times.map(|time| seconds(time).expect("a time"));
        assert_eq!(read, [5400, 90, 5400, 216_000, 217_800, 217_805, 0]);
        for wrong in ["", "1h", "1:2:3:4", "-1", "1-", "1-2:3:4:5", "99999999999999999999", "1:", "+5"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }
}
