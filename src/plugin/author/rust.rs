//! Plug-ins in Rust: cargo makes a core module, which the host turns into a component.

use super::{AuthorError, Wasm};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use wasm_toolchain::Toolchain;

/// Compiles the crate in `dir`: its name, the toolchain in words, the module.
pub fn build(dir: &Path) -> Result<(String, String, Wasm), AuthorError> {
    let manifest = dir.join("Cargo.toml");
    let name = package_name(&manifest)?;
    let toolchain = Toolchain::find(dir)?;
    let mut cargo = toolchain.cargo(dir);
    // Messages for people go to stderr, where ours go too.
    cargo.args(["--lib", "--target-dir", "target", "--message-format", "json-render-diagnostics"]);
    let output = cargo.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| AuthorError::not_started("cargo", &error))?;
    if !output.status.success() {
        return Err(AuthorError::Compile { program: "cargo", status: output.status });
    }
    let module = module_of(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| AuthorError::Project {
        file: manifest,
        what: "the crate gives no WebAssembly module".into(),
        hint: "it needs `[lib]` with `crate-type = [\"cdylib\"]`".into(),
    })?;
    Ok((name, toolchain.describe(dir), Wasm::Kept(module)))
}

fn package_name(manifest: &Path) -> Result<String, AuthorError> {
    let text = std::fs::read_to_string(manifest).map_err(AuthorError::io("read", manifest))?;
    let project = |what: String| AuthorError::Project {
        file: manifest.to_owned(),
        what,
        hint: "`pstrain plugin new` writes one that works".into(),
    };
    let table: toml::Table =
        text.parse().map_err(|error: toml::de::Error| project(error.message().to_owned()))?;
    let name = table.get("package").and_then(|package| package.get("name")).and_then(toml::Value::as_str);
    name.map(str::to_owned).ok_or_else(|| project("it has no `package.name`".into()))
}

/// The module among the artifacts that cargo tells of; the crate itself comes last, after what it depends on.
fn module_of(messages: &str) -> Option<PathBuf> {
    #[derive(Deserialize)]
    struct Message {
        reason: String,
        #[serde(default)]
        filenames: Vec<PathBuf>,
    }
    let artifacts = messages.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok());
    let ours = artifacts.filter(|message| message.reason == "compiler-artifact");
    let is_wasm = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "wasm");
    ours.flat_map(|message| message.filenames).rfind(is_wasm)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_is_found_among_cargos_messages() {
        let messages = r#"
            {"reason":"compiler-artifact","filenames":["/t/deps/libserde.rlib"]}
            {"reason":"compiler-artifact","target":{"name":"my"},"filenames":["/t/my.wasm"],"executable":null}
            {"reason":"build-finished","success":true}"#;
        assert_eq!(module_of(messages).unwrap(), Path::new("/t/my.wasm"));
        assert_eq!(module_of(r#"{"reason":"build-finished","success":true}"#), None);
    }
}
