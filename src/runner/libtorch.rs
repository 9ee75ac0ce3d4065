//! Finds libtorch and starts the program again with it, since the binary itself names no libtorch library
//! (`build/libtorch.rs` says how it is linked). So `--help` and `check` need none, and one binary uses
//! whichever libtorch a machine has.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::IntoRawFd as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io, process};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use sha2::{Digest as _, Sha256};
use wasm_toolchain::child::{ANSWER_LIMIT, output_within};

use crate::human::hex;
use crate::{cache, files};

/// The version that `tch` is made for; another one has other symbols.
pub const VERSION: &str = "2.11.0";

/// Calls libtorch for us; loaded after it.
const SHIM: &[u8] = include_bytes!(env!("C10D_SHIM"));

/// Names a folder with `libtorch_cpu.so` in it or in its `lib`, looked at instead of all others.
const FOLDER_KEY: &str = "PSTRAIN_LIBTORCH";
const LIBRARY: &str = "libtorch_cpu.so";
/// The process that was started again, which keeps its number.
const RESTARTED_KEY: &str = "PSTRAIN_RESTARTED";
const PRELOAD_KEY: &str = "LD_PRELOAD";
const WAITING_KEY: &str = "OMP_WAIT_POLICY";
const SPINS_KEY: &str = "GOMP_SPINCOUNT";
/// About a millisecond.
const SPINS: &str = "20000";

#[derive(Debug, thiserror::Error)]
pub enum NoLibtorch {
    #[error(
        "libtorch {VERSION} was not found\n{}\n  hint: `python3 -m pip install torch=={VERSION}` in an active \
         environment, or name the folder of torch or of libtorch_cpu.so in {FOLDER_KEY}", seen(.0)
    )]
    NotFound(Vec<Candidate>),
    #[error(
        "libtorch {version} of `{}` is in this process, and this program is made for {VERSION}\n  \
         hint: does {PRELOAD_KEY} name it? This program finds {VERSION} by itself", folder.display()
    )]
    OtherLoaded { version: String, folder: PathBuf },
    #[error("libtorch {VERSION} in `{}` did not load\n  hint: `ldd {}/libtorch_cpu.so` tells which library it misses", .0.display(), .0.display())]
    NotLoaded(PathBuf),
    #[error(
        "libtorch {VERSION} in `{}` cannot be loaded from there: the path has a space or a colon, at which the loader \
         cuts {PRELOAD_KEY}\n  \
         hint: make a link without them to that folder, and name the link in {FOLDER_KEY}", .0.display()
    )]
    CutPath(PathBuf),
    #[error(
        "cannot unpack the library that calls libtorch into memory: {0}\n  \
         hint: XDG_CACHE_HOME names a folder for it; its path may have no space and no colon"
    )]
    Shim(io::Error),
    #[error("could not start again with libtorch {VERSION}: {0}")]
    Restart(io::Error),
}

/// A place that was looked at, and what was there.
#[derive(Debug, PartialEq, Eq)]
pub struct Candidate {
    pub folder: PathBuf,
    pub found: FoundVersion,
}

#[derive(Debug, PartialEq, Eq)]
pub enum FoundVersion {
    Nothing,
    UnknownVersion,
    Version(String),
    /// Somebody else could have written it.
    Untrusted(String),
}

fn seen(candidates: &[Candidate]) -> String {
    let line = |candidate: &Candidate| {
        let found = match &candidate.found {
            FoundVersion::Nothing => "no libtorch_cpu.so".to_owned(),
            FoundVersion::UnknownVersion => "libtorch of an unknown version".to_owned(),
            FoundVersion::Version(version) => format!("libtorch {version}"),
            FoundVersion::Untrusted(why) => format!("libtorch {VERSION}, which is not loaded: {why}"),
        };
        format!("  looked in {}: {found}", candidate.folder.display())
    };
    candidates.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns when libtorch is in this process; else replaces the process by one that has it.
///
/// Call it before any thread starts.
///
/// # Errors
/// When no folder holds libtorch of the right version, or it does not load.
pub fn ensure() -> Result<(), NoLibtorch> {
    if let Some(folder) = loaded_from() {
        return fits(&folder);
    }
    let is_right = |candidate: &Candidate| candidate.found == FoundVersion::Version(VERSION.into());
    let mut candidates: Vec<Candidate> = folders().into_iter().map(look_into).collect();
    if !candidates.iter().any(is_right) && env::var_os(FOLDER_KEY).is_none() {
        candidates.extend(python_torch().map(look_into));
    }
    let Some(right) = candidates.iter().position(is_right) else {
        return Err(NoLibtorch::NotFound(candidates));
    };
    let folder = candidates[right].folder.clone();
    if is_cut(&folder) {
        return Err(NoLibtorch::CutPath(folder));
    }
    let library = folder.join(LIBRARY);
    let already = env::var(PRELOAD_KEY).unwrap_or_default();
    // A program of another kind (a setuid one, or under a loader of its own) loses LD_PRELOAD each time.
    let this_process = process::id().to_string();
    let started_again = env::var(RESTARTED_KEY).is_ok_and(|process| process == this_process);
    if started_again || already.contains(&*library.to_string_lossy()) {
        return Err(NoLibtorch::NotLoaded(folder));
    }
    let shim = unpack_shim().map_err(NoLibtorch::Shim)?;
    let preload = format!("{} {} {already}", library.display(), shim.display());
    let program = env::current_exe().map_err(NoLibtorch::Restart)?;
    let mut again = Command::new(program);
    again.args(env::args_os().skip(1)).env(PRELOAD_KEY, preload.trim()).env(RESTARTED_KEY, this_process);
    // OpenMP reads them when it is loaded. Ranks share their machine with other ranks: a thread that waits must not spin for
    // long, or with more of them than cores a step takes many times as long. Not at all would cost a step of many small
    // operations a third, for waking threads; where one process has more of them than cores `PASSIVE` keeps it at that.
    if env::var_os(WAITING_KEY).is_none() {
        again.env(WAITING_KEY, "PASSIVE");
        if env::var_os(SPINS_KEY).is_none() {
            again.env(SPINS_KEY, SPINS);
        }
    }
    Err(NoLibtorch::Restart(again.exec()))
}

/// The library of crates/c10d, which the loader takes from a file: in the cache, or in memory where there is no cache folder
/// that is this user's alone. Never in a folder that others share.
fn unpack_shim() -> io::Result<PathBuf> {
    let cached = cache::folder().ok().filter(|folder| !is_cut(folder));
    match cached.map(|folder| unpack_into(&folder)) {
        Some(Ok(path)) => Ok(path),
        _ => unpack_into_memory(),
    }
}

/// By the hash of its content.
fn unpack_into(folder: &Path) -> io::Result<PathBuf> {
    let name = format!("c10d-{}.so", hex(&Sha256::digest(SHIM)[..8]));
    let path = folder.join(&name);
    // Another version may have written it, or half of it.
    let is_whole = ownership::check_code(&path).is_ok() && fs::read(&path).is_ok_and(|there| there == SHIM);
    if !is_whole {
        files::write(folder, &name, SHIM)?;
    }
    Ok(path)
}

/// A file that only this process and what it becomes can reach. It stays open, since children inherit LD_PRELOAD.
fn unpack_into_memory() -> io::Result<PathBuf> {
    let mut file = File::from(memfd_create("c10d", MFdFlags::MFD_ALLOW_SEALING)?);
    file.write_all(SHIM)?;
    let seals =
        SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(format!("/proc/self/fd/{}", file.into_raw_fd()).into())
}

/// The folder of the libtorch in this process.
pub fn loaded_from() -> Option<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with("/libtorch_cpu.so"))?;
    let path = &line[line.find('/')?..];
    Path::new(path).parent().map(Path::to_owned)
}

/// The version of the libtorch in this process, if it is known.
pub fn loaded_version() -> Option<String> {
    version_of(&loaded_from()?)
}

/// Whether what somebody else has loaded from `folder` is what this program is made for; what says nothing of itself may be.
fn fits(folder: &Path) -> Result<(), NoLibtorch> {
    match version_of(folder).filter(|version| version != VERSION) {
        Some(version) => Err(NoLibtorch::OtherLoaded { version, folder: folder.into() }),
        None => Ok(()),
    }
}

/// Where libtorch may be, the most telling first.
fn folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    if let Some(folder) = env::var_os(FOLDER_KEY) {
        // Whoever names a folder wants that one and no other.
        return vec![library_folder(PathBuf::from(folder))];
    }
    if let Some(root) = env::var_os("VIRTUAL_ENV") {
        folders.extend(python_environment(Path::new(&root)));
    }
    if let Some(root) = env::var_os("LIBTORCH") {
        folders.push(Path::new(&root).join("lib"));
    }
    let program = env::current_exe().ok();
    let beside = program.as_deref().and_then(Path::parent);
    // A wheel puts the program into `bin` of its environment, active or not.
    folders.extend(beside.and_then(Path::parent).into_iter().flat_map(python_environment));
    folders.push(Path::new(env!("BUILT_WITH_LIBTORCH")).join("lib"));
    folders
        .extend(beside.into_iter().flat_map(|beside| [beside.join("libtorch/lib"), beside.join("../lib")]));
    folders
}

/// The folder itself, or its `lib` where the libraries are there: of a wheel people name `torch` as well as `torch/lib`.
fn library_folder(folder: PathBuf) -> PathBuf {
    let inner = folder.join("lib");
    let is_inner = !folder.join(LIBRARY).exists() && inner.join(LIBRARY).exists();
    if is_inner { inner } else { folder }
}

fn python_environment(root: &Path) -> Vec<PathBuf> {
    let versions = fs::read_dir(root.join("lib")).into_iter().flatten().flatten();
    versions.map(|version| version.path().join("site-packages/torch/lib")).filter(|p| p.is_dir()).collect()
}

/// Where `import torch` would find it, without importing it: that takes seconds.
fn python_torch() -> Option<PathBuf> {
    let output = output_within(isolated_python(), ANSWER_LIMIT).ok()??;
    let root = String::from_utf8(output.stdout).ok()?;
    (!root.trim().is_empty()).then(|| Path::new(root.trim()).join("lib"))
}

/// Neither the current folder nor PYTHONPATH counts (`-I`), for who can write there would choose what is loaded; the user's own
/// packages, which `-I` leaves out, do.
fn isolated_python() -> Command {
    let script = "import sys, site; sys.path.append(site.getusersitepackages())
import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')";
    let mut python = Command::new("python3");
    python.args(["-I", "-c", script]).current_dir("/");
    python
}

fn look_into(folder: PathBuf) -> Candidate {
    let Ok(library) = folder.join(LIBRARY).canonicalize() else {
        return Candidate { folder, found: FoundVersion::Nothing };
    };
    // Its own libraries are searched beside it, and a link to it alone has none there.
    let real = library.parent().unwrap_or(&folder).to_owned();
    let found = match version_of(&real) {
        None => FoundVersion::UnknownVersion,
        Some(version) if version == VERSION => {
            trusted(&folder, &real).map_or_else(FoundVersion::Untrusted, |()| FoundVersion::Version(version))
        }
        Some(version) => FoundVersion::Version(version),
    };
    let is_link_to_all = folder.canonicalize().is_ok_and(|folder| folder == real);
    Candidate { folder: if is_cut(&real) && is_link_to_all { folder } else { real }, found }
}

/// That nobody else could have written the libraries of `real`, or have led from `folder` to them.
fn trusted(folder: &Path, real: &Path) -> Result<(), String> {
    let failed = |error: io::Error| error.to_string();
    let mut paths = vec![folder.join(LIBRARY)];
    for entry in fs::read_dir(real).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        paths.extend(path.to_string_lossy().contains(".so").then_some(path));
    }
    let wrong = paths.iter().find_map(|path| ownership::check_code(path).err());
    wrong.map_or(Ok(()), |untrusted| Err(format!("{untrusted}\n    hint: {}", untrusted.hint())))
}

/// ld.so(8): the entries of LD_PRELOAD are separated by spaces or colons, and there is no way to escape them.
fn is_cut(folder: &Path) -> bool {
    folder.to_string_lossy().contains([' ', ':'])
}

/// The version in `version.py` of a wheel, or `build-version` of an unpacked libtorch; without a suffix such as `+cu130`.
fn version_of(folder: &Path) -> Option<String> {
    let package = folder.parent()?;
    let text = fs::read_to_string(package.join("build-version")).ok().or_else(|| {
        let python = fs::read_to_string(package.join("version.py")).ok()?;
        let line = python.lines().find(|line| line.starts_with("__version__ = "))?;
        line.split('\'').nth(1).map(str::to_owned)
    })?;
    text.trim().split('+').next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder_with(version_py: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("lib")).unwrap();
        fs::write(root.path().join("lib/libtorch_cpu.so"), "").unwrap();
        fs::write(root.path().join("version.py"), version_py).unwrap();
        root
    }

    #[test]
    fn a_wheels_version_is_read_without_its_suffix() {
        let root = folder_with("__version__ = '2.11.0+cu130'\n");
        assert_eq!(look_into(root.path().join("lib")).found, FoundVersion::Version("2.11.0".into()));
    }

    #[test]
    fn what_is_loaded_is_asked_for_its_version() {
        // The programs of tests are started with libtorch.
        assert_eq!(loaded_version().as_deref(), Some(VERSION));
        let other = folder_with("__version__ = '2.9.1+cpu'\n");
        let error = fits(&other.path().join("lib")).unwrap_err().to_string();
        assert!(error.starts_with("libtorch 2.9.1 of `") && error.contains("is made for 2.11.0"), "{error}");
        fits(&folder_with("__version__ = '2.11.0+cu130'\n").path().join("lib")).unwrap();
    }

    #[test]
    fn the_folder_of_torch_is_as_good_as_that_of_its_libraries() {
        let root = folder_with("__version__ = '2.11.0'\n");
        let (torch, lib) = (root.path().to_owned(), root.path().join("lib"));
        assert_eq!(library_folder(torch), lib);
        assert_eq!(library_folder(lib.clone()), lib);
        // What is named in vain stands in the message as it was named.
        assert_eq!(library_folder("/nowhere".into()), Path::new("/nowhere"));
    }

    #[test]
    fn a_path_at_which_the_loader_would_cut_is_left_for_a_link_to_it() {
        let root = folder_with("__version__ = '2.11.0'\n");
        let cut = root.path().join("a b:c");
        fs::create_dir(&cut).unwrap();
        for name in ["lib", "version.py"] {
            fs::rename(root.path().join(name), cut.join(name)).unwrap();
        }
        let real = look_into(cut.join("lib"));
        assert_eq!(real.found, FoundVersion::Version("2.11.0".into()));
        assert!(is_cut(&real.folder));
        let link = root.path().join("link");
        std::os::unix::fs::symlink(cut.join("lib"), &link).unwrap();
        assert_eq!(look_into(link.clone()), Candidate { folder: link, found: real.found });
    }

    #[test]
    fn python_is_asked_where_nobody_else_can_put_a_torch() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("torch")).unwrap();
        fs::write(root.path().join("torch/__init__.py"), "").unwrap();
        let mut python = isolated_python();
        assert_eq!(python.get_current_dir(), Some(Path::new("/")));
        // As in a shell whose user is in that folder, and has it on the path.
        let output = python.current_dir(root.path()).env("PYTHONPATH", root.path()).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && !said.contains(root.path().to_str().unwrap()), "{said}");
    }

    #[test]
    fn a_libtorch_that_others_can_write_is_named_with_the_reason() {
        use std::os::unix::fs::PermissionsExt as _;
        let root = folder_with("__version__ = '2.11.0'\n");
        let library = root.path().join("lib/libc10.so");
        fs::write(&library, "").unwrap();
        fs::set_permissions(&library, fs::Permissions::from_mode(0o666)).unwrap();
        let FoundVersion::Untrusted(why) = look_into(root.path().join("lib")).found else {
            panic!("trusted")
        };
        assert!(why.contains("libc10.so` can be written by everybody\n    hint: `chmod o-w"), "{why}");
    }

    #[test]
    fn the_error_says_what_was_wanted_and_what_was_found_where() {
        let old = folder_with("__version__ = '2.9.1'\n");
        let error = NoLibtorch::NotFound(vec![
            Candidate { folder: "/opt/torch/lib".into(), found: FoundVersion::Nothing },
            Candidate { folder: "/usr/lib/torch".into(), found: look_into(old.path().join("lib")).found },
        ]);
        insta::assert_snapshot!(error, @r"
        libtorch 2.11.0 was not found
          looked in /opt/torch/lib: no libtorch_cpu.so
          looked in /usr/lib/torch: libtorch 2.9.1
          hint: `python3 -m pip install torch==2.11.0` in an active environment, or name the folder of torch or of libtorch_cpu.so in PSTRAIN_LIBTORCH
        ");
    }
}
