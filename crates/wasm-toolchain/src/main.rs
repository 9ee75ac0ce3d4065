//! For the scripts that build the shipped plug-ins:
//!
//! - `wasm-toolchain setup` makes a toolchain available, from Debian's packages where there is none and apt-get is;
//!   quick and quiet when there is one.
//! - `wasm-toolchain cargo ARGUMENTS` is `cargo build` for WebAssembly with it.
//! - `wasm-toolchain clean PROGRAM ARGUMENTS` runs a program without what an outer cargo left in the environment.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use wasm_toolchain::{NoToolchain, Toolchain, child};

const USAGE: &str = "usage: wasm-toolchain setup | cargo ARGUMENTS | clean PROGRAM ARGUMENTS";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["setup"] => set_up().map_err(|error| error.to_string()),
        ["cargo", ref rest @ ..] => build(rest),
        ["clean", program, ref rest @ ..] => Err(become_program(child::clean(program), rest)),
        _ => Err(USAGE.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("wasm-toolchain: error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn build(arguments: &[&str]) -> Result<(), String> {
    let here = Path::new(".");
    let toolchain = Toolchain::find(here).map_err(|error| error.to_string())?;
    eprintln!("wasm-toolchain: {}", toolchain.describe(here));
    Err(become_program(toolchain.cargo(here), arguments))
}

/// Returns only if the program could not be started: what kept it from that.
fn become_program(mut command: Command, arguments: &[&str]) -> String {
    let error = command.args(arguments).exec();
    format!("cannot start `{}`: {error}", command.get_program().to_string_lossy())
}

fn set_up() -> Result<(), NoToolchain> {
    let error = match Toolchain::find(Path::new(".")) {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    if error.packages.is_empty() || !install(&error.packages) {
        return Err(error);
    }
    Toolchain::find(Path::new(".")).map(drop)
}

/// By apt-get, as root or through sudo. Its messages go to stderr.
fn install(packages: &[&str]) -> bool {
    eprintln!("wasm-toolchain: installing {}", packages.join(" "));
    let is_root = nix::unistd::Uid::effective().is_root();
    let apt_get = |arguments: &[&str]| {
        let mut command = Command::new(if is_root { "env" } else { "sudo" });
        command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]).args(arguments);
        let status = command.stdin(Stdio::null()).stdout(std::io::stderr()).status();
        status.is_ok_and(|status| status.success())
    };
    apt_get(&["update"]) && apt_get(&[&["install", "-y"][..], packages].concat())
}
