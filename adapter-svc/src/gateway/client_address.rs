//! The client of a request: the peer of the connection, or, behind a trusted proxy, the address that the proxy names.
//! *Pure.*

use std::net::{IpAddr, SocketAddr};

use axum::http::HeaderMap;

/// Header to which each proxy appends the address of its client.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// The peer of a request's connection.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionPeer {
    /// Address of the peer.
    pub address: IpAddr,
    /// Whether the address is in `adapter.trusted_proxies`.
    pub trusted: bool,
}

/// The address of a request's client, as far as it can be trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientAddress(pub IpAddr);

/// Networks of addresses, as listed in `adapter.trusted_proxies`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustedNetworks(Vec<(IpAddr, u8)>);

impl TrustedNetworks {
    /// Parses CIDR blocks (`10.0.0.0/8`, `fd00::/8`) and single addresses.
    ///
    /// # Errors
    /// Returns the first text that is neither.
    pub fn parse(texts: &[String]) -> Result<Self, String> {
        let parse = |text: &String| parse_network(text).ok_or_else(|| text.clone());
        texts.iter().map(parse).collect::<Result<_, _>>().map(Self)
    }

    /// Returns whether `address` is in one of the blocks.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|(network, bits)| match (network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let ignored = 32 - u32::from(*bits);
                u64::from(network.to_bits() ^ address.to_bits()) >> ignored == 0
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let differ = network.to_bits() ^ address.to_bits();
                differ.checked_shr(128 - u32::from(*bits)).unwrap_or(0) == 0
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        })
    }
}

fn parse_network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address.parse::<IpAddr>().ok()?, Some(bits.parse::<u8>().ok()?)),
        None => (text.parse::<IpAddr>().ok()?, None),
    };
    let most = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.unwrap_or(most);
    (bits <= most).then_some((address, bits))
}

impl ClientAddress {
    /// Returns the client of a request of `peer` with `headers`. A peer that is not trusted is the client itself,
    /// and its headers are ignored. Behind trusted proxies the client is the last address in `X-Forwarded-For` that
    /// is not a trusted proxy: the client itself wrote those before it.
    #[must_use]
    pub fn from_request(peer: ConnectionPeer, headers: &HeaderMap, trusted: &TrustedNetworks) -> Self {
        if !peer.trusted {
            return Self(peer.address);
        }

        // Each proxy appends its client, so the header is read from its end.
        let mut client = peer.address;
        let lines = headers.get_all(FORWARDED_FOR).iter().rev();
        let hops = lines.flat_map(|line| line.to_str().unwrap_or("?").rsplit(','));

        for hop in hops {
            let Some(address) = parse_address(hop.trim()) else {
                break;
            };
            client = address;

            if !trusted.contains(address) {
                break;
            }
        }

        Self(client)
    }
}

/// Parses an address, with or without a port.
fn parse_address(text: &str) -> Option<IpAddr> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    let address = bare.parse::<IpAddr>().ok();
    let address = address.or_else(|| text.parse::<SocketAddr>().ok().map(|socket| socket.ip()));
    address.map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(texts: &[&str]) -> TrustedNetworks {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        TrustedNetworks::parse(&texts).expect("blocks")
    }

    #[test]
    fn a_block_holds_its_addresses_and_no_others() {
        let blocks = networks(&["10.1.0.0/16", "192.0.2.7", "fd00::/8", "2001:db8::1"]);
        for (address, expected) in [
            ("10.1.255.1", true),
            ("::ffff:10.1.2.3", true),
            ("10.2.0.1", false),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
            ("fd12::1", true),
            ("fe00::1", false),
            ("2001:db8::1", true),
            ("2001:db8::2", false),
        ] {
            assert_eq!(
                blocks.contains(address.parse().expect("an address")),
                expected,
                "{address}"
            );
        }

        let all = networks(&["0.0.0.0/0", "::/0"]);
        assert!(all.contains("1.2.3.4".parse().expect("an address")));
        assert!(all.contains("ff::1".parse().expect("an address")));

        for text in ["", "10.0.0.0/33", "fd00::/129", "host", "10.0.0.0/x", "10.0.0/8"] {
            assert_eq!(TrustedNetworks::parse(&[text.to_owned()]), Err(text.to_owned()));
        }
    }

    fn client(peer: &str, forwarded: &[&str]) -> String {
        let trusted = networks(&["10.0.0.0/8"]);
        let address: IpAddr = peer.parse().expect("an address");
        let peer = ConnectionPeer {
            address,
            trusted: trusted.contains(address),
        };

        let mut headers = HeaderMap::new();
        for line in forwarded {
            headers.append(FORWARDED_FOR, line.parse().expect("a header"));
        }

        ClientAddress::from_request(peer, &headers, &trusted).0.to_string()
    }

    #[test]
    fn the_client_is_the_last_hop_that_is_not_trusted() {
        assert_eq!(
            client("192.0.2.1", &["198.51.100.1"]),
            "192.0.2.1",
            "anybody can write a header"
        );
        assert_eq!(client("10.0.0.1", &[]), "10.0.0.1");
        assert_eq!(client("10.0.0.1", &["203.0.113.9, 198.51.100.1"]), "198.51.100.1");
        assert_eq!(
            client("10.0.0.1", &["203.0.113.9, 198.51.100.1, 10.0.0.2"]),
            "198.51.100.1"
        );

        assert_eq!(
            client("10.0.0.1", &["203.0.113.9", "198.51.100.1:4711"]),
            "198.51.100.1"
        );
        assert_eq!(client("10.0.0.1", &["[2001:db8::1]:80"]), "2001:db8::1");
        assert_eq!(
            client("10.0.0.1", &["198.51.100.1, unknown"]),
            "10.0.0.1",
            "not what stands before it"
        );

        assert_eq!(client("10.0.0.1", &["10.0.0.3, 10.0.0.2"]), "10.0.0.3");
    }
}
