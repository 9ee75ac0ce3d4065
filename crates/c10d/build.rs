//! Compiles the C++ shim against the libtorch in `$LIBTORCH`, after checking that it is the one tch takes.

use std::path::{Path, PathBuf};
use std::{env, fs, process};

/// tch 0.24.0 takes this version and no other; the shim uses headers that change between versions.
const TORCH_VERSION: &str = "2.11.0";

const SOURCES: [&str; 2] = ["csrc/engine.cpp", "csrc/library.cpp"];

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    println!("cargo:rerun-if-changed=csrc");
    let libtorch = libtorch_folder().unwrap_or_else(|why| {
        println!("cargo:warning={why}");
        eprintln!(
            "error: {why}\n  hint: `make setup` fetches libtorch {TORCH_VERSION} into .deps/; \
             or set LIBTORCH to a folder with include/, lib/ and a file build-version holding {TORCH_VERSION}"
        );
        process::exit(1);
    });
    compile(&libtorch);
    println!("cargo:rustc-link-search=native={}", libtorch.join("lib").display());
    println!("cargo:rustc-link-lib=dylib=torch_cpu");
    println!("cargo:rustc-link-lib=dylib=c10");
    let run_path = run_path(&libtorch);
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", run_path.display());
    // For packages above: `DEP_C10D_SHIM_RUN_PATH` in their build scripts. A run path is not passed on by itself.
    println!("cargo:run_path={}", run_path.display());
}

/// The folder that really holds libtorch: the links in `$LIBTORCH/lib` would not do, because the libraries look for
/// others relative to where they were found.
fn run_path(libtorch: &Path) -> PathBuf {
    let library = libtorch.join("lib/libtorch_cpu.so");
    let real = library.canonicalize().unwrap_or(library);
    real.parent().map(Path::to_path_buf).unwrap_or_default()
}

fn libtorch_folder() -> Result<PathBuf, String> {
    let folder = env::var_os("LIBTORCH").map(PathBuf::from).ok_or("LIBTORCH is not set")?;
    let version_file = folder.join("build-version");
    println!("cargo:rerun-if-changed={}", version_file.display());
    let found = fs::read_to_string(&version_file)
        .map_err(|why| format!("LIBTORCH: no libtorch: {}: {why}", version_file.display()))?;
    // A build says 2.11.0, 2.11.0+cpu or 2.11.0+cu130.
    let number = found.trim().split('+').next().unwrap_or_default();
    if number != TORCH_VERSION {
        return Err(format!(
            "libtorch {TORCH_VERSION} is wanted, {} holds {}",
            folder.display(),
            found.trim()
        ));
    }
    let header = folder.join("include/torch/csrc/autograd/autograd.h");
    if !header.exists() {
        return Err(format!("libtorch's headers are missing: no {}", header.display()));
    }
    Ok(folder)
}

fn compile(libtorch: &Path) {
    let abi = env::var("LIBTORCH_CXX11_ABI").unwrap_or_else(|_| "1".into());
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .pic(true)
        .warnings(false)
        .include("csrc")
        .include(libtorch.join("include"))
        .define("_GLIBCXX_USE_CXX11_ABI", abi.as_str())
        .files(SOURCES)
        .compile("c10d_shim");
}
