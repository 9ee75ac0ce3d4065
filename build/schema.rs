//! The wire schema to Rust. Needs the `capnp` compiler, which `make setup` installs.

/// Into `OUT_DIR/{value,join,peer}_capnp.rs`, which `src/rpc/wire.rs` includes.
pub fn compile() {
    let files = ["schema/value.capnp", "schema/join.capnp", "schema/peer.capnp"];
    let mut compiler = capnpc::CompilerCommand::new();
    compiler.src_prefix("schema").default_parent_module(vec!["rpc".into(), "wire".into()]);
    for file in files {
        println!("cargo::rerun-if-changed={file}");
        compiler.file(file);
    }
    if let Err(error) = compiler.run() {
        println!("cargo::error=the schema did not compile: {error}");
        println!("cargo::error=hint: `make setup` installs the `capnp` compiler");
    }
}
