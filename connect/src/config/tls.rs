//! TLS to PostgreSQL by rustls: which certificates are believed, and our own.
//!
//! | `sslmode` | encrypted | the server's certificate |
//! |---|---|---|
//! | absent, no files | no | |
//! | absent, with a CA or a client certificate | always | as `verify-full` |
//! | `disable` | never | |
//! | `prefer` | when the server can | not checked |
//! | `require` | always | not checked without a CA, as `verify-full` with one |
//! | `verify-ca` | always | signed by the CA, under any name |
//! | `verify-full` | always | signed by the CA (without one: by an authority of this system), and for this host |

use std::{path::Path, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{
        WebPkiSupportedAlgorithms, ring::default_provider, verify_tls12_signature, verify_tls13_signature,
    },
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};

/// The checks of the server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Nothing: any server is believed. Encrypts against those who only listen.
    Anyone,
    /// Signed by one of these, under any name.
    SignedBy(Vec<CertificateDer<'static>>),
    /// Signed by one of these, for the host that was asked for.
    Host(Vec<CertificateDer<'static>>),
    /// Signed by an authority that this system trusts, for the host that was asked for.
    HostBySystem,
}

/// A client certificate with its chain, and its key.
pub(crate) type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// The configuration of rustls for connections to PostgreSQL.
pub(crate) fn client_config(trust: Trust, identity: Option<Identity>) -> Result<ClientConfig, String> {
    let provider = Arc::new(default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let algorithms = provider.signature_verification_algorithms;
    let any_name = |signed_by| Arc::new(AnyName { signed_by, algorithms });
    let builder = match trust {
        Trust::Anyone => builder.dangerous().with_custom_certificate_verifier(any_name(None)),
        Trust::SignedBy(certificates) => {
            let roots = Arc::new(roots(certificates)?);
            let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
            let verifier = verifier.map_err(|error| error.to_string())?;
            builder.dangerous().with_custom_certificate_verifier(any_name(Some(verifier)))
        }
        Trust::Host(certificates) => builder.with_root_certificates(roots(certificates)?),
        Trust::HostBySystem => builder.with_root_certificates(system_roots()?),
    };
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => builder
            .with_client_auth_cert(chain, key)
            .map_err(|error| format!("the client certificate and its key do not go together: {error}"))?,
    };
    // PostgreSQL 17 and newer ask for it when TLS comes first (sslnegotiation=direct).
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    Ok(config)
}

fn roots(certificates: Vec<CertificateDer<'static>>) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|error| format!("a certificate in it cannot be used: {error}"))?;
    }
    Ok(roots)
}

fn system_roots() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        return Err("this system has no certificate authorities; name a file with one".to_owned());
    }
    Ok(roots)
}

/// The certificates of a PEM file: at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let text = std::fs::read(path).map_err(|error| format!("read {}: {error}", path.display()))?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(format!("{} holds no certificate in PEM form", path.display())),
    }
}

/// The private key of a PEM file; never shown in an error.
pub(crate) fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let text = std::fs::read(path).map_err(|error| format!("read {}: {error}", path.display()))?;
    PrivateKeyDer::from_pem_slice(&text)
        .map_err(|_| format!("{} holds no private key in PEM form that is not encrypted", path.display()))
}

/// Checks all but the name, or nothing: `require` without a CA, as everywhere with PostgreSQL.
#[derive(Debug)]
struct AnyName {
    signed_by: Option<Arc<WebPkiServerVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(signed_by) = &self.signed_by else { return Ok(ServerCertVerified::assertion()) };
        match signed_by.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is looked at last: all else was right.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            checked => checked,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
