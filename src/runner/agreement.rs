//! What all ranks have to agree on: the job, and the plug-ins and TorchScript that it names by their files.

use anyhow::{Context as _, Result};
use sha2::{Digest, Sha256};

use crate::job::{ModuleSpec, PluginRef, Resolved};
use crate::plugin;

/// SHA-256 over the job's own hash and the bytes of the files with its code. Where they lie may differ between machines.
/// Weights are no code: what a module starts from is read by who holds it, and of replicas the first one's are taken.
///
/// # Errors
/// When a file cannot be read. A rank needs it even where it calls no plug-in, to be known for one of the job.
pub fn hash(resolved: &Resolved) -> Result<[u8; 32]> {
    let mut all = Sha256::new_with_prefix(resolved.hash);
    let plugins = resolved.job.training().map(|training| [&training.data.plugin, &training.loss.plugin]);
    for plugin in plugins.into_iter().flatten() {
        if let PluginRef::File(path) = plugin {
            all.update(Sha256::digest(plugin::read_file(path)?));
        }
    }
    let modules = resolved.job.training().map_or(&[][..], |training| training.modules.as_slice());
    for script in modules.iter().filter_map(ModuleSpec::torchscript) {
        let bytes = std::fs::read(&script.file).with_context(|| script.file.display().to_string())?;
        all.update(Sha256::digest(bytes));
    }
    Ok(all.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobText, Override, Sources, load, starter};

    #[test]
    fn the_bytes_of_a_plugin_count_and_its_folder_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let hash_with = |place: &str, bytes: &[u8]| {
            let path = folder.path().join(place).join("mine.wasm");
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, bytes).unwrap();
            let overrides = [Override::text("--set", "data.plugin", path.to_str().unwrap())];
            let file = JobText { name: "starter", text: starter() };
            hash(&load(&Sources { file, env: Vec::new(), overrides: &overrides }).unwrap()).unwrap()
        };
        assert_eq!(hash_with("a", b"one"), hash_with("b", b"one"));
        assert_ne!(hash_with("a", b"one"), hash_with("a", b"two"));
    }
}
