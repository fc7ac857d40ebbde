//! The messages of a stream, from the first to the last.

use shared::bus::{Bus, StoredMessage};
use shared::wire::envelope::WireMessage;

/// The filter that takes every subject.
const EVERYTHING: &str = ">";
/// Messages that are read at a time.
const PAGE: usize = 256;

/// Shows every message of a stream to `look`, in order.
///
/// # Panics
/// Where the stream cannot be asked.
pub async fn for_each(bus: &Bus, stream: &str, mut look: impl FnMut(&StoredMessage)) {
    let state = bus.stream_state(stream).await.expect("the stream can be asked");
    let mut from = state.first;

    // By direct reads, not by a consumer: a test that waits reads a stream many times, and an abandoned consumer stays for
    // half a minute, of which the server allows a thousand.
    while state.messages > 0 && from <= state.last {
        let page = bus.read_history(stream, EVERYTHING, from, PAGE).await;
        let mut page = page.expect("the stream can be read");
        if page.is_empty() {
            let next = bus.next_on_subject(stream, EVERYTHING, from).await;
            page.extend(next.expect("the leader can be asked"));
        }

        let Some(last) = page.last() else { break };
        from = last.sequence + 1;
        page.iter().for_each(&mut look);
    }
}

/// The value of a message.
///
/// # Panics
/// Where it is not a `T`.
#[must_use]
pub fn decoded<T: WireMessage>(message: &StoredMessage) -> T {
    let value = message.decode();
    value.unwrap_or_else(|error| panic!("{} {}: {error}", message.subject, message.sequence))
}
