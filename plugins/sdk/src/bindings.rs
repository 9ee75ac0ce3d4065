//! What wit-bindgen makes of `wit/plugin.wit`: one module for each world, over shared types.
//!
//! `pub_export_macro` keeps the exports of a world out of a plug-in until one of the `export_..!` macros asks
//! for them, so a single crate can serve all of them.

#[allow(clippy::all, missing_docs)]
pub mod dataset {
    wit_bindgen::generate!({
        path: "../wit",
        world: "dataset-plugin",
        generate_unused_types: true,
        pub_export_macro: true,
        export_macro_name: "export_dataset_world",
        default_bindings_module: "pstrain_plugin::bindings::dataset",
    });
}

#[allow(clippy::all, missing_docs)]
pub mod loss {
    wit_bindgen::generate!({
        path: "../wit",
        world: "weighed-loss-plugin",
        pub_export_macro: true,
        export_macro_name: "export_loss_world",
        default_bindings_module: "pstrain_plugin::bindings::loss",
        with: {
            "pstrain:plugin/types@0.2.0": crate::bindings::dataset::pstrain::plugin::types,
            "pstrain:plugin/log@0.2.0": crate::bindings::dataset::pstrain::plugin::log,
        },
    });
}

#[allow(clippy::all, missing_docs)]
pub mod raw_loss {
    wit_bindgen::generate!({
        path: "../wit",
        world: "raw-loss-plugin",
        pub_export_macro: true,
        export_macro_name: "export_raw_loss_world",
        default_bindings_module: "pstrain_plugin::bindings::raw_loss",
        with: {
            "pstrain:plugin/types@0.2.0": crate::bindings::dataset::pstrain::plugin::types,
            "pstrain:plugin/log@0.2.0": crate::bindings::dataset::pstrain::plugin::log,
        },
    });
}

#[allow(clippy::all, missing_docs)]
pub mod metric {
    wit_bindgen::generate!({
        path: "../wit",
        world: "metric-plugin",
        pub_export_macro: true,
        export_macro_name: "export_metric_world",
        default_bindings_module: "pstrain_plugin::bindings::metric",
        with: {
            "pstrain:plugin/types@0.2.0": crate::bindings::dataset::pstrain::plugin::types,
            "pstrain:plugin/log@0.2.0": crate::bindings::dataset::pstrain::plugin::log,
        },
    });
}
