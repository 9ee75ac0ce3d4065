//! Compiles the wire schema, embeds the shipped plug-ins, links libtorch so that it may be missing, tells the commit.

#[path = "build/libtorch.rs"]
mod libtorch;
#[path = "build/plugins.rs"]
mod plugins;
#[path = "build/schema.rs"]
mod schema;
#[path = "build/version.rs"]
mod version;

fn main() {
    schema::compile();
    plugins::embed();
    libtorch::link_weakly();
    version::tell();
}
