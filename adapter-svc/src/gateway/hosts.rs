//! Allowed host names of the gateway. *Pure.*
//!
//! A site that points its own name at 127.0.0.1 (DNS rebinding) makes its pages same-origin with this server. Only
//! the host name in the request distinguishes such pages.

use std::net::IpAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri, header};

/// Maximum length of a foreign name in an error, in characters.
const MAX_TOLD_CHARS: usize = 128;

/// The host names that are served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedHosts {
    /// Any name: the gateway must be reachable from elsewhere.
    Any,
    /// Names of this machine, and these further ones in lower case.
    Local(Vec<String>),
}

impl AllowedHosts {
    /// Returns the names of a gateway that listens on `listen` and has `further` names.
    #[must_use]
    pub fn new(listen: IpAddr, further: &[String]) -> Self {
        if listen.is_loopback() {
            Self::Local(further.iter().map(|name| name.to_ascii_lowercase()).collect())
        } else {
            Self::Any
        }
    }

    /// Checks that the request names this server. A request without a host name passes, because no browser sends one.
    ///
    /// # Errors
    /// Returns the name if it is not allowed.
    pub fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), String> {
        let Self::Local(further) = self else {
            return Ok(());
        };

        // In HTTP/2 the name is in the URI.
        let said = match headers.get(header::HOST) {
            Some(value) => String::from_utf8_lossy(value.as_bytes()).into_owned(),
            None => match uri.authority() {
                Some(authority) => authority.to_string(),
                None => return Ok(()),
            },
        };

        let host = said
            .parse::<Authority>()
            .map(|authority| authority.host().to_ascii_lowercase());
        if host.is_ok_and(|host| is_local(&host) || further.contains(&host)) {
            Ok(())
        } else {
            Err(said.chars().take(MAX_TOLD_CHARS).collect())
        }
    }
}

/// Returns whether `host`, in lower case and without a port, is a name of this machine that no other machine can
/// have.
pub(crate) fn is_local(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(listen: &str, host: &str) -> bool {
        let hosts = AllowedHosts::new(listen.parse().unwrap(), &["Chat.example.com".to_owned()]);
        let headers = [(header::HOST, host.parse().unwrap())].into_iter().collect();
        hosts.check_host(&Uri::from_static("/"), &headers).is_ok()
    }

    #[test]
    fn on_loopback_only_names_of_this_machine_and_named_ones_are_answered() {
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1:1",
            "[::1]:8080",
            "[::1]",
            "chat.example.com:443",
        ] {
            assert!(check("127.0.0.1", host) && check("::1", host), "{host}");
        }

        for host in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
            "",
            "a b",
        ] {
            assert!(!check("127.0.0.1", host) && !check("::1", host), "{host}");
            assert!(check("0.0.0.0", host), "{host}");
        }
    }

    #[test]
    fn a_name_in_the_uri_counts_where_no_header_says_it() {
        let hosts = AllowedHosts::new([127, 0, 0, 1].into(), &[]);
        let admitted = |uri| hosts.check_host(&Uri::from_static(uri), &HeaderMap::new());
        assert_eq!(
            admitted("http://evil.example:8080/"),
            Err("evil.example:8080".to_owned())
        );
        assert_eq!((admitted("http://localhost:8080/"), admitted("/")), (Ok(()), Ok(())));
    }
}
