//! Answers of the cluster's DNS (pure): addresses of names, and nothing else.
//!
//! Sources: RFC 1035 §4.1; <https://github.com/kubernetes/dns/blob/master/docs/specification.md>.

use std::net::Ipv4Addr;

/// Seconds for which an answer may be kept.
const LIFE: u32 = 1;

/// Bytes of the header of a message.
const HEADER: usize = 12;

/// Type of a question for addresses of IPv4.
const ADDRESS: u16 = 1;

/// Code of an answer for a name that does not exist.
const NO_SUCH_NAME: u8 = 3;

/// Returns the answer to the question in `query`, or `None` if it is none. `find` returns the addresses of a name.
pub fn answer(query: &[u8], find: impl Fn(&str) -> Option<Vec<Ipv4Addr>>) -> Option<Vec<u8>> {
    let (name, kind, end) = question(query)?;
    let found = find(&name.to_ascii_lowercase());
    let addresses = match (&found, kind) {
        (Some(addresses), ADDRESS) => addresses.as_slice(),
        _ => &[],
    };
    let code = if found.is_some() { 0 } else { NO_SUCH_NAME };

    let mut message = query[..2].to_vec();
    // An answer with authority; recursion as asked for, and available.
    message.extend([0x84 | (query[2] & 1), 0x80 | code, 0, 1]);
    message.extend(u16::try_from(addresses.len()).ok()?.to_be_bytes());
    message.extend([0; 4]);
    message.extend(&query[HEADER..end]);

    for address in addresses {
        // The name of the question; an address of the internet.
        message.extend([0xc0, 0x0c, 0, 1, 0, 1]);
        message.extend(LIFE.to_be_bytes());
        message.extend([0, 4]);
        message.extend(address.octets());
    }
    Some(message)
}

/// Returns the name and the type that are asked for, and where the question ends.
fn question(query: &[u8]) -> Option<(String, u16, usize)> {
    let mut labels = Vec::new();
    let mut at = HEADER;
    loop {
        let length = usize::from(*query.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        labels.push(std::str::from_utf8(query.get(at..at + length)?).ok()?);
        at += length;
    }
    let kind = query.get(at..at + 2)?;
    query.get(at + 2..at + 4)?;
    Some((labels.join("."), u16::from_be_bytes([kind[0], kind[1]]), at + 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(kind: u8) -> Vec<u8> {
        let mut query = vec![7, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1];
        query.extend(b"a\x01B\0");
        query.extend([0, kind, 0, 1]);
        query
    }

    #[test]
    fn a_name_has_its_addresses() {
        let find = |name: &str| (name == "a.b").then(|| vec![Ipv4Addr::new(10, 1, 2, 3)]);
        let said = answer(&asked(1), find).expect("an answer");
        let header = [7, 9, 0x85, 0x80, 0, 1, 0, 1, 0, 0, 0, 0];
        assert_eq!(said[..12], header);
        assert_eq!(said[12..21], asked(1)[12..]);
        assert_eq!(said[21..], [0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 10, 1, 2, 3]);
    }

    #[test]
    fn a_name_without_addresses_of_a_type_differs_from_no_name() {
        let of_another_type = answer(&asked(28), |_| Some(vec![Ipv4Addr::LOCALHOST])).expect("an answer");
        assert_eq!((of_another_type[3] & 15, of_another_type.len()), (0, 21));
        let unknown = answer(&asked(1), |_| None).expect("an answer");
        assert_eq!((unknown[3] & 15, unknown.len()), (NO_SUCH_NAME, 21));
        assert_eq!(answer(&asked(1)[..15], |_| None), None);
    }
}
