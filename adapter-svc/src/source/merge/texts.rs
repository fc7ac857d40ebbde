//! The texts of an event that was made of several, as its metadata names them, so that one of them can be changed later. *Pure.*

use serde::{Deserialize, Serialize};
use serde_json::json;
use shared::model::event::{BACKFILLED, Event, EventDirection, MERGED_TEXTS};
use shared::model::time::UnixMillis;

use crate::source::raw_payload::RAW;

/// Key of the metadata that names the text whose change the event is.
const CHANGED_TEXT: &str = "changed_text";

/// One of the texts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct MergedText {
    /// Id of the event that it would have been alone.
    id: String,
    /// Its length, in bytes; 0 = it was deleted.
    bytes: usize,
    /// When it was edited or deleted last, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    changed_at: Option<UnixMillis>,
    #[serde(skip)]
    text: String,
}

/// The texts of a merged event, in their order. The event's content has those that are left, a line break between two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MergedTexts(Vec<MergedText>);

impl MergedTexts {
    /// Returns the texts of `parts`; `None` unless they are several messages of text alone.
    pub(super) fn of_parts(parts: &[Event]) -> Option<Self> {
        let is_text =
            |part: &Event| part.content_types == ["text"] && part.attachments.is_empty() && !part.content.is_empty();
        if parts.len() < 2 || !parts.iter().all(is_text) {
            return None;
        }
        let texts = parts.iter().map(|part| MergedText {
            id: part.id.to_string(),
            bytes: part.content.len(),
            changed_at: None,
            text: part.content.clone(),
        });
        Some(Self(texts.collect()))
    }

    /// Returns the texts of `event`; `None` if it was not made of several, or its content is not theirs.
    #[must_use]
    pub fn from_event(event: &Event) -> Option<Self> {
        let told = event.metadata.get(MERGED_TEXTS)?.clone();
        let mut texts: Vec<MergedText> = serde_json::from_value(told).ok()?;

        let (mut rest, mut is_first) = (event.content.as_str(), true);
        for text in texts.iter_mut().filter(|text| text.bytes > 0) {
            if !std::mem::take(&mut is_first) {
                rest = rest.strip_prefix('\n')?;
            }
            let (own, behind) = rest.split_at_checked(text.bytes)?;
            own.clone_into(&mut text.text);
            rest = behind;
        }
        (rest.is_empty() && !texts.is_empty()).then_some(Self(texts))
    }

    /// Returns the ids of the events that the texts would have been alone.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|text| text.id.as_str())
    }

    /// Writes the texts to `event`.
    pub(super) fn write_to(&self, event: &mut Event) {
        let texts = self.0.iter().map(|text| text.text.as_str());
        let left: Vec<&str> = texts.filter(|text| !text.is_empty()).collect();
        event.content = left.join("\n");
        event.metadata.insert(MERGED_TEXTS.to_owned(), json!(self.0));
    }

    /// Replaces the text `id` by that of the time `at`, or by nothing if it was deleted then. Returns whether it is another one
    /// now; `None` if there is none. An earlier change that comes again undoes no later one.
    fn replace(&mut self, id: &str, text: &str, at: UnixMillis) -> Option<bool> {
        let found = self.0.iter_mut().find(|one| one.id == id)?;
        if found.text == text || found.changed_at.is_some_and(|known| at < known) {
            return Some(false);
        }
        text.clone_into(&mut found.text);
        found.bytes = text.len();
        found.changed_at = Some(at);
        Some(true)
    }

    fn is_gone(&self) -> bool {
        self.0.iter().all(|text| text.text.is_empty())
    }
}

/// Returns the change of the merged event `whole` that follows from `change`, an edit or a deletion of one of its texts: an edit
/// of the event, or its deletion if no text is left. `None` if `change` is not about one of them, or not by their sender, in
/// whose name the event speaks. If `whole` has `change` already, or a later one of the same text, the texts stay the same.
#[must_use]
pub fn change_merged(whole: &Event, change: &Event) -> Option<Event> {
    let mut texts = MergedTexts::from_event(whole)?;
    let is_deletion = change.direction == EventDirection::Deleted;
    // Some platforms do not say who deleted a message.
    let is_nameless = is_deletion && change.from.id.is_empty();
    if !is_nameless && change.from.id != whole.from.id {
        return None;
    }

    let text = if is_deletion { "" } else { change.content.as_str() };
    let changed_at = change.edited_at.unwrap_or(change.received_at);
    let is_other = texts.replace(change.id.as_str(), text, changed_at)?;
    // An edit that comes behind the deletion brings nothing back.
    if whole.direction == EventDirection::Deleted && !is_deletion {
        return Some(whole.clone());
    }
    if texts.is_gone() {
        let mut event = Event {
            id: whole.id.clone(),
            source_id: whole.source_id.clone(),
            ..change.clone()
        };
        texts.write_to(&mut event);
        return Some(event);
    }

    let edited_at = match whole.edited_at {
        Some(before) if is_other => before.max(changed_at),
        Some(before) => before,
        None => changed_at,
    };
    let mut event = Event {
        direction: EventDirection::Updated,
        received_at: change.received_at,
        edited_at: Some(edited_at),
        ..whole.clone()
    };
    texts.write_to(&mut event);
    if !is_deletion {
        event.tags.clone_from(&change.tags);
        if change.mention.is_some_and(|mention| mention.me) {
            event.mention = change.mention;
        }
    }

    // Earlier payloads have text that was taken back.
    event.metadata.remove(RAW);
    let raw = change.metadata.get(RAW).cloned();
    event.metadata.extend(raw.map(|raw| (RAW.to_owned(), raw)));
    let changed = json!({"id": change.id.as_str(), "direction": change.direction.name()});
    event.metadata.insert(CHANGED_TEXT.to_owned(), changed);
    Some(event)
}

/// Returns the event to be stored for `part`, a message that was read again and is one of the texts of `whole`: `whole` as it is
/// now, under its own id, so that it is there again if it was lost and makes no second event otherwise. `None` if it was deleted.
#[must_use]
pub fn as_read_again(whole: Event, part: &Event) -> Option<Event> {
    let direction = match whole.direction {
        EventDirection::Deleted => return None,
        // A change would be an event beside the first one.
        EventDirection::Updated => part.direction,
        EventDirection::Received | EventDirection::Sent | EventDirection::Observed | EventDirection::Created => {
            whole.direction
        }
    };
    let mut event = Event {
        direction,
        received_at: part.received_at,
        ..whole
    };
    event.metadata.remove(CHANGED_TEXT);
    if part.tags.iter().any(|tag| tag == BACKFILLED) {
        event.add_tag(BACKFILLED);
    }
    Some(event)
}

#[cfg(test)]
mod tests {
    use shared::model::event::EventId;

    use super::*;

    fn text(number: i64, content: &str) -> Event {
        let id = EventId::parse(format!("slack:main/D1/{number}")).expect("an id");
        let mut event = Event::new(id, "slack", "D1", UnixMillis(number));
        event.content = content.to_owned();
        event.from.id = "U5".to_owned();
        event
    }

    /// The event of the texts `one`, `two` and `three`.
    fn whole() -> Event {
        let parts = [text(1, "one"), text(2, "zwei\nzwei"), text(3, "drei")];
        let mut event = parts[0].clone();
        MergedTexts::of_parts(&parts).expect("texts").write_to(&mut event);
        event.metadata.insert(RAW.to_owned(), json!("secret"));
        event
    }

    fn change(number: i64, direction: EventDirection, content: &str) -> Event {
        Event {
            direction,
            edited_at: Some(UnixMillis(100 + number)),
            received_at: UnixMillis(1_000),
            ..text(number, content)
        }
    }

    #[test]
    fn a_change_of_one_text_leaves_the_others() {
        let whole = whole();
        assert_eq!(whole.content, "one\nzwei\nzwei\ndrei");
        let edited = change_merged(&whole, &change(2, EventDirection::Updated, "two")).expect("an edit");
        assert_eq!(
            (edited.id.as_str(), edited.content.as_str(), edited.direction),
            ("slack:main/D1/1", "one\ntwo\ndrei", EventDirection::Updated)
        );
        assert_eq!(edited.edited_at, Some(UnixMillis(102)));
        assert_eq!(edited.metadata.get(RAW), None);
        assert_eq!(
            edited.metadata[CHANGED_TEXT],
            json!({"id": "slack:main/D1/2", "direction": "updated"})
        );

        // The first one is deleted, then the others.
        let deletion = |number: i64| change(number, EventDirection::Deleted, "");
        let left = change_merged(&edited, &deletion(1)).expect("an edit");
        assert_eq!(
            (left.content.as_str(), left.direction),
            ("two\ndrei", EventDirection::Updated)
        );
        assert_eq!(change_merged(&left, &deletion(1)), Some(left.clone()), "it comes again");
        let left = change_merged(&left, &deletion(3)).expect("an edit");
        let gone = change_merged(&left, &deletion(2)).expect("a deletion");
        assert_eq!(
            (gone.id.as_str(), gone.content.as_str(), gone.direction),
            ("slack:main/D1/1", "", EventDirection::Deleted)
        );
        assert_eq!(gone.source_id, "main/D1/1");
    }

    #[test]
    fn an_earlier_change_of_a_text_undoes_no_later_one() {
        let at = |time: i64, direction: EventDirection, content: &str| Event {
            edited_at: Some(UnixMillis(time)),
            ..change(2, direction, content)
        };
        let earlier = at(100, EventDirection::Updated, "two");
        let edited = change_merged(&whole(), &earlier).expect("an edit");
        // Another text was changed later, or in the same second.
        let other = change_merged(&edited, &change(1, EventDirection::Updated, "eins")).expect("an edit");
        let later = change_merged(&other, &at(110, EventDirection::Updated, "two!")).expect("an edit");
        assert_eq!(later.content, "eins\ntwo!\ndrei");
        let again = change_merged(&later, &earlier).expect("an edit");
        assert_eq!(
            (again.content, again.edited_at),
            (later.content.clone(), later.edited_at)
        );

        let deleted = change_merged(&later, &at(120, EventDirection::Deleted, "")).expect("an edit");
        let again = change_merged(&deleted, &at(110, EventDirection::Updated, "two!")).expect("an edit");
        assert_eq!(
            (deleted.content.as_str(), again.content.as_str()),
            ("eins\ndrei", "eins\ndrei")
        );
    }

    #[test]
    fn a_text_that_is_read_again_is_the_event_as_it_is_now() {
        let again = as_read_again(whole(), &text(2, "zwei")).expect("an event");
        assert_eq!(
            (again.content.as_str(), again.direction),
            ("one\nzwei\nzwei\ndrei", EventDirection::Received)
        );

        let edited = change_merged(&whole(), &change(2, EventDirection::Updated, "two")).expect("an edit");
        let again = as_read_again(edited, &text(1, "one")).expect("an event");
        assert_eq!(
            (again.id.as_str(), again.content.as_str(), again.direction),
            ("slack:main/D1/1", "one\ntwo\ndrei", EventDirection::Received)
        );
        assert_eq!(again.metadata.get(CHANGED_TEXT), None);
    }

    #[test]
    fn what_is_about_another_event_changes_none() {
        let whole = whole();
        let mut foreign = change(2, EventDirection::Updated, "two");
        foreign.from.id = "U6".to_owned();
        assert_eq!(change_merged(&whole, &foreign), None);
        assert_eq!(change_merged(&whole, &change(4, EventDirection::Deleted, "")), None);
        assert_eq!(
            change_merged(&text(2, "two"), &change(2, EventDirection::Deleted, "")),
            None
        );
        let mut other = whole;
        other.content.push('!');
        assert_eq!(MergedTexts::from_event(&other), None);
        assert_eq!(MergedTexts::of_parts(&[text(1, "one")]), None);
    }
}
