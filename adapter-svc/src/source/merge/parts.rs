//! What a message may be merged with, and the event of several messages. *Pure.*

use serde_json::{Value, json};
use shared::model::approval::read_decision_word;
use shared::model::event::{Event, EventDirection, MAX_ATTACHMENTS, PlatformIds};

use super::texts::MergedTexts;
use crate::source::raw_payload::{MAX_RAW_BYTES, RAW};

/// Returns the album of which `event` is a message; `None` if it is none, or an edit of one.
pub(super) fn album_of(event: &Event) -> Option<String> {
    let album = event.metadata.get("album").and_then(Value::as_str)?;
    (event.direction == EventDirection::Received).then(|| album.to_owned())
}

/// Returns whether `event` is a text that a person has written just now: no edit, press, file or command, and no decision
/// about an approval, whose code is for no agent.
pub(super) fn is_text(event: &Event) -> bool {
    let first = event.content.split_whitespace().next().unwrap_or_default();
    let counts_alone = first.starts_with('/') || read_decision_word(first).is_some();
    let is_written = event.direction == EventDirection::Received && event.target.is_none();
    is_written && event.content_types == ["text"] && !counts_alone
}

/// Returns the number of a message at its place: what its platform's id ends with, without the point of a time stamp.
pub(super) fn message_number(event: &Event) -> i64 {
    let ids = PlatformIds::from_event(event);
    let last = ids.and_then(|platform| Some(platform.ids.first()?.rsplit('/').next()?.replace('.', "")));
    last.and_then(|last| last.parse().ok()).unwrap_or_default()
}

/// Returns the event of an album or a burst: its first message with the files, texts and ids of all `parts`, which are in
/// the order of their ids and at least one.
pub(super) fn merge_parts(mut parts: Vec<Event>) -> Event {
    let raws: Vec<Value> = parts
        .iter()
        .filter_map(|part| part.metadata.get(RAW).cloned())
        .collect();
    let is_whole = raws.len() == parts.len() && parts.len() > 1;
    let named = parts.iter().filter_map(PlatformIds::from_event);
    let ids = named.flat_map(|platform| platform.ids).collect();

    let texts = MergedTexts::of_parts(&parts);
    let rest = parts.split_off(1);
    let mut event = parts.remove(0);
    for part in rest {
        event.attachments.extend(part.attachments);
        for kind in part.content_types {
            if !event.content_types.contains(&kind) {
                event.content_types.push(kind);
            }
        }

        if !event.content.is_empty() && !part.content.is_empty() {
            event.content.push('\n');
        }
        event.content.push_str(&part.content);

        // A mention in any of the texts counts.
        if !event.mention.is_some_and(|mention| mention.me) {
            event.mention = part.mention;
        }
    }

    event.attachments.truncate(MAX_ATTACHMENTS);
    PlatformIds { ids, part: 0 }.write_to(&mut event);
    if let Some(texts) = texts {
        texts.write_to(&mut event);
    }

    let raws = json!(raws);
    if is_whole && raws.to_string().len() <= MAX_RAW_BYTES {
        event.metadata.insert(RAW.to_owned(), raws);
    }

    event
}
