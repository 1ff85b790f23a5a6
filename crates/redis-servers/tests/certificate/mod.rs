//! What TLS needs.

use embar_redis_servers::TlsFiles;
use std::fs;
use std::path::Path;

/// A certificate that signs itself, which is its own authority.
pub fn certificate(dir: &Path) -> TlsFiles {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let files = TlsFiles {
        cert: dir.join("cert.pem"),
        key: dir.join("key.pem"),
        ca: dir.join("cert.pem"),
    };
    fs::write(&files.cert, made.cert.pem()).unwrap();
    fs::write(&files.key, made.signing_key.serialize_pem()).unwrap();
    files
}
