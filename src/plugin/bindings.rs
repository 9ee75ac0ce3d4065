//! Rust types for `plugins/wit`, made by wasmtime's macro.
//!
//! One world that imports and exports everything a plug-in may: each component uses the part it has.
//! `output.emit` is bound by hand in `emit.rs`, because the macro would copy the bytes once more.

#![allow(clippy::all, reason = "generated")]

wasmtime::component::bindgen!({
    path: "plugins/wit",
    inline: "
        package pstrain:host;
        world everything {
            import pstrain:plugin/log@0.2.0;
            import pstrain:plugin/output@0.2.0;
            import pstrain:plugin/tensors@0.2.0;
            export pstrain:plugin/dataset@0.2.0;
            export pstrain:plugin/loss@0.2.0;
            export pstrain:plugin/loss-weight@0.2.0;
            export pstrain:plugin/raw-loss@0.2.0;
            export pstrain:plugin/metric@0.2.0;
        }
    ",
    world: "pstrain:host/everything",
    imports: { default: trappable },
    with: { "pstrain:plugin/tensors.tensor": tch::Tensor },
});

pub use self::pstrain::plugin::{log, tensors, types};
pub use exports::pstrain::plugin::{dataset, loss, loss_weight, metric, raw_loss};

/// The package's name and version, as they stand in the names of imports and exports.
pub const PACKAGE: &str = "pstrain:plugin";
pub const VERSION: &str = "0.2.0";
