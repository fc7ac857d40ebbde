//! Origins that a hook may fetch from: scheme, host and port, as `@allow net=…` and `hooks.grants` name them. *Pure.*

use std::net::IpAddr;

/// Most origins that one hook may ask for.
pub const MAX_ORIGINS: usize = 16;

/// Longest host name, in characters.
const MAX_HOST_CHARS: usize = 253;

const HTTPS_PORT: u16 = 443;
const HTTP_PORT: u16 = 80;

/// One server: `api.example.com`, `api.example.com:8443`, `http://10.0.0.7:8080`. The default scheme is `https`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerOrigin {
    /// Whether the connection is encrypted.
    pub is_https: bool,
    /// Name or IPv4 address of the host, in lower case.
    pub host: String,
    /// Port number of the server.
    pub port: u16,
}

/// Error for a text that names no server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a server: expected `host`, `host:port` or `http://host:port`, without a path or a pattern")]
pub struct ParseOriginError(String);

impl ServerOrigin {
    /// Parses one origin.
    ///
    /// # Errors
    /// Returns [`ParseOriginError`] if `text` is no origin.
    pub fn parse(text: &str) -> Result<Self, ParseOriginError> {
        let fault = || ParseOriginError(text.to_owned());
        let (is_https, rest) = match text.strip_prefix("http://") {
            Some(rest) => (false, rest),
            None => (true, text.strip_prefix("https://").unwrap_or(text)),
        };

        let (host, port) = match rest.split_once(':') {
            Some((host, port)) => (host, port.parse().ok().filter(|port| *port > 0).ok_or_else(fault)?),
            None => (rest, if is_https { HTTPS_PORT } else { HTTP_PORT }),
        };
        let host = host.to_ascii_lowercase();

        let is_label =
            |label: &str| !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        if host.len() > MAX_HOST_CHARS || !host.split('.').all(is_label) {
            return Err(fault());
        }

        Ok(Self { is_https, host, port })
    }

    /// Parses a comma-separated list of origins.
    ///
    /// # Errors
    /// Returns [`ParseOriginError`] for the first part that is no origin.
    pub fn parse_all(text: &str) -> Result<Vec<Self>, ParseOriginError> {
        text.split(',').map(|one| Self::parse(one.trim())).collect()
    }
}

impl std::fmt::Display for ServerOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (scheme, default) = if self.is_https {
            ("https", HTTPS_PORT)
        } else {
            ("http", HTTP_PORT)
        };
        write!(f, "{scheme}://{}", self.host)?;

        if self.port == default {
            Ok(())
        } else {
            write!(f, ":{}", self.port)
        }
    }
}

/// Returns whether `address` is on the internet: not this host, its network, or reserved. A name that a foreign DNS
/// server resolves to a non-public address is not followed there.
#[must_use]
pub const fn is_public(address: IpAddr) -> bool {
    match address {
        // The blocks that the IANA registry lists as not globally reachable, and multicast.
        IpAddr::V4(address) => {
            let [a, b, c, _] = address.octets();
            !(a == 0
                || a == 10
                || a == 127
                || a >= 224
                || (a == 100 && b >= 64 && b < 128)
                || (a == 169 && b == 254)
                || (a == 172 && b >= 16 && b < 32)
                || (a == 192 && b == 168)
                || (a == 192 && b == 0 && (c == 0 || c == 2))
                || (a == 192 && b == 88 && c == 99)
                || (a == 198 && (b == 18 || b == 19))
                || (a == 198 && b == 51 && c == 100)
                || (a == 203 && b == 0 && c == 113))
        }
        IpAddr::V6(address) => {
            // A mapped address must not lead around the rules for IPv4.
            if let Some(inner) = address.to_ipv4_mapped() {
                return is_public(IpAddr::V4(inner));
            }

            // Global unicast, except ranges for documentation, tunnels of IPv4 and translation.
            let [first, second, ..] = address.segments();
            first & 0xe000 == 0x2000
                && !(first == 0x2001 && (second < 0x0200 || second == 0x0db8))
                && first != 0x2002
                && first != 0x3fff
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_a_name_and_a_port() {
        for (text, read) in [
            ("api.example.com", "https://api.example.com"),
            ("API.example.com:443", "https://api.example.com"),
            ("https://api.example.com:8443", "https://api.example.com:8443"),
            ("http://10.0.0.7:8080", "http://10.0.0.7:8080"),
            ("http://wiki:80", "http://wiki"),
        ] {
            let origin = ServerOrigin::parse(text).expect(text);
            assert_eq!(origin.to_string(), read);
            assert_eq!(ServerOrigin::parse(read), Ok(origin));
        }

        for text in [
            "",
            "*.example.com",
            "a.example.com/path",
            "user@a.example.com",
            "a..b",
            "a:0",
            "a:99999",
            "[::1]",
            "ftp://a",
            "a b",
        ] {
            assert!(ServerOrigin::parse(text).is_err(), "{text}");
        }

        assert_eq!(ServerOrigin::parse_all("a.b, c.d:1").map(|all| all.len()), Ok(2));
        assert!(ServerOrigin::parse_all("a.b,").is_err());
    }

    #[test]
    fn what_is_not_on_the_internet_is_not_public() {
        for address in [
            "0.0.0.0",
            "10.1.2.3",
            "127.0.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "192.0.2.1",
            "198.18.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fd00::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001::1",
            "2001:db8::1",
        ] {
            assert!(!is_public(address.parse().expect("an address")), "{address}");
        }

        for address in [
            "1.1.1.1",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1111",
            "::ffff:8.8.8.8",
        ] {
            assert!(is_public(address.parse().expect("an address")), "{address}");
        }
    }
}
