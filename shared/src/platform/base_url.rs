//! Base URLs of platforms: `https`, or `http` to this machine.
//!
//! Calls carry an account's token, so that it would be readable on the way to any other `http` server. `http` to a
//! loopback address is for stand-ins and for servers beside Nexus.

use reqwest::Url;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

/// Form of a base URL, for messages.
const EXPECTED: &str = "expected an https URL, or an http URL of this machine (127.0.0.1, [::1], localhost), without user, query and fragment";

/// A platform's base URL, without a slash at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BaseUrl(Url);

/// The text is no base URL.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{EXPECTED}")]
pub struct ParseBaseUrlError;

impl BaseUrl {
    /// Parses a base URL.
    ///
    /// # Errors
    /// Returns [`ParseBaseUrlError`] for another scheme, for `http` to another machine, and for a URL with a user, a
    /// query or a fragment.
    ///
    /// ```
    /// use shared::platform::base_url::BaseUrl;
    ///
    /// let url = BaseUrl::parse("https://api.example.com/")?;
    /// assert_eq!(url.join("bot/getMe").as_str(), "https://api.example.com/bot/getMe");
    /// assert!(BaseUrl::parse("http://api.example.com").is_err());
    /// # Ok::<(), shared::platform::base_url::ParseBaseUrlError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, ParseBaseUrlError> {
        let mut url = Url::parse(text).map_err(|_| ParseBaseUrlError)?;
        let is_safe = match url.scheme() {
            "https" => url.has_host(),
            "http" => is_loopback(&url),
            _ => false,
        };
        let has_more =
            !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some();
        if !is_safe || has_more {
            return Err(ParseBaseUrlError);
        }

        // One slash between the base and the path below it.
        let path = url.path().trim_end_matches('/').to_owned();
        url.set_path(&path);
        Ok(Self(url))
    }

    /// Returns the URL of `path` below the base. The path's characters must be those of a URL.
    #[must_use]
    pub fn join(&self, path: &str) -> Url {
        let mut url = self.0.clone();
        url.set_path(&format!("{}/{path}", self.0.path().trim_end_matches('/')));
        url
    }
}

/// Returns whether the host is this machine: a loopback address, or the name `localhost`.
fn is_loopback(url: &Url) -> bool {
    let Some(host) = url.host_str() else { return false };
    let address = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse::<std::net::IpAddr>();
    address.map_or(host == "localhost", |address| address.is_loopback())
}

impl<'de> Deserialize<'de> for BaseUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn https_and_loopback_are_base_urls() {
        for (text, joined) in [
            ("https://api.telegram.org", "https://api.telegram.org/x/y"),
            ("https://api.telegram.org/", "https://api.telegram.org/x/y"),
            (
                "https://proxy.example.com/telegram//",
                "https://proxy.example.com/telegram/x/y",
            ),
            ("http://127.0.0.1:8081", "http://127.0.0.1:8081/x/y"),
            ("http://127.9.9.9", "http://127.9.9.9/x/y"),
            ("http://[::1]:8081/api", "http://[::1]:8081/api/x/y"),
            ("http://LOCALHOST:1", "http://localhost:1/x/y"),
        ] {
            let url = BaseUrl::parse(text).expect(text);
            assert_eq!(url.join("x/y").as_str(), joined);
        }
    }

    #[test]
    fn what_would_show_a_token_is_refused() {
        for text in [
            "http://api.telegram.org",
            "http://10.0.0.1",
            "http://localhost.example.com",
            "http://127.0.0.1.example.com",
            "http://[fe80::1]",
            "https://user@api.telegram.org",
            "https://:secret@api.telegram.org",
            "https://api.telegram.org?x=1",
            "https://api.telegram.org/#x",
            "ftp://127.0.0.1",
            "file:///etc/passwd",
            "api.telegram.org",
            "",
        ] {
            assert_eq!(BaseUrl::parse(text), Err(ParseBaseUrlError), "{text}");
        }
    }
}
