//! Puts the shipped plug-ins into the binary. Part of the build script.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

const SHIPPED: [&str; 19] = [
    "bags",
    "bce_with_logits",
    "bpr",
    "clicks",
    "criteo",
    "cross_entropy",
    "csv",
    "focal",
    "huber",
    "idx",
    "images",
    "kl_div",
    "mse",
    "nll",
    "npy",
    "parquet",
    "synthetic",
    "text",
    "triplet",
];

/// Writes `OUT_DIR/builtin_plugins.rs`, which `src/plugin/builtin.rs` includes.
pub fn embed() {
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let dist = Path::new(&root).join("plugins/dist");
    println!("cargo::rerun-if-changed=build/plugins.rs");
    let mut list = String::from("static BUILTIN: &[(&str, &[u8])] = &[\n");
    let mut missing = Vec::new();
    for name in SHIPPED {
        let file = dist.join(format!("{name}.wasm"));
        // A file that is not there makes cargo run this again each time, which is what is wanted then.
        println!("cargo::rerun-if-changed=plugins/dist/{name}.wasm");
        if !file.is_file() {
            missing.push(name);
        }
        writeln!(list, "    ({name:?}, include_bytes!({:?})),", file.display().to_string())
            .expect("a string grows");
    }
    list.push_str("];\n");
    if !missing.is_empty() {
        println!("cargo::error=plugins/dist lacks the shipped plug-ins {}", missing.join(", "));
        println!("cargo::error=hint: `make setup` builds them");
    }
    let out = env::var("OUT_DIR").expect("cargo sets it");
    fs::write(Path::new(&out).join("builtin_plugins.rs"), list).expect("OUT_DIR can be written");
}
