//! Who vouches for servers and clients of the tests.

use std::fs;
use std::path::PathBuf;

use embar_redis_servers::TlsFiles;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    dir: TempDir,
}

impl Authority {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // So that no two have the same name: who looks for one by its name finds the right one.
        let name = dir.path().display().to_string();
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&key).expect("it signs itself");
        fs::write(dir.path().join("ca.pem"), certificate.pem()).expect("room on the disk");
        let issuer = Issuer::new(params, key);
        Self { issuer, dir }
    }

    /// Its own certificate.
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// A certificate and its key, for these names and addresses.
    pub fn certify(&self, names: &[&str]) -> TlsFiles {
        let key = KeyPair::generate().expect("a key");
        let names = names.iter().map(ToString::to_string);
        let params = CertificateParams::new(names.collect::<Vec<_>>()).expect("good names");
        let certificate = params.signed_by(&key, &self.issuer).expect("it is signed");
        let number = fs::read_dir(self.dir.path()).map_or(0, Iterator::count);
        let file = |what| self.dir.path().join(format!("{what}-{number}.pem"));
        let files = TlsFiles {
            cert: file("cert"),
            key: file("key"),
            ca: self.file(),
        };
        fs::write(&files.cert, certificate.pem()).expect("room on the disk");
        fs::write(&files.key, key.serialize_pem()).expect("room on the disk");
        files
    }
}
