//! Texts of the servers' configuration, and of Kubernetes Secrets. *Pure.*

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// User of the routes.
pub const ROUTE_USER: &str = "route";

/// Returns `host` and `port` as one address. An IPv6 address stands in brackets.
#[must_use]
pub fn host_and_port(host: &str, port: u16) -> String {
    if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Returns the beginning of a server's block `cluster`: the login of a route to it, and the routes to the servers at
/// `addresses` (`host:port`). `tls` stands in the block too.
#[must_use]
pub fn route_lines(password: &str, addresses: &[String], tls: &str) -> String {
    let routes: Vec<String> = addresses
        .iter()
        .map(|address| format!("    nats-route://{ROUTE_USER}:{password}@{address}\n"))
        .collect();
    format!(
        "authorization {{ user: {ROUTE_USER}, password: \"{password}\", timeout: 2 }}\nroutes: [\n{}]\n{tls}",
        routes.concat()
    )
}

/// Returns a block `tls` with the files in `etc`. With `mutual` the other side shows a certificate too.
#[must_use]
pub fn tls_block(etc: &Path, mutual: bool) -> String {
    let file = |name: &str| format!("{:?}", etc.join(name).display().to_string());
    let (certificate, key, authority) = (file("server.pem"), file("server.key"), file("ca.pem"));
    let verify = if mutual { ", verify: true" } else { "" };
    format!("tls {{ cert_file: {certificate}, key_file: {key}, ca_file: {authority}{verify}, timeout: 5 }}\n")
}

/// Returns a Kubernetes Secret as a document of YAML.
#[must_use]
pub fn secret(namespace: &str, name: &str, files: &[(&str, String)]) -> String {
    let mut text = format!(
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: {name}\n  namespace: {namespace}\ntype: Opaque\ndata:\n"
    );
    for (file, content) in files {
        text.push_str(&format!("  {file}: {}\n", STANDARD.encode(content)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_one_document_with_its_files_in_base64() {
        let text = secret("nexus", "nexus-nats-hook", &[("user.creds", "a\nb".to_owned())]);
        assert!(text.ends_with("data:\n  user.creds: YQpi\n"), "{text}");
    }

    #[test]
    fn an_address_of_ipv6_stands_in_brackets() {
        assert_eq!(host_and_port("nats-0", 6222), "nats-0:6222");
        assert_eq!(host_and_port("fd00::1", 6222), "[fd00::1]:6222");
    }

    #[test]
    fn each_route_shows_the_password() {
        let text = route_lines("pw", &["a:6222".to_owned(), "b:6222".to_owned()], "");
        assert_eq!(text.matches("nats-route://route:pw@").count(), 2, "{text}");
        assert!(text.contains("password: \"pw\""), "{text}");
    }
}
