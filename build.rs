//! Compiles the wire schema, embeds the shipped plug-ins, links libtorch so that it may be missing.

#[path = "build/libtorch.rs"]
mod libtorch;
#[path = "build/plugins.rs"]
mod plugins;
#[path = "build/schema.rs"]
mod schema;

fn main() {
    schema::compile();
    plugins::embed();
    libtorch::link_weakly();
}
