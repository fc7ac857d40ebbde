//! Origins that a hook may fetch from: scheme, host and port, as `@allow net=…` and `hooks.grants` name them. *Pure.*

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
}
