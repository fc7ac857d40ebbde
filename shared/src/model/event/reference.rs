//! References of an event to other messages and to the installation's account. *Pure.* Source:
//! `docs/design/wire.md` §1.1.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Event, EventSender};

/// Key of the metadata that names the texts of an event that was made of several: `{id, bytes, changed_at?}` of each, in their
/// order. An edit that has it has all that is left of them.
pub const MERGED_TEXTS: &str = "texts";

/// Key of [`PlatformIds`] in the metadata of an event.
const PLATFORM: &str = "platform";

/// Maximum number of platform ids of an event: those beyond it cannot be referred to.
const MAX_PLATFORM_IDS: usize = 100;

/// How a message addresses the installation's account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MentionForm {
    /// By the platform's own mention.
    Native,
    /// By a reply to a message of the account.
    Reply,
    /// In a thread that the account has begun or written in.
    Thread,
    /// By its name in the text.
    Text,
    /// By a command.
    Command,
    /// Not at all.
    None,
}

impl MentionForm {
    /// Returns the name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Reply => "reply",
            Self::Thread => "thread",
            Self::Text => "text",
            Self::Command => "command",
            Self::None => "none",
        }
    }
}

/// Whether and how an event addresses the installation's account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventMention {
    /// Whether the account is addressed.
    pub me: bool,
    /// How it is addressed.
    pub how: MentionForm,
}

/// A part of another message that an event quotes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventQuote {
    /// Id of the event that is quoted.
    pub id: String,
    /// Text that is quoted.
    pub text: String,
    /// Sender of the quoted message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<EventSender>,
}

/// The ids that a platform has for the messages of an event: several, if it shows one event as several messages.
///
/// They are the key `platform` of the event's metadata, so that a later reply, reaction, edit or press of a button,
/// which names a platform's id, finds its event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlatformIds {
    /// Ids in the conversation of the event.
    pub ids: Vec<String>,
    /// Index of the part of a reply that the event is, from 0.
    pub part: u32,
}

impl PlatformIds {
    /// Writes the ids to the metadata of `event`. Writes nothing if there are none.
    pub fn write_to(&self, event: &mut Event) {
        if !self.ids.is_empty() {
            let written = json!({"ids": self.ids, "part": self.part});
            event.metadata.insert(PLATFORM.to_owned(), written);
        }
    }

    /// Returns the ids in the metadata of `event`, or `None` if it has none. Values that are not strings are ignored.
    #[must_use]
    pub fn from_event(event: &Event) -> Option<Self> {
        let platform = event.metadata.get(PLATFORM)?;
        let texts = platform.get("ids")?.as_array()?.iter().filter_map(Value::as_str);
        let ids: Vec<String> = texts
            .filter(|id| !id.is_empty())
            .take(MAX_PLATFORM_IDS)
            .map(str::to_owned)
            .collect();

        let part = platform.get("part").and_then(Value::as_u64);
        let part = part.and_then(|part| u32::try_from(part).ok()).unwrap_or(0);
        (!ids.is_empty()).then_some(Self { ids, part })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::EventId;
    use crate::model::time::UnixMillis;

    fn event() -> Event {
        let id = EventId::parse("telegram:bot/1/2").expect("an id");
        Event::new(id, "telegram", "1", UnixMillis(5))
    }

    #[test]
    fn platform_ids_come_back() {
        let ids = PlatformIds {
            ids: vec!["11".to_owned(), "12".to_owned()],
            part: 3,
        };
        let mut event = event();
        ids.write_to(&mut event);
        assert_eq!(PlatformIds::from_event(&event), Some(ids));
    }

    #[test]
    fn metadata_of_any_form_is_read() {
        for (metadata, ids) in [
            (json!({}), None),
            (json!({"platform": "telegram"}), None),
            (json!({"platform": {"ids": "11"}}), None),
            (json!({"platform": {"ids": [1, "", null]}}), None),
            (
                json!({"platform": {"ids": ["11", 5], "part": -1}}),
                Some(vec!["11".to_owned()]),
            ),
        ] {
            let mut event = event();
            event.metadata = metadata.as_object().cloned().unwrap_or_default();
            assert_eq!(
                PlatformIds::from_event(&event).map(|found| found.ids),
                ids,
                "{metadata}"
            );
        }
    }
}
