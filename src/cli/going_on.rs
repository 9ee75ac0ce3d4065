//! The command line that goes on with a run.

use std::ffi::OsString;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::exit::{DONE, Failure};
use super::stderr;
use crate::job::{Job, Place};
use crate::runner::checkpoint;

/// What another attempt is told anew, with the number of values of each.
const TOLD: [(&str, usize); 6] = [
    ("--resume", 1),
    ("--restarts", 1),
    ("--attempt", 1),
    ("--run-dir", 1),
    ("--overwrite", 0),
    // What it says is in force already, and is nobody's who goes on later.
    ("--with-parent", 1),
];

/// This process's arguments but for what another attempt is told anew.
pub fn arguments() -> Vec<OsString> {
    without(std::env::args_os().skip(1), &TOLD)
}

/// The same, which go on from where they were told to.
pub fn arguments_with_resume() -> Vec<OsString> {
    without(std::env::args_os().skip(1), &TOLD[1..])
}

/// Was this process told where to go on from?
pub fn resumes() -> bool {
    arguments_with_resume().len() > arguments().len()
}

/// What to say of a run that has not come to its end: its last checkpoint, and how to go on from it.
pub fn line(job: &Job, run: &Path) -> Option<String> {
    let training = job.training().filter(|training| training.checkpoint.is_some())?;
    let within = checkpoint::within(training, run);
    let last = match last_in_time(within) {
        Ok(Some(last)) => format!("its last checkpoint is `{}`", shown(last)),
        Ok(None) => return Some("no checkpoint was saved".into()),
        Err(error) => format!("whether there is a checkpoint is not known: {error:#}"),
    };
    let program = std::env::args_os().next().unwrap_or_else(|| "pstrain".into());
    let resume = [OsString::from("--resume"), run.into()];
    let given: Vec<_> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let restarts = match restarts(&given) {
        0 => Vec::new(),
        count => vec!["--restarts".into(), count.to_string().into()],
    };
    let words = [program].into_iter().chain(arguments()).chain(restarts).chain(resume);
    let command = words.map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ");
    Some(format!("{last}\n  to go on from it: {command}"))
}

/// Nobody waits for long at the end of a run, whatever a store does.
fn last_in_time(within: Place) -> Result<Option<Place>> {
    const LIMIT: Duration = Duration::from_secs(5);
    let (give, found) = mpsc::channel();
    let look = move || drop(give.send(checkpoint::last(&within)));
    thread::Builder::new().name("last checkpoint".into()).spawn(look).context("no thread to look on")?;
    found.recv_timeout(LIMIT).unwrap_or_else(|_| bail!("nothing has answered within {LIMIT:?}"))
}

/// How many restarts the first attempt was given: each of the later ones has taken one.
fn restarts(args: &[String]) -> u64 {
    let number = |name: &str| {
        let at = args.iter().position(|arg| arg.split('=').next() == Some(name))?;
        let value = args[at].split_once('=').map(|(_, value)| value).or_else(|| Some(args.get(at + 1)?))?;
        value.parse::<u64>().ok()
    };
    number("--restarts").unwrap_or(0) + number("--attempt").map_or(0, |attempt| attempt.saturating_sub(1))
}

/// As the run folder is named.
fn shown(place: Place) -> Place {
    let here = std::env::current_dir().unwrap_or_default();
    match place.folder().and_then(|path| path.strip_prefix(here).ok()) {
        Some(short) => Place::Folder(short.into()),
        None => place,
    }
}

/// Says it, where a run has ended early.
pub fn say(code: u8, job: &Job, run: &Path) {
    if let Some(line) = line(job, run).filter(|_| code != DONE) {
        stderr::line(line);
    }
}

/// A failure that says it, too.
pub fn with_line(failure: Failure, job: &Job, run: Option<&Path>) -> Failure {
    let Some(line) = run.and_then(|run| line(job, run)) else { return failure };
    let message = failure.message.iter().map(|message| message.trim_end()).chain([line.as_str()]);
    Failure { message: Some(message.collect::<Vec<_>>().join("\n")), ..failure }
}

/// As a shell reads it as one word.
pub fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./=:,@%+".contains(&byte);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

/// Arguments but for these options.
fn without(args: impl Iterator<Item = OsString>, options: &[(&str, usize)]) -> Vec<OsString> {
    let (mut kept, mut skipped) = (Vec::new(), 0);
    for arg in args {
        if skipped > 0 {
            skipped -= 1;
            continue;
        }
        let text = arg.to_string_lossy();
        let option = options.iter().find(|(name, _)| {
            text == *name || text.strip_prefix(name).is_some_and(|rest| rest.starts_with('='))
        });
        match option {
            Some((name, values)) => skipped = if text == *name { *values } else { 0 },
            None => kept.push(arg),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_anew_is_left_out() {
        let args =
            ["spawn", "job.toml", "--run-dir", "a", "--set", "x=1", "--restarts=3", "--overwrite", "--json"];
        let kept = without(args.into_iter().map(OsString::from), &TOLD);
        assert_eq!(kept, ["spawn", "job.toml", "--set", "x=1", "--json"]);
    }

    #[test]
    fn restarts_are_counted_from_the_first_attempt() {
        let counted = |args: &[&str]| restarts(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>());
        assert_eq!(counted(&["spawn", "job.toml", "--set", "x=1"]), 0);
        assert_eq!(counted(&["spawn", "--restarts=3", "--json"]), 3);
        assert_eq!(counted(&["spawn", "--json", "--restarts", "1", "--attempt", "3"]), 3);
    }

    #[test]
    fn a_shell_reads_each_word_as_one() {
        let words = ["--set", "train.epochs=3", "optimizer.betas=[0.9, 0.99]", "it's", ""].map(quoted);
        assert_eq!(words.join(" "), r"--set train.epochs=3 'optimizer.betas=[0.9, 0.99]' 'it'\''s' ''");
    }
}
