//! Decoder of server-sent events, however the packets are cut. *Pure.*

use super::{DecodeFault, MAX_EVENT_BYTES};

const BOM: &[u8] = b"\xef\xbb\xbf";

/// Receiver of each event: its name and its data.
type Each<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), DecodeFault> + 'a;

/// Lines that form events.
#[derive(Debug, Default)]
pub(super) struct SseEvents {
    /// Line that has begun.
    line: Vec<u8>,
    /// Name and data of the event that has begun.
    name: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    /// Whether the last byte was a carriage return, so that a line feed belongs to it.
    after_return: bool,
    /// Whether a line was read, so that no byte order mark can follow.
    begun: bool,
}

impl SseEvents {
    /// Decodes `bytes`, and passes each event that ends in them (name, data) to `each`.
    pub(super) fn take(&mut self, mut bytes: &[u8], each: &mut Each<'_>) -> Result<(), DecodeFault> {
        while let Some(first) = bytes.first() {
            if std::mem::take(&mut self.after_return) && *first == b'\n' {
                bytes = &bytes[1..];
                continue;
            }

            let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
                return self.extend_line(bytes);
            };
            self.extend_line(&bytes[..end])?;
            self.after_return = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            self.line_ended(each)?;
        }

        Ok(())
    }

    /// Returns the event that was not ended by an empty line, if there is one: name and data.
    pub(super) fn into_rest(mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        if !self.line.is_empty() {
            self.read_field().ok()?;
        }
        self.has_data.then_some((self.name, self.data))
    }

    fn extend_line(&mut self, bytes: &[u8]) -> Result<(), DecodeFault> {
        extend_bounded(&mut self.line, bytes, MAX_EVENT_BYTES.saturating_sub(self.data.len()))
    }

    fn line_ended(&mut self, each: &mut Each<'_>) -> Result<(), DecodeFault> {
        if !std::mem::replace(&mut self.begun, true) && self.line.starts_with(BOM) {
            self.line.drain(..BOM.len());
        }

        if !self.line.is_empty() {
            return self.read_field();
        }

        let name = std::mem::take(&mut self.name);
        let data = std::mem::take(&mut self.data);
        if std::mem::take(&mut self.has_data) {
            each(&name, &data)?;
        }

        Ok(())
    }

    /// Decodes the line as a field; comments, ids and unknown fields are skipped.
    fn read_field(&mut self) -> Result<(), DecodeFault> {
        let mut line = std::mem::take(&mut self.line);
        let (field, value) = match line.iter().position(|byte| *byte == b':') {
            Some(colon) => (colon, colon + 1 + usize::from(line.get(colon + 1) == Some(&b' '))),
            None => (line.len(), line.len()),
        };
        match &line[..field] {
            b"data" => {
                line.drain(..value);

                // Several lines of data are joined by line feeds.
                if std::mem::replace(&mut self.has_data, true) {
                    extend_bounded(&mut self.data, b"\n", MAX_EVENT_BYTES)?;
                    extend_bounded(&mut self.data, &line, MAX_EVENT_BYTES)?;
                } else {
                    self.data = line;
                }
            }
            b"event" => {
                line.drain(..value);
                self.name = line;
            }
            _ => {}
        }

        Ok(())
    }
}

/// Appends `bytes`, up to `limit` in total. Grows by doubling, but never reserves beyond the limit.
pub(super) fn extend_bounded(buffer: &mut Vec<u8>, bytes: &[u8], limit: usize) -> Result<(), DecodeFault> {
    let wanted = buffer.len() + bytes.len();
    if wanted > limit {
        return Err(DecodeFault::Large("an event", MAX_EVENT_BYTES));
    }

    if wanted > buffer.capacity() {
        let capacity = wanted.max(buffer.capacity() * 2).min(limit);
        buffer.reserve_exact(capacity - buffer.len());
    }

    buffer.extend_from_slice(bytes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(bytes: &[u8], size: usize) -> Vec<(String, String)> {
        let mut heard = Vec::new();
        let mut events = SseEvents::default();

        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        for packet in bytes.chunks(size) {
            let mut each = |name: &[u8], data: &[u8]| {
                heard.push((text(name), text(data)));
                Ok(())
            };
            events.take(packet, &mut each).expect("within the bounds");
        }

        heard.extend(events.into_rest().map(|(name, data)| (text(&name), text(&data))));
        heard
    }

    #[test]
    fn every_line_end_and_every_cut_gives_the_same_events() {
        let plain = "\u{feff}: busy\n\ndata:one\n\nevent: b\ndata: two\ndata: more\nid: 7\nretry\n\nevent: none\n\ndata\n\ndata: é";
        for ends in ["\n", "\r\n", "\r"] {
            let bytes = plain.replace('\n', ends).into_bytes();
            for size in 1..=bytes.len() {
                let heard = events(&bytes, size);
                let expected = [("", "one"), ("b", "two\nmore"), ("", ""), ("", "é")];
                let expected = expected.map(|(name, data)| (name.to_owned(), data.to_owned()));
                assert_eq!(heard, expected, "{ends:?} {size}");
            }
        }
    }

    #[test]
    fn what_is_too_long_is_refused_in_a_line_and_in_an_event() {
        let refused = |piece: &[u8]| {
            let mut events = SseEvents::default();
            let mut read = 0;
            while let Ok(()) = events.take(piece, &mut |_, _| Ok(())) {
                read += piece.len();
                assert!(read < 3 * MAX_EVENT_BYTES, "nothing ends it");
            }
        };

        refused(&[b'x'; 4_096]);
        refused(format!("data: {}\n", "x".repeat(4_000)).as_bytes());
    }
}
