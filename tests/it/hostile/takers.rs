//! Plug-ins that take too much of one thing: tables, the compiler, memory and time of operations and their backward.

use std::path::Path;
use std::time::{Duration, Instant};

use pstrain::job::PluginLimits;
use pstrain::plugin::{Host, Loss, PluginErrorKind};
use serde_json::json;

use super::modules::{hard_to_compile, tables};

fn uncached() -> Host {
    Host::new(Some("/proc/nowhere".as_ref())).unwrap()
}

fn pstrain() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_pstrain"))
}

#[test]
fn tables_count_as_memory() {
    let limits = PluginLimits { memory_bytes: 64 << 20, ..PluginLimits::default() };
    let open = |count| {
        let component = uncached().load("tables", &tables(count, 1_000_000)).unwrap();
        Loss::open(&component, &json!({}), limits).map(drop)
    };
    open(2).unwrap();
    let error = open(90).unwrap_err();
    assert_eq!(error.kind, PluginErrorKind::OutOfMemory { limit_bytes: 64 << 20 });
    let told = error.to_string();
    assert!(told.contains("plug-in `tables`: `start`") && told.contains("`plugins.memory_mb`"), "{told}");
}

#[test]
fn a_module_that_is_hard_to_compile_ends_at_its_limits() {
    let module = hard_to_compile(20_000, 20_000);
    assert!(module.len() < 400_000, "{} bytes", module.len());
    let load = |limits| {
        let began = Instant::now();
        let error = uncached().compiling_with(pstrain(), limits).load("hard", &module).unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        error.to_string()
    };
    let brief = PluginLimits { compile_time: Duration::from_millis(300), ..PluginLimits::default() };
    insta::assert_snapshot!(load(brief), @r"
    plug-in `hard`: `compile` was stopped after 300ms, its limit
      hint: it has functions that are hard to compile; if it needs more, raise `plugins.compile_time_ms`
    ");
    let small = PluginLimits { compile_memory_bytes: 128 << 20, ..PluginLimits::default() };
    insta::assert_snapshot!(load(small), @r"
    plug-in `hard`: `compile` wanted more memory than its limit, 128 MiB: to compile it
      hint: it has functions that are hard to compile; if it needs more, raise `plugins.compile_memory_mb`
    ");
}

#[test]
fn a_plug_in_is_compiled_apart_once_and_then_found() {
    let cache = tempfile::tempdir().unwrap();
    let host = || Host::new(Some(cache.path())).unwrap().compiling_with(pstrain(), PluginLimits::default());
    let module = tables(1, 1);
    host().load("first", &module).unwrap();
    let noted = || std::fs::read_dir(cache.path().join("compiles")).unwrap().count();
    assert_eq!(noted(), 1);
    // Another program would not be believed: none is asked.
    let host =
        Host::new(Some(cache.path())).unwrap().compiling_with("/bin/false".as_ref(), PluginLimits::default());
    host.load("again", &module).unwrap();
    let error = host.load("other", &tables(2, 1)).unwrap_err().to_string();
    assert!(error.contains("the process that compiled it ended with"), "{error}");
    assert_eq!(noted(), 1);
}

#[test]
fn what_is_not_a_plug_in_is_told_as_by_this_process() {
    let apart = uncached().compiling_with(pstrain(), PluginLimits::default());
    for bytes in [&b"import torch"[..], b"", b"\0asm\x01\0\0\0\xff"] {
        let told = |host: &Host| host.load("thing.wasm", bytes).unwrap_err().to_string();
        assert_eq!(told(&apart), told(&uncached()));
    }
}
