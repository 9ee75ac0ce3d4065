//! The choice: `rustup`, the target of the rustc on the PATH, which rustup fetches where it is missing; or `debian`, for
//! closed networks: Debian's rustc-web, rust-web-src, lld-19 and wasi-libc, with which cargo builds std itself.
//! PSTRAIN_WASM_TOOLCHAIN=rustup|debian chooses by hand.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::child;

pub const TARGET: &str = "wasm32-wasip1";
/// Where the network is closed, rustup's download may hang instead of failing.
const RUSTUP_LIMIT: Duration = Duration::from_secs(120);
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_LIBC: &str = "/usr/lib/wasm32-wasi";

/// Why there is no toolchain, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{what}\n  hint: {hint}")]
pub struct NoToolchain {
    pub what: String,
    pub hint: String,
    /// Debian's packages that would make one.
    pub packages: Vec<&'static str>,
}

/// A compiler and what it needs to be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Toolchain {
    /// The rustc on the PATH has the target.
    Installed,
    /// Debian's packages, for closed networks: cargo builds std itself.
    Debian,
}

impl Toolchain {
    /// Finds a toolchain for the crate in `dir`, and has rustup fetch the target if that is all that is missing.
    ///
    /// # Errors
    /// Tells what to install.
    pub fn find(dir: &Path) -> Result<Self, NoToolchain> {
        Toolchain::choose(|| has_target(dir) || add_target(dir))
    }

    /// Finds one that is there already: nothing is fetched.
    ///
    /// # Errors
    /// Tells what to install.
    pub fn here(dir: &Path) -> Result<Self, NoToolchain> {
        Toolchain::choose(|| has_target(dir))
    }

    fn choose(has_target: impl Fn() -> bool) -> Result<Self, NoToolchain> {
        let wanted = std::env::var("PSTRAIN_WASM_TOOLCHAIN").ok();
        let missing = debian_missing(Path::new("/"));
        match wanted.as_deref() {
            None | Some("rustup") if has_target() => Ok(Toolchain::Installed),
            None | Some("debian") if missing.is_empty() => Ok(Toolchain::Debian),
            None | Some("debian") => Err(nothing(missing)),
            Some("rustup") => Err(nothing(Vec::new())),
            Some(other) => Err(NoToolchain {
                what: format!("PSTRAIN_WASM_TOOLCHAIN = `{other}` is not a toolchain"),
                hint: "use `rustup` or `debian`".into(),
                packages: Vec::new(),
            }),
        }
    }

    /// A cargo that builds for [`TARGET`] with it.
    pub fn cargo(self, dir: &Path) -> Command {
        let mut cargo = child::cargo(dir);
        cargo.args(["build", "--release", "--target", TARGET]);
        let mut flags = String::from("-Ctarget-feature=+simd128");
        if self == Toolchain::Debian {
            cargo.args(["-Z", "build-std=std,panic_abort"]);
            cargo.env("RUSTC", DEBIAN_RUSTC).env("RUSTC_BOOTSTRAP", "1");
            cargo.env("CARGO_TARGET_WASM32_WASIP1_LINKER", "wasm-ld-19");
            flags += &format!(
                " -Clink-self-contained=no -Lnative={DEBIAN_LIBC} -Clink-arg={DEBIAN_LIBC}/crt1-reactor.o \
                 -Clink-arg=--export=_initialize"
            );
        }
        cargo.env("CARGO_TARGET_WASM32_WASIP1_RUSTFLAGS", flags);
        cargo
    }

    /// For people.
    pub fn describe(self, dir: &Path) -> String {
        let (rustc, how) = match self {
            Toolchain::Installed => ("rustc", "installed target"),
            Toolchain::Debian => (DEBIAN_RUSTC, "std built by cargo, Debian's wasi-libc and lld"),
        };
        let mut version = child::clean(rustc);
        version.arg("--version").current_dir(dir);
        let version = child::answer(version).unwrap_or_else(|| "rustc".into());
        let short = version.split(" (").next().unwrap_or(&version);
        format!("{short}, {TARGET}: {how}")
    }
}

fn has_target(dir: &Path) -> bool {
    let mut rustc = child::clean("rustc");
    rustc.args(["--print", "target-libdir", "--target", TARGET]).current_dir(dir);
    // It prints the folder's name whether or not the target is installed.
    child::answer(rustc).is_some_and(|libdir| Path::new(&libdir).is_dir())
}

fn add_target(dir: &Path) -> bool {
    let mut rustup = child::clean("rustup");
    rustup.args(["target", "add", TARGET]).current_dir(dir);
    let added = child::output_within(rustup, RUSTUP_LIMIT);
    matches!(added, Ok(Some(output)) if output.status.success()) && has_target(dir)
}

/// Debian's packages that are not there, looked for below `root`.
fn debian_missing(root: &Path) -> Vec<&'static str> {
    const FILES: [(&str, &str); 3] = [
        ("rust-web-src", "usr/lib/rustlib/src/rust/library/std/Cargo.toml"),
        ("lld-19", "usr/bin/wasm-ld-19"),
        ("wasi-libc", "usr/lib/wasm32-wasi/crt1-reactor.o"),
    ];
    // Debian 12 has an old rustc beside rustc-web, under the same name.
    let mut rustc = child::clean(root.join("usr/bin/rustc"));
    rustc.arg("--version");
    let new_enough =
        child::answer(rustc).and_then(|version| minor(&version)).is_some_and(|minor| minor >= 95);
    let mut missing = if new_enough { vec![] } else { vec!["rustc-web"] };
    missing.extend(FILES.iter().filter(|(_, file)| !root.join(file).exists()).map(|(package, _)| package));
    missing
}

/// 96 of `rustc 1.96.0 (ac68faa20 2026-05-25)`.
fn minor(version: &str) -> Option<u32> {
    version.strip_prefix("rustc 1.")?.split('.').next()?.parse().ok()
}

fn nothing(packages: Vec<&'static str>) -> NoToolchain {
    let mut hint = format!("run `rustup target add {TARGET}`");
    if !packages.is_empty() {
        let packages = packages.join(" ");
        hint += &format!("; without access to rustup's servers, on Debian 12: `apt-get install {packages}`");
    }
    NoToolchain { what: format!("there is no Rust toolchain for {TARGET}"), hint, packages }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_only_the_packages_that_are_missing() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(debian_missing(root.path()), ["rustc-web", "rust-web-src", "lld-19", "wasi-libc"]);
        let lld = root.path().join("usr/bin/wasm-ld-19");
        std::fs::create_dir_all(lld.parent().unwrap()).unwrap();
        std::fs::write(lld, "").unwrap();
        let missing = debian_missing(root.path());
        assert_eq!(missing, ["rustc-web", "rust-web-src", "wasi-libc"]);
        assert_eq!(
            nothing(missing).to_string(),
            "there is no Rust toolchain for wasm32-wasip1\n  hint: run `rustup target add wasm32-wasip1`; without \
             access to rustup's servers, on Debian 12: `apt-get install rustc-web rust-web-src wasi-libc`"
        );
    }

    #[test]
    fn a_rustc_tells_its_version() {
        assert_eq!(minor("rustc 1.96.0 (ac68faa20 2026-05-25) (built from a source tarball)"), Some(96));
        assert_eq!(minor("rustc 1.63.0"), Some(63));
        assert_eq!(minor("something else"), None);
    }
}
