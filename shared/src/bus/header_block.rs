//! A stored message's header block: what of it is headers, and whether the client could read it. *Pure.*
//!
//! The server stores any bytes; the client's parser (async-nats 0.51, `connection.rs`, `HMSG`) ends the connection at what
//! is no header, and panics at a lone carriage return in a value.

use crate::wire::headers::Headers;

/// The headers of a block; what the client could not read or write is left out.
pub(super) fn readable(block: &[u8]) -> Headers {
    let text = String::from_utf8_lossy(block);
    text.split("\r\n")
        .skip(1)
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim(), value.trim()))
        .filter(|(name, value)| error(name, value).is_none())
        .collect()
}

/// What keeps the client from reading a stored message with this header block; none where nothing does.
pub(super) fn fault(block: &[u8]) -> Option<String> {
    if block.is_empty() {
        return None;
    }

    let Ok(text) = std::str::from_utf8(block) else {
        return Some("headers are not UTF-8".to_owned());
    };
    let mut lines = text.lines().peekable();
    match lines.next() {
        Some(version) if version.trim_end() == "NATS/1.0" => {}
        // A stored status would be taken for the server's own word.
        other => return Some(format!("headers begin with {:?}", other.unwrap_or_default())),
    }

    while let Some(line) = lines.next() {
        if line.is_empty() {
            continue;
        }

        let Some((name, value)) = line.split_once(':') else {
            return Some(format!("header line without a colon: {line:?}"));
        };
        let mut value = value.to_owned();
        while let Some(folded) = lines.next_if(|next| next.starts_with(char::is_whitespace)) {
            value.push_str(folded);
        }

        if let Some(fault) = error(name, value.trim()) {
            return Some(fault);
        }
    }

    None
}

/// Why the client refuses a header.
fn error(name: &str, value: &str) -> Option<String> {
    if let Err(refused) = name.parse::<async_nats::HeaderName>() {
        return Some(format!("header name {name:?}: {refused}"));
    }
    let refused = value.parse::<async_nats::HeaderValue>().err()?;
    Some(format!("header {name:?}: value {value:?}: {refused}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_block_is_judged_as_the_client_does() {
        for good in [
            "",
            "NATS/1.0\r\n\r\n",
            "NATS/1.0\r\na: b\r\nNats-Msg-Id:x:y\r\nempty:\r\n folded\r\n\r\n",
        ] {
            assert_eq!(fault(good.as_bytes()), None, "{good:?}");
        }

        for bad in [
            "NATS/1.0\r\nno colon\r\n\r\n",
            "NATS/1.0\r\na: b\rc\r\n\r\n",
            "NATS/1.0\r\na: b\r\n folded\ronce\r\n\r\n",
            "NATS/1.0\r\n spaced: b\r\n\r\n",
            "NATS/1.0 503\r\n\r\n",
            "HTTP/1.1\r\n\r\n",
        ] {
            assert!(fault(bad.as_bytes()).is_some(), "{bad:?}");
        }

        assert!(fault(b"NATS/1.0\r\na: \xff\r\n\r\n").is_some());
    }
}
