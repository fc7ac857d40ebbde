//! Bytes in packets, and what is heard of them.

use shared::llm::{AnswerReader, HeardAnswer, ModelProvider, WireFault};

/// Reads `bytes` in packets of `size`; what is heard as it comes is the beginning of the whole, or all of it.
pub(crate) fn read(provider: ModelProvider, bytes: &[u8], size: usize) -> Result<HeardAnswer, WireFault> {
    let mut reading = AnswerReader::new(provider);
    let mut heard = String::new();
    for packet in bytes.chunks(size.max(1)) {
        heard.push_str(reading.take(packet)?);
    }
    let whole = reading.finish_answer()?;
    assert!(whole.text.starts_with(&heard), "{heard:?} of {:?}", whole.text);
    Ok(whole)
}
