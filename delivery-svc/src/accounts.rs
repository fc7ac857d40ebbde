//! `channels.yaml`: our accounts on each channel.
//!
//! ```yaml
//! webhook:
//!   accounts:
//!     demo: { url: "https://example.com/hook", secret: "env:DEMO_SECRET", text_limit: 4000 }
//! ```
//!
//! Channels `webchat` and `nats` need no account. Source: `channels.md` "Channels"; `operations.md` "Configuration".

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use shared::process::Secret;

use crate::channel::signature::SigningKey;
use crate::channel::webhook::Endpoint;
use crate::chunk::{Limit, Unit};

/// The file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ChannelsFile {
    webhook: WebhookSection,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct WebhookSection {
    accounts: BTreeMap<String, WebhookAccount>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WebhookAccount {
    url: String,
    secret: Secret,
    /// Characters.
    #[serde(default)]
    text_limit: Option<usize>,
}

/// The accounts of `channels.yaml` cannot be used; every fault is named, one per line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct ReadAccountsError(pub Vec<String>);

/// The webhook endpoints in `text`, the content of `channels.yaml`, by account. An empty text has none.
///
/// # Errors
/// [`ReadAccountsError`] names each key at fault and what is expected there.
pub fn read(text: &str) -> Result<HashMap<String, Endpoint>, ReadAccountsError> {
    if text.trim().is_empty() {
        return Ok(HashMap::new());
    }
    let file: ChannelsFile =
        serde_yaml_ng::from_str(text).map_err(|error| ReadAccountsError(vec![error.to_string()]))?;
    let mut endpoints = HashMap::new();
    let mut faults = Vec::new();
    for (name, account) in file.webhook.accounts {
        match endpoint(&name, &account) {
            Ok(endpoint) => drop(endpoints.insert(name, endpoint)),
            Err(found) => faults.extend(found),
        }
    }
    if faults.is_empty() {
        Ok(endpoints)
    } else {
        Err(ReadAccountsError(faults))
    }
}

fn endpoint(name: &str, account: &WebhookAccount) -> Result<Endpoint, Vec<String>> {
    let mut faults = Vec::new();
    let mut fault = |key: &str, expected: &str| faults.push(format!("webhook.accounts.{name}.{key}: {expected}"));
    let url = reqwest::Url::parse(&account.url)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https"));
    if url.is_none() {
        fault("url", "expected an http or https URL");
    }
    let key = SigningKey::parse(account.secret.reveal());
    if let Err(error) = &key {
        fault("secret", &error.to_string());
    }
    if account.text_limit == Some(0) {
        fault("text_limit", "expected at least 1");
    }
    let limit = account.text_limit.map(|max| Limit {
        max,
        unit: Unit::Characters,
    });
    match (url, key) {
        (Some(url), Ok(key)) if faults.is_empty() => Ok(Endpoint { url, key, limit }),
        (Some(_) | None, Ok(_) | Err(_)) => Err(faults),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_secret(url: &str, secret: &str, limit: usize) -> String {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), secret).expect("written");
        let path = file.into_temp_path().keep().expect("kept");
        format!(
            "webhook: {{accounts: {{demo: {{url: '{url}', secret: 'file:{}', text_limit: {limit}}}}}}}",
            path.display()
        )
    }

    #[test]
    fn an_empty_file_has_no_accounts() {
        assert!(read("").expect("read").is_empty());
        assert!(read("webhook: {}").expect("read").is_empty());
    }

    #[test]
    fn an_account_is_read_with_its_secret() {
        let text = with_secret("http://127.0.0.1:9/x", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n", 10);
        let endpoints = read(&text).expect("read");
        let demo = &endpoints["demo"];
        assert_eq!(demo.url.as_str(), "http://127.0.0.1:9/x");
        assert_eq!(
            demo.limit,
            Some(Limit {
                max: 10,
                unit: Unit::Characters
            })
        );
    }

    #[test]
    fn every_fault_is_named_at_once() {
        let text = with_secret("ftp://x", "not base64!", 0);
        let ReadAccountsError(faults) = read(&text).expect_err("faults");
        assert_eq!(faults.len(), 3, "{faults:?}");
        assert!(faults[0].starts_with("webhook.accounts.demo.url: "), "{faults:?}");
    }

    #[test]
    fn unknown_keys_are_faults() {
        assert!(read("webhok: {}").is_err());
        assert!(read("webhook: {accounts: {demo: {uri: x}}}").is_err());
    }
}
