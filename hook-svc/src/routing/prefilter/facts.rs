//! Values of an event that rules can test. *Pure.*

use std::borrow::Cow;
use std::cell::OnceCell;

use serde_json::Value;
use shared::model::event::Event;

/// A field of an event.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EventField {
    /// `channel`: the name of the channel.
    Channel,
    /// `account`: the name of the account, `default` if the event has none.
    Account,
    /// `source`: the adapter, and for webhooks also the name of their source.
    Source,
    /// `direction`: the direction of the event.
    Direction,
    /// `from`: the id of the sender.
    From,
    /// `role`: any of the sender's roles.
    Role,
    /// `kind`: `dm`, `group` or `channel`.
    Kind,
    /// `peer`: the id of the conversation.
    Peer,
    /// `parent`: the id of the conversation above it.
    Parent,
    /// `guild`: the id of the guild.
    Guild,
    /// `team`: the id of the team.
    Team,
    /// `thread`: the id of the thread.
    Thread,
    /// `type`: any of the content types.
    Type,
    /// `tag`: any of the event's tags.
    Tag,
    /// `content`: the text, compared without regard to ASCII case.
    Content,
    /// `metadata.a.b`: a text, number or boolean in the metadata.
    Metadata(Vec<String>),
}

impl EventField {
    /// Returns the field called `name`, if there is one.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        if let Some(path) = name.strip_prefix("metadata.") {
            let parts: Vec<String> = path.split('.').map(str::to_owned).collect();
            return parts
                .iter()
                .all(|part| !part.is_empty())
                .then_some(Self::Metadata(parts));
        }

        Some(match name {
            "channel" => Self::Channel,
            "account" => Self::Account,
            "source" => Self::Source,
            "direction" => Self::Direction,
            "from" | "sender" => Self::From,
            "role" => Self::Role,
            "kind" => Self::Kind,
            "peer" => Self::Peer,
            "parent" => Self::Parent,
            "guild" => Self::Guild,
            "team" => Self::Team,
            "thread" => Self::Thread,
            "type" => Self::Type,
            "tag" => Self::Tag,
            "content" => Self::Content,
            _ => return None,
        })
    }
}

/// View of an event for rules.
#[derive(Debug)]
pub(super) struct EventFacts<'e> {
    event: &'e Event,
    content: OnceCell<String>,
}

impl<'e> EventFacts<'e> {
    pub(super) const fn of_event(event: &'e Event) -> Self {
        Self {
            event,
            content: OnceCell::new(),
        }
    }

    /// Returns the text in lower case (ASCII).
    pub(super) fn lowercase_content(&self) -> &str {
        self.content.get_or_init(|| self.event.content.to_ascii_lowercase())
    }

    /// Calls `ask` with the values of `field` until it returns true. Returns whether it did.
    pub(super) fn any_value(&self, field: &EventField, mut ask: impl FnMut(&str) -> bool) -> bool {
        let event = self.event;
        match field {
            EventField::Channel => ask(&event.channel),
            EventField::Account => ask(event.account()),
            EventField::Source => {
                ask(&event.source_adapter) || event.metadata.get("source").and_then(Value::as_str).is_some_and(ask)
            }
            EventField::Direction => ask(event.direction.name()),
            EventField::From => ask(&event.from.id),
            EventField::Role => event.from.roles.iter().any(|role| ask(role)),
            EventField::Kind => ask(event.peer.kind.name()),
            // A group that goes on under another id is still the one that a binding means.
            EventField::Peer => ask(&event.peer.id) || event.former_peer().is_some_and(ask),
            EventField::Parent => event.peer.parent_id.as_deref().is_some_and(ask),
            EventField::Guild => event.peer.guild_id.as_deref().is_some_and(ask),
            EventField::Team => event.peer.team_id.as_deref().is_some_and(ask),
            EventField::Thread => event.thread_id.as_deref().is_some_and(ask),
            EventField::Type => event.content_types.iter().any(|kind| ask(kind)),
            EventField::Tag => event.tags.iter().any(|tag| ask(tag)),
            EventField::Content => ask(self.lowercase_content()),
            EventField::Metadata(path) => {
                let mut parts = path.iter();
                let first = parts.next().and_then(|part| event.metadata.get(part));
                let found = parts.try_fold(first, |value, part| value.map(|value| inner_value(value, part)));
                found.flatten().and_then(scalar_text).is_some_and(|text| ask(&text))
            }
        }
    }
}

/// Returns the member or item of `value` that `part` names.
pub(crate) fn inner_value<'v>(value: &'v Value, part: &str) -> Option<&'v Value> {
    match value {
        Value::Object(object) => object.get(part),
        Value::Array(items) => items.get(part.parse::<usize>().ok()?),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// Returns a plain value as text; `None` for null, lists and objects.
pub(crate) fn scalar_text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Number(number) => Some(Cow::Owned(number.to_string())),
        Value::Bool(truth) => Some(Cow::Borrowed(if *truth { "true" } else { "false" })),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}
