//! TLS by rustls: the system's trust store or a given CA, client certificates, and `--insecure` for the brave.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::{Error, ErrorKind};

/// How to meet a TLS server.
#[derive(Clone, Debug, Default)]
pub struct TlsOptions {
    /// PEM file of the CA that signed the server's certificate; the system's store when `None`.
    pub ca: Option<PathBuf>,
    /// PEM files of our own certificate and key, where the server wants them (`tls-auth-clients yes`, the default).
    pub cert_and_key: Option<(PathBuf, PathBuf)>,
    /// Accept any certificate.
    pub insecure: bool,
    /// Name to expect in the certificate, when it differs from the host dialled.
    pub server_name: Option<String>,
}

impl TlsOptions {
    /// The same for rustls. Fails when a file is no PEM, or the key does not fit.
    pub fn client_config(&self) -> Result<Arc<ClientConfig>, Error> {
        let file = |path: &PathBuf, e: &dyn std::fmt::Display| {
            Error::new(ErrorKind::Tls, format!("{}: {e}; a PEM file was expected", path.display()))
        };
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(path) => {
                let certs = CertificateDer::pem_file_iter(path).map_err(|e| file(path, &e))?;
                for cert in certs {
                    roots.add(cert.map_err(|e| file(path, &e))?).map_err(|e| file(path, &e))?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|e| Error::new(ErrorKind::Tls, e.to_string()))?;
        let builder = if self.insecure {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyCertificate))
        } else {
            builder.with_root_certificates(roots)
        };
        let config = match &self.cert_and_key {
            Some((cert, key)) => {
                let chain = CertificateDer::pem_file_iter(cert)
                    .map_err(|e| file(cert, &e))?
                    .collect::<Result<Vec<_>, _>>()
                    .map_err(|e| file(cert, &e))?;
                let key = PrivateKeyDer::from_pem_file(key).map_err(|e| file(key, &e))?;
                builder.with_client_auth_cert(chain, key).map_err(|e| Error::new(ErrorKind::Tls, e.to_string()))?
            }
            None => builder.with_no_client_auth(),
        };
        Ok(Arc::new(config))
    }
}

/// What is wrong, of an error with the kind `InvalidData`: rustls puts its own error inside.
pub(crate) fn reason(e: &io::Error) -> String {
    use rustls::{AlertDescription, CertificateError as Certificate, Error::*};
    let Some(of_rustls) = e.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) else {
        return format!("TLS: {e}");
    };
    match of_rustls {
        InvalidMessage(_) => "the answer is not TLS; a plain port wants redis://".into(),
        InvalidCertificate(Certificate::UnknownIssuer) => {
            format!("the server's certificate is not trusted here ({of_rustls}); give its CA with --cacert FILE")
        }
        InvalidCertificate(Certificate::NotValidForName | Certificate::NotValidForNameContext { .. }) => {
            format!("TLS: {of_rustls}; give a name that it is valid for with --server-name NAME")
        }
        AlertReceived(AlertDescription::CertificateRequired) => {
            "the server wants a client certificate; give it with --cert FILE --key FILE".into()
        }
        other => format!("TLS: {other}"),
    }
}

/// `--insecure`: signatures are checked, identity is not.
#[derive(Debug)]
struct AnyCertificate;

impl rustls::client::danger::ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &rustls::pki_types::ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = rustls::crypto::ring::default_provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::ServerName;
    use rustls::{AlertDescription, CertificateError, InvalidMessage};

    use super::*;

    #[test]
    fn the_reason_follows_from_the_kind_of_the_error_and_not_from_its_words() {
        let said = |e: rustls::Error| reason(&io::Error::new(io::ErrorKind::InvalidData, e));
        for (error, expected) in [
            (InvalidMessage::InvalidContentType.into(), "a plain port wants redis://"),
            (CertificateError::UnknownIssuer.into(), "--cacert FILE"),
            (
                CertificateError::NotValidForNameContext {
                    expected: ServerName::try_from("10.0.0.1").unwrap(),
                    presented: vec!["a.example".into(), "b.example".into()],
                }
                .into(),
                "a.example or b.example; give a name that it is valid for with --server-name NAME",
            ),
            (rustls::Error::AlertReceived(AlertDescription::CertificateRequired), "--cert FILE --key FILE"),
            (rustls::Error::General("CertificateRequired".into()), "TLS: unexpected error: CertificateRequired"),
        ] {
            let text = said(error);
            assert!(text.contains(expected), "{text}");
        }
        // Not from rustls at all, and with the words of one that is.
        let other = io::Error::new(io::ErrorKind::InvalidData, "received corrupt message of type UnknownIssuer");
        assert_eq!(reason(&other), format!("TLS: {other}"));
    }
}
