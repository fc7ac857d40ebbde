//! The authority and the certificates of the servers. Nothing outside this file names `rcgen`.

use std::path::Path;

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use time::{Duration, OffsetDateTime};

use super::folder::AuthFolder;
use super::registry::CertificateRecord;
use crate::exit::{Exit, ExitContext as _};
use crate::launch::keys::{ensure_secret, write_secret};

/// Time for which a certificate is valid.
const VALID: Duration = Duration::days(398);
/// Time before its end at which a certificate is made anew.
const RENEWED_BEFORE: Duration = Duration::days(60);
/// Time for which the authority is valid.
const AUTHORITY_VALID: Duration = Duration::days(10 * 365);
/// Names of a server for clients that reach it on its own machine, or by a forwarded port (`kubectl port-forward`).
const OWN_NAMES: [&str; 2] = ["localhost", "127.0.0.1"];
/// Time by which the clocks of two hosts may differ.
const CLOCKS: Duration = Duration::hours(1);

fn named(common_name: &str, from: OffsetDateTime, valid: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    params.distinguished_name = name;
    params.not_before = from - CLOCKS;
    params.not_after = from + valid;
    params
}

fn authority(from: OffsetDateTime) -> CertificateParams {
    let mut params = named("Nexus bus", from, AUTHORITY_VALID);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

/// Reads the key at `path`, and makes it first if it is missing.
fn ensure_key(path: &Path) -> Result<KeyPair> {
    let made = ensure_secret(path, |path| {
        let key = KeyPair::generate().map_err(std::io::Error::other)?;
        write_secret(path, &key.serialize_pem())
    });
    made.with_context(|| format!("failed to create the key {}", path.display()))?;
    let text = std::fs::read_to_string(path).with_context(|| format!("failed to read the key {}", path.display()))?;
    KeyPair::from_pem(&text).with_context(|| format!("{} is not a key", path.display()))
}

/// Whether the certificates of `record` are to be made anew: they end soon, or have ended. `now` is in seconds since 1970.
pub fn is_due(record: &CertificateRecord, now: i64) -> bool {
    record.expires - RENEWED_BEFORE.whole_seconds() <= now
}

/// Makes the authority of `folder` if it has none, and certificates for the servers `hosts` and for clients, unless those
/// that are there are for the same hosts and valid for long enough. `now` is in seconds since 1970.
///
/// # Errors
/// Fails if a host is no name, or if a file cannot be read or written.
pub fn ensure(folder: &mut AuthFolder, hosts: &[String], now: i64) -> Result<()> {
    let at = OffsetDateTime::from_unix_timestamp(now).context("the clock is wrong")?;
    let tls = folder.path().join("tls");
    let lasts = |record: &CertificateRecord| !is_due(record, now);
    let known = folder.registry().certificates.as_ref();
    if known.is_some_and(|record| record.hosts == hosts && lasts(record)) && tls.join("server.pem").is_file() {
        return Ok(());
    }

    std::fs::create_dir_all(&tls).context("failed to create the directory of certificates")?;
    let key = ensure_key(&tls.join("ca.key"))?;
    ensure_secret(&tls.join("ca.pem"), |path| {
        let made = authority(at).self_signed(&key).map_err(std::io::Error::other)?;
        write_secret(path, &made.pem())
    })
    .context("failed to create the authority's certificate")?;

    // Other certificates depend on the authority's name and key alone.
    let issuer = Issuer::new(authority(at), key);
    let made = |name: &str, names: &[String], uses: &[ExtendedKeyUsagePurpose]| -> Result<()> {
        let key = ensure_key(&tls.join(format!("{name}.key")))?;
        let mut params = named(&format!("nexus {name}"), at, VALID);
        let read = CertificateParams::new(names).with_context(|| format!("--host {}", hosts.join(", ")));
        params.subject_alt_names = read.exit(Exit::Usage)?.subject_alt_names;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = uses.to_vec();
        params.use_authority_key_identifier_extension = true;
        let signed = params
            .signed_by(&key, &issuer)
            .context("failed to sign a certificate")?;
        write_secret(&tls.join(format!("{name}.pem")), &signed.pem()).context("failed to write a certificate")
    };

    // A server is the client of another one over their route.
    let both = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let names = hosts.iter().cloned().chain(OWN_NAMES.map(str::to_owned));
    made("server", &names.collect::<Vec<_>>(), &both)?;
    made("client", &["nexus-client".to_owned()], &both[1..])?;

    folder.set_certificates(CertificateRecord {
        hosts: hosts.to_vec(),
        expires: (at + VALID).unix_timestamp(),
    })
}
