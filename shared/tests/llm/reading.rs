//! Bytes in packets, and what is heard of them.

use shared::llm::{Heard, Provider, Reading, WireFault};

/// Reads `bytes` in packets of `size`; what is heard as it comes is the beginning of the whole, or all of it.
pub(crate) fn read(provider: Provider, bytes: &[u8], size: usize) -> Result<Heard, WireFault> {
    let mut reading = Reading::new(provider);
    let mut heard = String::new();
    for packet in bytes.chunks(size.max(1)) {
        heard.push_str(reading.take(packet)?);
    }
    let whole = reading.end()?;
    assert!(whole.text.starts_with(&heard), "{heard:?} of {:?}", whole.text);
    Ok(whole)
}
