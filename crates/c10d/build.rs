//! Compiles the C++ shim against the libtorch in `$LIBTORCH`, after checking that it is the one tch takes.

use std::path::{Path, PathBuf};
use std::{env, fs, process};

/// tch 0.24.0 takes this version and no other; the shim uses headers that change between versions.
const TORCH_VERSION: &str = "2.11.0";

const SOURCES: [&str; 12] = [
    "csrc/autocast.cpp",
    "csrc/backend.cpp",
    "csrc/comm_hooks.cpp",
    "csrc/engine.cpp",
    "csrc/group.cpp",
    "csrc/library.cpp",
    "csrc/recompute.cpp",
    "csrc/reducer.cpp",
    "csrc/replicas.cpp",
    "csrc/script.cpp",
    "csrc/store.cpp",
    "csrc/work.cpp",
];

fn main() {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    println!("cargo:rerun-if-changed=csrc");
    println!("cargo:rustc-env=C10D_TORCH_VERSION={TORCH_VERSION}");
    let libtorch = libtorch_folder().unwrap_or_else(|why| {
        println!("cargo:warning={why}");
        eprintln!(
            "error: {why}\n  hint: `make setup` fetches libtorch {TORCH_VERSION} into .deps/; \
             or set LIBTORCH to a folder with include/, lib/ and a file build-version holding {TORCH_VERSION}"
        );
        process::exit(1);
    });
    let shim = compile(&libtorch);
    // A library of its own: what a program links weakly (libtorch, so that it may be missing) must not be what tables of
    // C++ classes refer to, since such references are resolved to null for good.
    println!("cargo:rustc-link-search=native={}", shim.parent().unwrap_or(Path::new(".")).display());
    println!("cargo:rustc-link-lib=dylib=c10d_shim");
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", shim.parent().unwrap_or(Path::new(".")).display());
    // For packages above: `DEP_C10D_SHIM_LIBRARY` in their build scripts.
    println!("cargo:library={}", shim.display());
    println!("cargo:rustc-link-search=native={}", libtorch.join("lib").display());
    println!("cargo:rustc-link-lib=dylib=torch_cpu");
    println!("cargo:rustc-link-lib=dylib=c10");
    let run_path = run_path(&libtorch);
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", run_path.display());
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

/// Where scripts/with-libtorch finds it for tests.
fn beside_programs(shim: &Path) {
    // It lies in PROFILE/build/PACKAGE/out.
    let profile = shim.ancestors().nth(4).expect("cargo's folders");
    // Programs that run with the one before keep it: written in place it would change under them.
    let part = profile.join(format!(".libc10d_shim.so.{}", process::id()));
    let copied = fs::copy(shim, &part).and_then(|_| fs::rename(&part, profile.join("libc10d_shim.so")));
    if let Err(error) = copied {
        eprintln!("error: {}: {error}", profile.display());
        process::exit(1);
    }
}

/// A source of all sources: what takes time are libtorch's headers, which are read once so, and not twelve times.
fn together(out: &Path) -> PathBuf {
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let lines = SOURCES.map(|source| format!("#include \"{}\"\n", package.join(source).display()));
    let file = out.join("shim.cpp");
    if let Err(error) = fs::write(&file, lines.concat()) {
        eprintln!("error: {}: {error}", file.display());
        process::exit(1);
    }
    file
}

/// The shim as a shared library.
fn compile(libtorch: &Path) -> PathBuf {
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let abi = env::var("LIBTORCH_CXX11_ABI").unwrap_or_else(|_| "1".into());
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        .pic(true)
        .warnings(false)
        .include("csrc")
        // The wheel has no headers of Gloo; these say as much of it as c10d's headers need.
        .include("csrc/gloo_forward")
        .include(libtorch.join("include"))
        .include(libtorch.join("include/torch/csrc/api/include"))
        .define("_GLIBCXX_USE_CXX11_ABI", abi.as_str())
        .file(together(&out));
    let objects = build.compile_intermediates();
    let shim = out.join("libc10d_shim.so");
    let mut link = build.get_compiler().to_command();
    link.args(["-shared", "-Wl,-soname,libc10d_shim.so,--strip-debug", "-o"]).arg(&shim).args(objects);
    link.arg("-L").arg(libtorch.join("lib")).args(["-ltorch_cpu", "-lc10"]);
    if !link.status().is_ok_and(|status| status.success()) {
        eprintln!("error: {link:?} failed");
        process::exit(1);
    }
    beside_programs(&shim);
    shim
}
