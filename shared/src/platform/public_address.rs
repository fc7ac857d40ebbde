//! Addresses on the internet, and a resolver that finds no others: a name that a stranger chose must not lead into
//! this network.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

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

/// A name has addresses in this network only.
#[derive(Debug, thiserror::Error)]
#[error("{0} has no public address")]
pub struct NoPublicAddress(String);

impl NoPublicAddress {
    /// Returns whether `error`, of an HTTP client with a [`PublicResolver`], has this cause.
    #[must_use]
    pub fn is_cause_of(error: &reqwest::Error) -> bool {
        std::iter::successors(std::error::Error::source(error), |error| error.source()).any(|cause| cause.is::<Self>())
    }
}

/// A resolver that keeps only public addresses, and all of the names that the operator chose. The connection is made to
/// the addresses that it returns, so a name that changes its address after the check leads nowhere else. A URL that has an
/// address in place of a name is not resolved: the caller checks it.
#[derive(Debug, Clone, Default)]
pub struct PublicResolver {
    /// Names that may have any address.
    pub trusted: BTreeSet<String>,
}

impl Resolve for PublicResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let is_trusted = self.trusted.contains(name.as_str());
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let allowed: Vec<SocketAddr> = found.filter(|address| is_trusted || is_public(address.ip())).collect();
            if allowed.is_empty() {
                return Err(NoPublicAddress(name.as_str().to_owned()).into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[tokio::test]
    async fn only_the_operator_s_names_lead_into_this_network() {
        let ask = async |trusted: &[&str]| {
            let resolver = PublicResolver {
                trusted: trusted.iter().map(|&name| name.to_owned()).collect(),
            };
            let http = reqwest::Client::builder().no_proxy().dns_resolver(resolver).build();
            let sent = http.expect("a client").get("http://localhost:1/").send().await;
            NoPublicAddress::is_cause_of(&sent.expect_err("nobody listens there"))
        };
        assert!(ask(&[]).await && ask(&["example.com"]).await);
        assert!(!ask(&["example.com", "localhost"]).await);
    }
}
