//! Header block of a stored message: which parts are headers, and whether the client can read it. *Pure.*
//!
//! The server stores any bytes. The client's parser (async-nats 0.51, `connection.rs`, `HMSG`) closes the connection
//! at a line that is no header, and panics at a lone carriage return in a value.

use crate::wire::headers::Headers;

/// Returns the headers of a block, without those that the client could not read or write.
pub(super) fn readable_headers(block: &[u8]) -> Headers {
    let text = String::from_utf8_lossy(block);
    text.split("\r\n")
        .skip(1)
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim(), value.trim()))
        .filter(|(name, value)| header_error(name, value).is_none())
        .collect()
}

/// Returns the reason why the client cannot read a stored message with this header block, or `None` if it can.
pub(super) fn find_fault(block: &[u8]) -> Option<String> {
    if block.is_empty() {
        return None;
    }

    let Ok(text) = std::str::from_utf8(block) else {
        return Some("headers are not UTF-8".to_owned());
    };
    let mut lines = text.lines().peekable();
    match lines.next() {
        Some(version) if version.trim_end() == "NATS/1.0" => {}
        // The client would take a stored status for a status from the server itself.
        other => return Some(format!("headers begin with {:?}", other.unwrap_or_default())),
    }

    while let Some(line) = lines.next() {
        if line.is_empty() {
            continue;
        }

        let Some((name, value)) = line.split_once(':') else {
            return Some(format!("header line without a colon: {line:?}"));
        };
        // A header may continue on the next lines; the client joins them before it checks the value.
        let mut value = value.to_owned();
        while let Some(folded) = lines.next_if(|next| next.starts_with(char::is_whitespace)) {
            value.push_str(folded);
        }

        if let Some(fault) = header_error(name, value.trim()) {
            return Some(fault);
        }
    }

    None
}

/// Returns the reason why the client rejects a header, or `None` if it accepts it.
fn header_error(name: &str, value: &str) -> Option<String> {
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
            assert_eq!(find_fault(good.as_bytes()), None, "{good:?}");
        }

        for bad in [
            "NATS/1.0\r\nno colon\r\n\r\n",
            "NATS/1.0\r\na: b\rc\r\n\r\n",
            "NATS/1.0\r\na: b\r\n folded\ronce\r\n\r\n",
            "NATS/1.0\r\n spaced: b\r\n\r\n",
            "NATS/1.0 503\r\n\r\n",
            "HTTP/1.1\r\n\r\n",
        ] {
            assert!(find_fault(bad.as_bytes()).is_some(), "{bad:?}");
        }

        assert!(find_fault(b"NATS/1.0\r\na: \xff\r\n\r\n").is_some());
    }
}
