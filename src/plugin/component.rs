//! From the bytes of a file to a component that can be started, or a clear refusal.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use wasi_preview1_component_adapter_provider::{
    WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER,
};
use wasmtime::Engine;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{InstancePre, Linker, ResourceType};
use wit_component::ComponentEncoder;

use super::apart;
use super::bindings::{PACKAGE, VERSION};
use super::error::{PluginError, PluginErrorKind, Refusal};
use super::logged::Logged;
use super::state::State;
use crate::files;
use crate::human::hex;

/// A plug-in, compiled and ready to be started any number of times. Cheap to clone, shared by threads.
#[derive(Clone)]
pub struct Component(Arc<Loaded>);

struct Loaded {
    name: String,
    worlds: Vec<World>,
    /// Whether it exports `loss-weight`, which a loss may and older ones do not.
    has_loss_weight: bool,
    /// What it imports that this host does not have; it can run as long as it does not call these.
    missing: Vec<String>,
    pre: InstancePre<State>,
    logged: Arc<Logged>,
}

/// What a plug-in can be used as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum World {
    Dataset,
    Loss,
    RawLoss,
    Metric,
}

impl World {
    const ALL: [World; 4] = [World::Dataset, World::Loss, World::RawLoss, World::Metric];

    /// The name of the interface that it exports.
    fn interface(self) -> &'static str {
        match self {
            World::Dataset => "dataset",
            World::Loss => "loss",
            World::RawLoss => "raw-loss",
            World::Metric => "metric",
        }
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            World::Dataset => "a dataset",
            World::Loss => "a loss",
            World::RawLoss => "a raw loss",
            World::Metric => "a metric",
        })
    }
}

impl Component {
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Never empty.
    pub fn worlds(&self) -> &[World] {
        &self.0.worlds
    }

    pub fn is(&self, world: World) -> bool {
        self.0.worlds.contains(&world)
    }

    pub(super) fn has_loss_weight(&self) -> bool {
        self.0.has_loss_weight
    }

    /// Interfaces that the plug-in names and this host does not offer.
    pub fn missing_imports(&self) -> &[String] {
        &self.0.missing
    }

    /// Counts what its instances log.
    pub(super) fn logged(&self) -> Arc<Logged> {
        self.0.logged.clone()
    }

    pub(super) fn pre(&self) -> &InstancePre<State> {
        &self.0.pre
    }

    /// The error for one that is something else than was asked for.
    pub(super) fn is_not(&self, wanted: &str) -> PluginError {
        let is = self.worlds().iter().map(World::to_string).collect::<Vec<_>>().join(" and ");
        PluginError::new(
            self.name(),
            "load",
            PluginErrorKind::NotAPlugin,
            format!("it is {is}, not {wanted}"),
        )
    }
}

impl fmt::Debug for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Component").field("name", &self.0.name).field("worlds", &self.0.worlds).finish()
    }
}

/// See [`super::Host::load`].
pub fn load(
    engine: &Engine,
    linker: &Linker<State>,
    cache_dir: Option<&Path>,
    name: &str,
    bytes: &[u8],
    logged: Arc<Logged>,
) -> Result<Component, PluginError> {
    let not_one = |message: String| {
        PluginError::new(name, "load", PluginErrorKind::NotAPlugin, message).with_hint(apart::NOT_ONE)
    };
    let component = compile(engine, cache_dir, bytes).map_err(not_one)?;
    let worlds = worlds_of(engine, &component).map_err(not_one)?;
    let has_loss_weight = interfaces(engine, &component).any(|name| name == "loss-weight");
    let missing = missing_imports(engine, &component).map_err(not_one)?;
    let pre = if missing.is_empty() {
        linker.instantiate_pre(&component)
    } else {
        let mut linker = linker.clone();
        refuse_calls(&mut linker, engine, &component, &missing)
            .and_then(|()| linker.instantiate_pre(&component))
    };
    let pre = pre.map_err(|error| not_one(format!("it does not fit this host: {error:#}")))?;
    Ok(Component(Arc::new(Loaded { name: name.into(), worlds, has_loss_weight, missing, pre, logged })))
}

/// From the bytes of a file to native code, by way of the cache if there is one.
pub fn compile(
    engine: &Engine,
    cache_dir: Option<&Path>,
    bytes: &[u8],
) -> Result<wasmtime::component::Component, String> {
    let component = as_component(cache_dir, bytes)?;
    wasmtime::component::Component::new(engine, &component)
        .map_err(|error| format!("it does not compile: {error:#}"))
}

/// A core module is wrapped; a component stays as it is.
fn as_component<'a>(cache_dir: Option<&Path>, bytes: &'a [u8]) -> Result<Cow<'a, [u8]>, String> {
    match bytes {
        [0, b'a', b's', b'm', 0x0d, 0, 1, 0, ..] => Ok(Cow::Borrowed(bytes)),
        [0, b'a', b's', b'm', 1, 0, 0, 0, ..] => {
            let kept = cache_dir.map(|dir| dir.join("components").join(format!("{}.wasm", digest(bytes))));
            if let Some(component) = kept.as_ref().and_then(|file| std::fs::read(file).ok()) {
                return Ok(Cow::Owned(component));
            }
            let component = encode(bytes)?;
            if let Some(file) = kept {
                // Losing this costs some 30 ms the next time, so a full or read-only disk is not an error.
                let _ = keep(&file, &component);
            }
            Ok(Cow::Owned(component))
        }
        [0, b'a', b's', b'm', ..] => Err("it is WebAssembly of a version that is not known here".into()),
        [] => Err("the file is empty".into()),
        _ => Err("it is not a WebAssembly file: it does not begin with `\\0asm`".into()),
    }
}

/// Hash of the module, and of all else that decides what it becomes.
pub fn digest(module: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(env!("CARGO_PKG_VERSION"));
    hash.update(Sha256::digest(WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER));
    hash.update(module);
    hex(hash.finalize())
}

fn encode(module: &[u8]) -> Result<Vec<u8>, String> {
    let adapter = (WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER);
    // Not validated here: wasmtime validates what comes out.
    let encoder = ComponentEncoder::default().validate(false);
    let encoded = encoder.module(module).and_then(|encoder| encoder.adapter(adapter.0, adapter.1));
    let encoded = encoded.and_then(|mut encoder| encoder.encode());
    encoded.map_err(|error| format!("it is a WebAssembly module that no component can be made of: {error:#}"))
}

/// Whole or not at all: another rank may be reading.
pub fn keep(file: &Path, component: &[u8]) -> std::io::Result<()> {
    let dir = file.parent().expect("a file of the cache is in a folder");
    files::make_folders(dir)?;
    let temporary = tempfile::NamedTempFile::new_in(dir)?;
    std::fs::write(temporary.path(), component)?;
    temporary.persist(file)?;
    Ok(())
}

/// `Some((interface, version))` of `pstrain:plugin/interface@version`.
fn of_package(name: &str) -> Option<(&str, &str)> {
    let name = name.strip_prefix(PACKAGE)?.strip_prefix('/')?;
    Some(name.split_once('@').unwrap_or((name, "")))
}

/// As cargo has it: below 1.0 the second number decides.
fn compatible(version: &str) -> bool {
    let significant = |version: &str| version.splitn(3, '.').take(2).map(str::to_owned).collect::<Vec<_>>();
    significant(version) == significant(VERSION)
}

/// Those of this package that it exports.
fn interfaces(engine: &Engine, component: &wasmtime::component::Component) -> impl Iterator<Item = String> {
    let ty = component.component_type();
    let exports: Vec<String> = ty.exports(engine).map(|(name, _)| name.to_owned()).collect();
    exports.into_iter().filter_map(|name| of_package(&name).map(|(interface, _)| interface.to_owned()))
}

fn worlds_of(engine: &Engine, component: &wasmtime::component::Component) -> Result<Vec<World>, String> {
    let ty = component.component_type();
    let exports: Vec<&str> = ty.exports(engine).map(|(name, _)| name).collect();
    let ours = || exports.iter().filter_map(|name| of_package(name));
    if let Some((_, version)) = ours().find(|(_, version)| !compatible(version)) {
        return Err(format!("it is made for {PACKAGE}@{version}; this pstrain has {PACKAGE}@{VERSION}"));
    }
    let worlds: Vec<World> =
        World::ALL.into_iter().filter(|world| ours().any(|(name, _)| name == world.interface())).collect();
    if !worlds.is_empty() {
        return Ok(worlds);
    }
    let exports = if exports.is_empty() { "nothing".into() } else { exports.join(", ") };
    let known = World::ALL.map(World::interface).join(", ");
    Err(format!("it exports none of {known} of {PACKAGE}@{VERSION}; it exports {exports}"))
}

/// Imports of whole interfaces that the linker does not have.
///
/// # Errors
/// If one of them is of this package: a plug-in made for another version would fail in the middle of a job.
fn missing_imports(
    engine: &Engine,
    component: &wasmtime::component::Component,
) -> Result<Vec<String>, String> {
    const WASI: [&str; 6] =
        ["wasi:io/", "wasi:clocks/", "wasi:filesystem/", "wasi:cli/", "wasi:random/", "wasi:sockets/"];
    let ty = component.component_type();
    let mut missing = Vec::new();
    for (name, _) in ty.imports(engine) {
        match of_package(name) {
            Some((_, version)) if !compatible(version) => {
                return Err(format!(
                    "it is made for {PACKAGE}@{version}; this pstrain has {PACKAGE}@{VERSION}"
                ));
            }
            Some(_) => {}
            // Another minor version of WASI 0.2 is found under its own name.
            None if name.contains("@0.2.") && WASI.iter().any(|known| name.starts_with(known)) => {}
            None => missing.push(name.to_owned()),
        }
    }
    Ok(missing)
}

/// Python's runtime, for one, imports more than it uses. Such functions may be named but not called.
fn refuse_calls(
    linker: &mut Linker<State>,
    engine: &Engine,
    component: &wasmtime::component::Component,
    missing: &[String],
) -> wasmtime::Result<()> {
    let ty = component.component_type();
    for (interface, import) in ty.imports(engine).filter(|(name, _)| missing.iter().any(|m| m == name)) {
        let ComponentItem::ComponentInstance(instance) = &import.ty else {
            continue; // A type or a function of its own: `instantiate_pre` says what it is.
        };
        let mut linked = linker.instance(interface)?;
        for (name, item) in instance.exports(engine) {
            match item.ty {
                ComponentItem::ComponentFunc(_) => {
                    let called = format!("{interface}.{name}");
                    linked.func_new(name, move |_, _, _, _| {
                        let kind = PluginErrorKind::Denied;
                        Err(Refusal {
                            kind,
                            message: format!("it called {called}, which plug-ins do not have"),
                            hint: None,
                        }
                        .into())
                    })?;
                }
                ComponentItem::Resource(_) => {
                    linked.resource(name, ResourceType::host::<()>(), |_, _| Ok(()))?
                }
                _ => {}
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_agree_when_their_second_number_does() {
        assert!(compatible("0.2.0") && compatible("0.2.7"));
        assert!(!compatible("0.1.0") && !compatible("1.2.0") && !compatible(""));
        assert_eq!(of_package("pstrain:plugin/raw-loss@0.2.0"), Some(("raw-loss", "0.2.0")));
        assert_eq!(of_package("wasi:io/poll@0.2.0"), None);
    }
}
