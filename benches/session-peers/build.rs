//! Compiles the messages in `proto`: for our sessions, for gRPC, and for Cap'n Proto.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    embar_build::compile("proto", "peers")?;
    embar_build::compile_services("proto", "calls")?;
    let descriptors = protox::compile(["peers.proto", "calls.proto"], ["proto"])?;
    // Apart from what `embar_build` makes of the same file.
    let grpc = PathBuf::from(std::env::var("OUT_DIR")?).join("grpc");
    fs::create_dir_all(&grpc)?;
    let tonic = tonic_prost_build::configure().out_dir(grpc);
    // Payloads are not copied out of the buffer that they arrived in.
    tonic.bytes(".").compile_fds(descriptors)?;
    println!("cargo::rerun-if-changed=proto/peers.capnp");
    capnpc::CompilerCommand::new()
        .src_prefix("proto")
        .file("proto/peers.capnp")
        .default_parent_module(vec!["peers".into(), "capnp_rpc".into()])
        .run()
        .map_err(|error| format!("apt-get install capnproto libcapnp-dev: {error}"))?;
    Ok(())
}
