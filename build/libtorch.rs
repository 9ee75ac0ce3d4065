//! Links libtorch so that it can be missing.
//!
//! The symbols of libtorch stay weak and no libtorch library is named in the program, so the loader starts it
//! anywhere; `src/runner/libtorch.rs` then finds libtorch 2.11.0 (or says where it looked) and starts the program
//! again with it preloaded. One binary so serves this folder, a Python environment's torch, and a GPU machine's.
//! Test binaries are started by `scripts/with-libtorch` (`.cargo/config.toml`).
//!
//! Only calls may be left to the loader like that: in tables of data the linker resolves a weak reference to null. So
//! our own C++, whose classes have such tables, is a library of its own (crates/c10d) and is loaded after libtorch.

use std::path::PathBuf;
use std::{env, fs};

pub fn link_weakly() {
    println!("cargo::rerun-if-env-changed=LIBTORCH");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    // Empty libraries in front of the real ones: the linker finds nothing to resolve, and drops them as not needed.
    let stubs = out.join("stubs");
    if let Err(error) = fs::create_dir_all(&stubs) {
        println!("cargo::error={}: {error}", stubs.display());
    }
    let empty = stubs.join("empty.c");
    let _ = fs::write(&empty, "");
    for library in ["torch_cpu", "torch", "c10", "c10d_shim"] {
        let path = stubs.join(format!("lib{library}.so"));
        let made = std::process::Command::new("cc").arg("-shared").arg("-o").arg(&path).arg(&empty).status();
        if !made.is_ok_and(|status| status.success()) {
            println!("cargo::error=`cc` could not make {}", path.display());
        }
    }
    println!("cargo::rustc-link-search=native={}", stubs.display());
    // Of the linkers at hand only gold turns what is unresolved into weak references.
    println!("cargo::rustc-link-arg=-fuse-ld=gold");
    println!("cargo::rustc-link-arg=-Wl,--weak-unresolved-symbols");
    // The one library of ours that needs libtorch goes into the program, which loads it behind libtorch.
    let shim = env::var("DEP_C10D_SHIM_LIBRARY").unwrap_or_default();
    println!("cargo::rerun-if-changed={shim}");
    println!("cargo::rustc-env=C10D_SHIM={shim}");
    // Where the program looks first: the folder it was built with.
    let libtorch = env::var("LIBTORCH").unwrap_or_default();
    println!("cargo::rustc-env=BUILT_WITH_LIBTORCH={libtorch}");
}
