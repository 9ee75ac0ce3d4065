//! Files that are no plug-ins, and plug-ins of the wrong kind.

use std::path::PathBuf;

use insta::assert_snapshot;
use pstrain::job::PluginRef;
use pstrain::plugin::{Dataset, Host, PluginErrorKind, World};
use serde_json::json;

use super::{EVALUATION, EVIL, HOST, LIMITS, RAW, any_folder, guest, told};

fn load_error(bytes: &[u8]) -> String {
    told(&HOST.load("thing.wasm", bytes).expect_err("no plug-in"))
}

const CORE: &[u8] = b"\0asm\x01\0\0\0";
const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";

#[test]
fn what_is_no_webassembly_is_told_apart() {
    assert_snapshot!(load_error(b""), @r"
    `thing.wasm` is not a plug-in that can be used here: the file is empty
      hint: `pstrain plugin new` and `pstrain plugin build` make one
    ");
    assert_snapshot!(load_error(b"import torch\n"), @r"
    `thing.wasm` is not a plug-in that can be used here: it is not a WebAssembly file: it does not begin with `\0asm`
      hint: `pstrain plugin new` and `pstrain plugin build` make one
    ");
    assert_snapshot!(load_error(b"\0asm\x09\0\0\0"), @r"
    `thing.wasm` is not a plug-in that can be used here: it is WebAssembly of a version that is not known here
      hint: `pstrain plugin new` and `pstrain plugin build` make one
    ");
}

#[test]
fn webassembly_that_exports_no_world_is_told_apart() {
    assert_snapshot!(load_error(CORE), @r"
    `thing.wasm` is not a plug-in that can be used here: it exports none of dataset, loss, raw-loss, metric of pstrain:plugin@0.2.0; it exports nothing
      hint: `pstrain plugin new` and `pstrain plugin build` make one
    ");
    assert_snapshot!(load_error(COMPONENT), @r"
    `thing.wasm` is not a plug-in that can be used here: it exports none of dataset, loss, raw-loss, metric of pstrain:plugin@0.2.0; it exports nothing
      hint: `pstrain plugin new` and `pstrain plugin build` make one
    ");
}

#[test]
fn a_file_that_is_cut_off_does_not_compile() {
    let whole = guest("evil");
    let error = HOST.load("cut.wasm", &whole[..whole.len() / 2]).unwrap_err().to_string();
    assert!(error.starts_with("`cut.wasm` is not a plug-in that can be used here: "), "{error}");
}

#[test]
fn a_file_that_is_missing_is_named() {
    let missing = PluginRef::File(PathBuf::from("nowhere/my_loss.wasm"));
    assert_snapshot!(told(&HOST.load_ref(&missing).unwrap_err()), @r"
    plug-in `nowhere/my_loss.wasm`: `load`: cannot read the file: No such file or directory (os error 2)
      hint: `pstrain plugin build` makes it
    ");
    let folder = PluginRef::File(PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    let error = told(&HOST.load_ref(&folder).unwrap_err());
    assert_snapshot!(error.replace(env!("CARGO_MANIFEST_DIR"), "FOLDER"), @r"
    plug-in `FOLDER`: `load`: it is not a regular file
      hint: name the .wasm file itself
    ");
}

#[test]
fn a_name_that_is_not_shipped_is_told_with_those_that_are() {
    assert_snapshot!(told(&HOST.load_ref(&PluginRef::Builtin("mnist".into())).unwrap_err()), @r"
    plug-in `mnist`: `load`: no plug-in of this name is shipped
      hint: these are: bags, bce_with_logits, bpr, clicks, criteo, cross_entropy, csv, focal, huber, idx, images, kl_div, mse, nll, npy, parquet, synthetic, text, triplet; a file is named by its path, ending in .wasm
    ");
}

#[test]
fn a_cache_that_cannot_be_written_is_done_without() {
    let host = Host::new(Some("/proc/nowhere".as_ref())).unwrap();
    assert!(host.load("evil", &guest("evil")).is_ok());
}

#[test]
fn the_worlds_of_a_plugin_are_known() {
    assert_eq!((EVIL.name(), EVIL.worlds()), ("evil", &[World::Dataset, World::Loss][..]));
    assert_eq!(RAW.worlds(), [World::RawLoss]);
}

#[test]
fn what_this_host_does_not_have_may_be_imported_but_not_called() {
    assert_eq!(EVIL.missing_imports(), ["pstrain:testing/telephone"]);
    let mut dataset = super::dataset("telephone 110").unwrap();
    let error = dataset.batch(&[0], EVALUATION).unwrap_err();
    assert_eq!(error.kind, PluginErrorKind::Denied);
    assert_snapshot!(told(&error), @"plug-in `evil`: `batch` reached for what it may not: it called pstrain:testing/telephone.call, which plug-ins do not have");
}

#[test]
fn a_plugin_of_the_wrong_kind_is_told_what_it_is() {
    let opened = Dataset::open(&RAW, &json!({}), any_folder(), LIMITS, None);
    assert_snapshot!(told(&opened.err().unwrap()), @"`raw` is not a plug-in that can be used here: it is a raw loss, not a dataset");
}

#[test]
fn a_plugin_for_another_version_of_the_interface_is_refused() {
    let mut other = guest("raw");
    let (from, to) = (b"@0.2.0", b"@0.3.0");
    for at in 0..other.len() - from.len() {
        if other[at..].starts_with(from) {
            other[at..at + to.len()].copy_from_slice(to);
        }
    }
    assert_snapshot!(load_error(&other), @r"
    `thing.wasm` is not a plug-in that can be used here: it is made for pstrain:plugin@0.3.0; this pstrain has pstrain:plugin@0.2.0
      hint: `pstrain plugin new` and `pstrain plugin build` make one
    ");
}
