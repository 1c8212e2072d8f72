//! TLS towards clients: the certificate and key of the settings, and whether their files were renewed.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::Config;
use crate::error::{Error, TlsFileError};

/// What files the settings name for TLS, with a digest of what is in them; for none that cannot be read.
pub fn tls_files(config: &Config) -> Vec<(&'static str, u64)> {
    let files =
        [("tls_cert", &config.tls_cert), ("tls_key", &config.tls_key), ("tls_client_ca", &config.tls_client_ca)];
    let digest = |path: &PathBuf| {
        let mut hasher = DefaultHasher::new();
        std::fs::read(path).ok()?.hash(&mut hasher);
        Some(hasher.finish())
    };
    files.into_iter().filter_map(|(name, path)| Some((name, digest(path.as_ref()?)?))).collect()
}

/// What clients are served with; `None` in the clear.
pub fn server_tls(config: &Config) -> Result<Option<Arc<rustls::ServerConfig>>, Error> {
    let (Some(cert), Some(key)) = (&config.tls_cert, &config.tls_key) else { return Ok(None) };
    let pem = |path: &PathBuf| CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let of = |path: &PathBuf, why| Error::TlsFile { path: path.clone(), why };
    let chain = pem(cert).map_err(|e| of(cert, TlsFileError::NoCertificate(e)))?;
    let key_der = PrivateKeyDer::from_pem_file(key).map_err(|e| of(key, TlsFileError::NoKey(e)))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(Error::Tls)?;
    let builder = match &config.tls_client_ca {
        Some(ca) => {
            let mut roots = rustls::RootCertStore::empty();
            for cert in pem(ca).map_err(|e| of(ca, TlsFileError::NoCertificate(e)))? {
                roots.add(cert).map_err(|e| of(ca, e.into()))?;
            }
            let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().map_err(|e| of(ca, e.into()))?)
        }
        None => builder.with_no_client_auth(),
    };
    Ok(Some(Arc::new(builder.with_single_cert(chain, key_der).map_err(|e| of(cert, e.into()))?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renewed_certificate_is_noticed_under_its_old_name() {
        let path = std::env::temp_dir().join(format!("unslow-gateway-tls-{}.pem", std::process::id()));
        let config =
            Config { tls_cert: Some(path.clone()), tls_key: Some("/no/such/file".into()), ..Config::default() };
        std::fs::write(&path, "old").expect("a file");
        let old = tls_files(&config);
        assert_eq!(old.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["tls_cert"]);
        assert_eq!(tls_files(&config), old);
        std::fs::write(&path, "renewed").expect("a file");
        assert_ne!(tls_files(&config), old);
        std::fs::remove_file(&path).expect("it is there");
    }
}
