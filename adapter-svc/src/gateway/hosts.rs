//! The host names by which the gateway may be called. *Pure.*
//!
//! A site that points its own name at 127.0.0.1 (DNS rebinding) makes its pages same-origin with what listens there;
//! only the name in the request tells them apart.

use std::net::IpAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri, header};

/// Longest part of a foreign name that an error repeats, in characters.
const MAX_TOLD_CHARS: usize = 128;

/// The names that are answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hosts {
    /// Any: the gateway is meant to be reached from elsewhere.
    Any,
    /// This machine's own, and these in lower case.
    Local(Vec<String>),
}

impl Hosts {
    /// Those of a gateway that listens on `listen` and has `further` names.
    #[must_use]
    pub fn new(listen: IpAddr, further: &[String]) -> Self {
        if listen.is_loopback() {
            Self::Local(further.iter().map(|name| name.to_ascii_lowercase()).collect())
        } else {
            Self::Any
        }
    }

    /// Checks that the request names this server. A request without a name passes: no browser sends one.
    ///
    /// # Errors
    /// Returns the name if it is not allowed.
    pub fn admit(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), String> {
        let Self::Local(further) = self else {
            return Ok(());
        };

        // HTTP/2 has it in the URI.
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

/// Whether `host`, in lower case and without a port, is a name of this machine that no other machine can use.
pub(crate) fn is_local(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(listen: &str, host: &str) -> bool {
        let hosts = Hosts::new(listen.parse().unwrap(), &["Chat.example.com".to_owned()]);
        let headers = [(header::HOST, host.parse().unwrap())].into_iter().collect();
        hosts.admit(&Uri::from_static("/"), &headers).is_ok()
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
        let hosts = Hosts::new([127, 0, 0, 1].into(), &[]);
        let admitted = |uri| hosts.admit(&Uri::from_static(uri), &HeaderMap::new());
        assert_eq!(
            admitted("http://evil.example:8080/"),
            Err("evil.example:8080".to_owned())
        );
        assert_eq!((admitted("http://localhost:8080/"), admitted("/")), (Ok(()), Ok(())));
    }
}
