//! What all ranks have to agree on: the job, and the plug-ins and TorchScript that it names by their files.

use anyhow::{Context as _, Result};
use sha2::{Digest, Sha256};
use toml::Value;

use crate::files;
use crate::human::hex;
use crate::job::{Resolved, Training};
use crate::plugin;
use crate::rpc::JobKeys;

/// What a rank shows of its job to the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// SHA-256 over the job's own hash and the bytes of the files with its code. Where they lie may differ between
    /// machines. Weights are no code: what a module starts from is read by who holds it, and of replicas the first one's
    /// are taken.
    pub hash: [u8; 32],
    /// To say in which keys two jobs differ.
    pub keys: JobKeys,
}

/// Keys that may differ between the ranks of a job.
const OF_ONE_MACHINE: [&str; 5] =
    ["cluster.init", "cluster.master_addr", "cluster.master_port", "cluster.num_gpus", "data.root"];

/// # Errors
/// When a file cannot be read. A rank needs it even where it calls no plug-in, to be known for one of the job.
pub fn of(resolved: &Resolved) -> Result<Agreement> {
    let mut all = Sha256::new_with_prefix(resolved.hash);
    let mut keys = Vec::new();
    let root: toml::Table = resolved.toml.parse().context("the job as resolved")?;
    leaves(String::new(), &Value::Table(root), &mut keys);
    let mut add = |what: String, bytes: Vec<u8>| {
        let digest = Sha256::digest(bytes);
        all.update(digest);
        keys.push((what, hex(digest)));
    };
    let training = resolved.job.training();
    for (key, file) in training.map_or(Vec::new(), Training::plugin_files) {
        add(format!("{key}, its file"), plugin::read_file(file)?);
    }
    for module in training.map_or(&[][..], |training| training.modules.as_slice()) {
        if let Some(script) = module.torchscript() {
            let bytes =
                files::read_regular(&script.file).with_context(|| script.file.display().to_string())?;
            add(format!("modules.{}.torchscript, its file", module.name), bytes);
        }
    }
    Ok(Agreement { hash: all.finalize().into(), keys: JobKeys::new(keys) })
}

/// Each key with its value.
fn leaves(path: String, value: &Value, found: &mut Vec<(String, String)>) {
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                leaves(path, value, found);
            }
        }
        _ if OF_ONE_MACHINE.contains(&path.as_str()) => {}
        // Where a file lies may differ, too.
        Value::String(text) => {
            found.push((path, text.rsplit('/').next().unwrap_or_default().to_owned()));
        }
        value => found.push((path, value.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobText, Override, Sources, load, starter};

    #[test]
    fn the_bytes_of_a_plugin_count_and_its_folder_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let agreed_with = |place: &str, bytes: &[u8]| {
            let path = folder.path().join(place).join("mine.wasm");
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, bytes).unwrap();
            let overrides = [Override::text("--set", "data.plugin", path.to_str().unwrap())];
            let file = JobText { name: "starter", text: starter() };
            of(&load(&Sources { file, env: Vec::new(), overrides: &overrides }).unwrap()).unwrap()
        };
        assert_eq!(agreed_with("a", b"one"), agreed_with("b", b"one"));
        let (one, two) = (agreed_with("a", b"one"), agreed_with("a", b"two"));
        assert_ne!(one.hash, two.hash);
        assert_ne!(one.keys, two.keys);
    }
}
