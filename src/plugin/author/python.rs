//! Plug-ins in Python: componentize-py makes a component that has a Python interpreter in it.

use super::{AuthorError, Kind, Wasm};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use wasm_toolchain::child;

use crate::files;

const COMPONENTIZE_PY: &str = "0.25.1";
/// Its wheel has 45 MB.
const INSTALL_LIMIT: Duration = Duration::from_secs(600);
const NO_PIP: &str = "install Python 3.10 or newer with `venv` (on Debian: `apt-get install python3-venv`)";

/// What pyproject.toml tells.
pub struct Project {
    name: String,
    kind: Kind,
}

impl Project {
    /// `None` if `dir` has no pyproject.toml, or one without `tool.pstrain`.
    ///
    /// # Errors
    /// If it is there and wrong.
    pub fn read(dir: &Path) -> Result<Option<Self>, AuthorError> {
        let file = dir.join("pyproject.toml");
        let Ok(text) = std::fs::read_to_string(&file) else { return Ok(None) };
        let wrong = |what: String| AuthorError::Project {
            file: file.clone(),
            what,
            hint: "`pstrain plugin new NAME --lang python` writes one that works".into(),
        };
        let table: toml::Table =
            text.parse().map_err(|error: toml::de::Error| wrong(error.message().to_owned()))?;
        let Some(ours) = table.get("tool").and_then(|tool| tool.get("pstrain")) else { return Ok(None) };
        let name = table.get("project").and_then(|project| project.get("name")).and_then(toml::Value::as_str);
        let name = name.ok_or_else(|| wrong("it has no `project.name`".into()))?;
        let kind = ours.get("kind").and_then(toml::Value::as_str);
        let kind = kind.ok_or_else(|| wrong("it has no `tool.pstrain.kind`".into()))?;
        let kind = kind.parse().map_err(wrong)?;
        Ok(Some(Project { name: name.to_owned(), kind }))
    }

    /// Makes the component: its name, the toolchain in words, the file.
    pub fn build(self, dir: &Path) -> Result<(String, String, Wasm), AuthorError> {
        let tool = Tool::find_or_install()?;
        let out = tempfile::Builder::new().suffix(".wasm").tempfile();
        let out = out.map_err(AuthorError::io("write into", &std::env::temp_dir()))?.into_temp_path();
        let mut componentize = child::clean(&tool.python);
        componentize.arg(tool.folder.join("bin/componentize-py")).env("PYTHONPATH", &tool.folder);
        componentize.args([
            "-q",
            "-d",
            "wit",
            "-w",
            &format!("{}-plugin", self.kind),
            "componentize",
            "plugin",
            "-o",
        ]);
        componentize.arg(&out).current_dir(dir);
        // Its stdout has nothing for scripts; stdout is ours.
        let status = componentize.stdin(Stdio::null()).stdout(std::io::stderr()).status();
        let status = status.map_err(|error| AuthorError::not_started("python3", &error))?;
        if !status.success() {
            return Err(AuthorError::Compile { program: "componentize-py", status });
        }
        Ok((self.name, format!("componentize-py {COMPONENTIZE_PY}"), Wasm::Temporary(out)))
    }
}

/// componentize-py in the user's cache.
struct Tool {
    python: PathBuf,
    folder: PathBuf,
}

impl Tool {
    fn find_or_install() -> Result<Self, AuthorError> {
        let folder = cache()?.join(format!("componentize-py-{COMPONENTIZE_PY}"));
        let python = PathBuf::from("python3");
        if folder.join("bin/componentize-py").is_file() {
            return Ok(Tool { python, folder });
        }
        eprintln!(
            "installing componentize-py {COMPONENTIZE_PY} from PyPI into `{}` (once)",
            folder.display()
        );
        let parent = folder.parent().expect("a folder in the cache has a parent");
        files::make_folders(parent).map_err(AuthorError::io("make the folder", parent))?;
        // Beside its place, so that it appears whole or not at all.
        let fresh = tempfile::tempdir_in(parent).map_err(AuthorError::io("write into", parent))?;
        install(&python, fresh.path())?;
        let made = fresh.path().join("packages");
        match std::fs::rename(&made, &folder) {
            // Somebody else was faster.
            Err(_) if folder.join("bin/componentize-py").is_file() => Ok(()),
            renamed => renamed.map_err(AuthorError::io("write", &folder)),
        }?;
        Ok(Tool { python, folder })
    }
}

/// Puts the package into `fresh`/packages, by the pip that there is or by one in a virtual environment.
fn install(python: &Path, fresh: &Path) -> Result<(), AuthorError> {
    let mut has_pip = isolated(python);
    has_pip.args(["-m", "pip", "--version"]);
    let with_pip = if child::answer(has_pip).is_some() {
        python.to_owned()
    } else {
        let mut venv = isolated(python);
        venv.args(["-m", "venv"]).arg(fresh.join("venv"));
        run(venv, "making a virtual environment for componentize-py", NO_PIP)?;
        fresh.join("venv/bin/python")
    };
    let mut pip = isolated(&with_pip);
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"]);
    pip.arg("--target").arg(fresh.join("packages")).arg(format!("componentize-py=={COMPONENTIZE_PY}"));
    run(
        pip,
        "installing componentize-py",
        "see that PyPI can be reached, or set PIP_INDEX_URL to a mirror of it",
    )
}

/// A Python that takes its modules from where it is installed: by `-m` it would look for them in the current folder first, and
/// who can write there would choose what is run.
fn isolated(python: &Path) -> Command {
    let mut python = child::clean(python);
    python.arg("-I").current_dir("/");
    python
}

fn run(command: Command, doing: &str, hint: &'static str) -> Result<(), AuthorError> {
    let output = child::output_within(command, INSTALL_LIMIT)
        .map_err(|error| AuthorError::not_started("python3", &error))?;
    match output {
        None => Err(AuthorError::TooLong { doing: doing.to_owned(), limit: INSTALL_LIMIT, hint }),
        Some(output) if output.status.success() => Ok(()),
        Some(output) => Err(AuthorError::Toolchain {
            what: format!("{doing} failed ({}):{}", output.status, child::last_lines(&output)),
            hint: hint.to_owned(),
        }),
    }
}

fn cache() -> Result<PathBuf, AuthorError> {
    crate::cache::folder().map_err(|no_cache| AuthorError::Toolchain {
        what: format!("there is no place for componentize-py: {no_cache}"),
        hint: no_cache.hint(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pip_that_somebody_has_put_into_the_current_folder_is_not_run() {
        let root = tempfile::tempdir().unwrap();
        for module in ["pip", "venv"] {
            std::fs::create_dir(root.path().join(module)).unwrap();
            std::fs::write(root.path().join(module).join("__main__.py"), "print('somebody else')").unwrap();
            let mut python = isolated(Path::new("python3"));
            assert_eq!(python.get_current_dir(), Some(Path::new("/")));
            // As in a shell whose user is in that folder, and has it on the path.
            python.current_dir(root.path()).env("PYTHONPATH", root.path());
            let output = python.args(["-m", module, "--help"]).output().unwrap();
            assert!(!String::from_utf8_lossy(&output.stdout).contains("somebody else"), "{module}");
        }
    }
}
