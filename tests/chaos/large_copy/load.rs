//! The events that fill a read model: messages of visitors, each in a conversation and with words of its own.

use shared::model::event::{Event, EventId};
use shared::model::origin::EventOrigin;
use shared::model::time::UnixMillis;

use crate::killer::Choices;

/// Conversations.
pub(super) const CONVERSATIONS: u64 = 1_000;
const CHANNEL: &str = "webchat";
/// What texts are made of.
const SYLLABLES: [&str; 16] = [
    "ba", "cor", "di", "el", "fun", "ga", "hi", "jo", "kan", "lu", "mer", "no", "pi", "ra", "sol", "ti",
];
/// Length of a text: an event has about 700 bytes then, with its headers.
const CONTENT_BYTES: usize = 240;

/// The peer of event `number`: one of [`CONVERSATIONS`].
pub(super) fn peer(number: u64) -> String {
    format!("v{}", number % CONVERSATIONS)
}

/// Words of one to three syllables, the same ones for the same `number`.
fn text(number: u64) -> String {
    let mut choices = Choices::new(number);
    let mut text = format!("n{number}");
    while text.len() < CONTENT_BYTES {
        text.push(' ');
        for _ in 0..=choices.below(3) {
            let index = usize::try_from(choices.below(SYLLABLES.len() as u64)).unwrap_or(0);
            text.push_str(SYLLABLES[index]);
        }
    }
    text
}

/// Event `number`, always the same one.
pub(super) fn event(number: u64) -> Event {
    let peer = peer(number);
    let id = EventId::parse(format!("{CHANNEL}:{peer}/{number}")).expect("valid");
    let at = UnixMillis(1_700_000_000_000 + i64::try_from(number).unwrap_or(0));
    let mut event = Event::new(id, CHANNEL, &peer, at);
    event.origin = EventOrigin::visitor("default", &peer);
    event.from.id = peer;
    event.content = text(number);
    event
}
