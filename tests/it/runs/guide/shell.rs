//! Runs a chapter in a fresh folder, as somebody who copies it into a shell.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::chapter::{self, Block, Content, Needs};
use super::output;
use crate::program::{self, LIMIT};
use crate::support::later;

/// Those that chapters name, in whose place free ones are used: chapters run side by side.
const PORTS: [&str; 2] = ["29500", "6006"];

/// What else there is for a chapter, beside the program and what each machine has.
pub struct Have {
    /// As in `<!-- needs: torch -->`.
    pub what: &'static str,
    /// The folder of its programs, before all others.
    pub programs: Option<PathBuf>,
}

/// Runs the chapter, but for the blocks that need what there is not.
#[track_caller]
pub fn run(name: &str, have: Option<Have>) {
    let path = root().join("docs/guide").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let free = PORTS.map(|port| (port, program::free_port().to_string()));
    let text = free.iter().fold(text, |text, (port, free)| text.replace(port, free));
    let blocks = chapter::read(&text).unwrap_or_else(|error| panic!("docs/guide/{name}: {error}"));
    let has = |needs: &Needs| have.as_ref().is_some_and(|have| have.what == needs.what);

    let (folder, notes) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    let mut script = Script { notes: notes.path(), text: String::new(), files: 0 };
    for block in &blocks {
        match (&block.needs, &block.content) {
            (Some(needs @ Needs { or, .. }), _) if !has(needs) => {
                if let Some((file, from)) = or {
                    script.copy(&root().join(from), file);
                }
            }
            (_, Content::File { path, text }) => script.file(path, text),
            (_, Content::Console(commands)) => commands.iter().for_each(|command| script.command(command)),
        }
    }
    let in_time = script.run(folder.path(), have.as_ref());
    let done = |block: &&Block| block.needs.as_ref().is_none_or(has);
    for block in blocks.iter().filter(done) {
        let Content::Console(commands) = &block.content else { continue };
        for command in commands {
            let note = |kind: &str| fs::read_to_string(notes.path().join(format!("{}.{kind}", command.line)));
            let (said, code) = (note("said").unwrap_or_default(), note("code"));
            let at = format!("docs/guide/{name}:{}: `{}`", command.line, command.text);
            let said_in_all = format!("it said:\n{said}");
            let Ok(code) = code else {
                let limit = if in_time { "was not reached" } else { "did not end in time" };
                panic!("{at} {limit}; {said_in_all}")
            };
            assert!(command.shows_its_code || code == "0\n", "{at} ended with exit code {code}{said_in_all}");
            let expected = command.expected.join("\n");
            assert!(
                output::is_as_expected(&command.expected, &said),
                "{at}\nshould have said:\n{expected}\n\n{said_in_all}"
            );
        }
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A script of bash: all of a chapter in one shell, so that variables, folders and background processes stay.
struct Script<'a> {
    /// Gets what each command says and its exit code, by its line.
    notes: &'a Path,
    text: String,
    files: usize,
}

impl Script<'_> {
    fn file(&mut self, path: &str, text: &str) {
        let kept = self.notes.join(format!("file{}", self.files));
        self.files += 1;
        fs::write(&kept, text).expect("a file");
        self.copy(&kept, path);
    }

    fn copy(&mut self, from: &Path, to: &str) {
        let from = from.display();
        writeln!(self.text, "install -D -m 644 '{from}' '{to}' || exit 1").expect("text");
    }

    fn command(&mut self, command: &chapter::Command) {
        let note = format!("{}/{}", self.notes.display(), command.line);
        let text = &command.text;
        let go_on = if command.shows_its_code { "" } else { "[ $code_ = 0 ] || exit 1\n" };
        // `echo $?` is of the command before.
        let again = "(exit ${code_:-0})";
        write!(
            self.text,
            "exec >'{note}.said' 2>&1\n{again}\n{text}\ncode_=$?\necho $code_ >'{note}.code'\n{go_on}"
        )
        .expect("text");
        if let Some(plugin) = text.strip_prefix("pstrain plugin new ").filter(|rest| rest.contains("rust")) {
            // What the shipped plug-ins have compiled already need not be compiled again.
            let (plugin, shipped) = (plugin.split(' ').next().expect("a name"), root().join("plugins"));
            let shipped = shipped.display();
            writeln!(self.text, "ln -s '{shipped}/target' {plugin}/ && cp '{shipped}/Cargo.lock' {plugin}/")
                .expect("text");
        }
    }

    /// Whether it came to an end, of itself or by a command that failed. Nothing of it is left behind.
    fn run(&self, folder: &Path, have: Option<&Have>) -> bool {
        let file = self.notes.join("script");
        fs::write(&file, &self.text).expect("a file");
        let mut bash = program::clean("bash", folder);
        bash.args(["--norc", "--noprofile"]).arg(file).process_group(0);
        // The program finds libtorch by itself, and Python its own.
        bash.env_remove("LD_LIBRARY_PATH");
        bash.env("PATH", self.path(have)).env("COLUMNS", "100");
        let child = bash.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("bash");
        let group = Pid::from_raw(child.id().cast_signed());
        let ended = later(move || child.wait_with_output());
        let in_time = ended.recv_timeout(LIMIT).is_ok();
        let _ = killpg(group, Signal::SIGKILL);
        in_time
    }

    fn path(&self, have: Option<&Have>) -> std::ffi::OsString {
        let program = Path::new(env!("CARGO_BIN_EXE_pstrain")).parent().expect("a folder").to_owned();
        let before = have.and_then(|have| have.programs.clone()).into_iter().chain([program]);
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        std::env::join_paths(before.chain(std::env::split_paths(&inherited))).expect("folders")
    }
}
