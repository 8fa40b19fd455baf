//! Certificates for tests, made while they run.

use std::{fs, net::IpAddr, path::PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

/// An authority with a directory for its certificates; deleted when dropped.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: TempDir,
}

/// A certificate and its key, as PEM files.
pub(crate) struct Signed {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "an authority for tests");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, directory }
    }

    /// A file of the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The authority's own certificate.
    pub(crate) fn ca(&self) -> String {
        self.path("ca.pem").to_str().unwrap().to_owned()
    }

    /// A certificate with this common name, for these names and addresses.
    pub(crate) fn sign(&self, common_name: &str, names: &[&str]) -> Signed {
        let (addresses, names): (Vec<&str>, Vec<&str>) =
            names.iter().partition(|name| name.parse::<IpAddr>().is_ok());
        let mut params =
            CertificateParams::new(names.into_iter().map(str::to_owned).collect::<Vec<_>>()).unwrap();
        let addresses = addresses.iter().map(|text| rcgen::SanType::IpAddress(text.parse().unwrap()));
        params.subject_alt_names.extend(addresses);
        params.distinguished_name.push(DnType::CommonName, common_name);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let signed = Signed {
            cert: self.path(&format!("{common_name}.pem")),
            key: self.path(&format!("{common_name}.key")),
        };
        fs::write(&signed.cert, cert.pem()).unwrap();
        fs::write(&signed.key, key.serialize_pem()).unwrap();
        signed
    }
}

impl Signed {
    pub(crate) fn cert(&self) -> &str {
        self.cert.to_str().unwrap()
    }

    pub(crate) fn key(&self) -> &str {
        self.key.to_str().unwrap()
    }
}
