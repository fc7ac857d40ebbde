//! Who is who: persons, their addresses, groups, the owner (`identities.yaml`). *Pure.*
//!
//! Source: `operations.md` "Configuration"; `001_63a3878cde6a1bc3.txt` §4 (default permissions).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::event::{Event, PeerKind};
use super::permission::{Level, PermissionSet, ToolRules};

/// Key in an event's metadata by which adapter-svc says, with `true`, that nobody proved who its sender is: a page
/// without a login, an unsigned webhook, a post without a token. An address under `*` is not theirs.
pub const SELF_ASSERTED: &str = "self_asserted";

/// Whether an event's `metadata` says that nobody proved who its sender is.
#[must_use]
pub fn is_self_asserted(metadata: &Map<String, Value>) -> bool {
    metadata.get(SELF_ASSERTED).is_some_and(|said| said == true)
}

/// One person and how they are reached on each channel.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Person {
    /// The canonical id.
    pub id: String,
    /// The name shown to people.
    #[serde(default)]
    pub name: Option<String>,
    /// What they are to the owner (`family`, `colleague`, …).
    #[serde(default)]
    pub relationship: Option<String>,
    /// Channel → ids there. The channel `*` stands for any whose senders are proven ([`SELF_ASSERTED`]).
    #[serde(default)]
    pub addresses: BTreeMap<String, Vec<String>>,
}

/// The content of `identities.yaml`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identities {
    /// Id of the person whom the system serves.
    #[serde(default)]
    pub owner: Option<String>,
    /// Everybody known.
    #[serde(default)]
    pub persons: Vec<Person>,
    /// Group name → ids of its persons.
    #[serde(default)]
    pub groups: BTreeMap<String, Vec<String>>,
}

/// Presets of tools by level (`permission_levels` in `personas.yaml`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PermissionPresets(pub BTreeMap<String, ToolRules>);

impl Default for PermissionPresets {
    /// `full` = everything, `minimal` = `web_search` alone; the others must be configured.
    fn default() -> Self {
        let rules = |allow: &str| ToolRules {
            allow: Some(vec![allow.to_owned()]),
            deny: Vec::new(),
        };
        Self(BTreeMap::from([
            ("full".to_owned(), rules("*")),
            ("minimal".to_owned(), rules("web_search")),
        ]))
    }
}

impl Identities {
    /// What is wrong with it, everything at once.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut ids = BTreeSet::new();
        for person in &self.persons {
            if person.id.is_empty() {
                faults.push("persons.id: a non-empty id is expected".to_owned());
            } else if !ids.insert(person.id.as_str()) {
                faults.push(format!("persons: the id `{}` is expected once", person.id));
            }
        }
        if let Some(owner) = self.owner.as_deref().filter(|owner| !ids.contains(owner)) {
            faults.push(format!("owner: `{owner}` is expected among persons"));
        }
        for (group, members) in &self.groups {
            for member in members.iter().filter(|member| !ids.contains(member.as_str())) {
                faults.push(format!("groups.{group}: `{member}` is expected among persons"));
            }
        }
        faults
    }

    /// The person whose address on `channel` is `address`.
    #[must_use]
    pub fn person(&self, channel: &str, address: &str) -> Option<&Person> {
        self.known(&[channel, "*"], address)
    }

    /// As [`Identities::person`], for somebody who merely says so: they need to be named for the channel itself.
    #[must_use]
    pub fn person_asserted(&self, channel: &str, address: &str) -> Option<&Person> {
        self.known(&[channel], address)
    }

    fn person_of(&self, event: &Event, address: &str) -> Option<&Person> {
        if is_self_asserted(&event.metadata) {
            self.person_asserted(&event.channel, address)
        } else {
            self.person(&event.channel, address)
        }
    }

    fn known(&self, channels: &[&str], address: &str) -> Option<&Person> {
        self.persons.iter().find(|person| {
            channels.iter().any(|channel| {
                let known = person.addresses.get(*channel);
                known.is_some_and(|known| known.iter().any(|a| a == address))
            })
        })
    }

    /// What the sender of `event` may have done for them, where the hook says nothing:
    /// owner → `full`, group conversation → `group`, known person → `restricted`, anybody else → `minimal`.
    ///
    /// The owner speaking in a group gets `group` too: others read the answer.
    #[must_use]
    pub fn default_permissions(&self, event: &Event) -> PermissionSet {
        let person = self.person_of(event, &event.from.id);
        let level = match (event.peer.kind, person) {
            (PeerKind::Group | PeerKind::Channel, Some(_)) => Level::Group,
            (PeerKind::Dm, Some(person)) if self.owner.as_deref() == Some(person.id.as_str()) => Level::Full,
            (PeerKind::Dm, Some(_)) => Level::Restricted,
            (PeerKind::Dm | PeerKind::Group | PeerKind::Channel, None) => Level::Minimal,
        };
        PermissionSet {
            level,
            ..PermissionSet::default()
        }
    }

    /// The id by which a direct conversation's session is named: the canonical person's, or the peer's own.
    #[must_use]
    pub fn canonical_peer<'a>(&'a self, event: &'a Event) -> &'a str {
        match event.peer.kind {
            PeerKind::Dm => self
                .person_of(event, &event.peer.id)
                .map_or(event.peer.id.as_str(), |p| &p.id),
            PeerKind::Group | PeerKind::Channel => &event.peer.id,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::EventId;
    use super::super::time::UnixMillis;
    use super::*;

    /// Level and session's name of a direct message from `me` on `channel`, where `me` is the owner's address under
    /// `key`.
    fn check(key: &str, channel: &str, asserted: bool) -> (Level, String) {
        let owner = Person {
            id: "owner".to_owned(),
            addresses: BTreeMap::from([(key.to_owned(), vec!["me".to_owned()])]),
            ..Person::default()
        };
        let identities = Identities {
            owner: Some("owner".to_owned()),
            persons: vec![owner],
            groups: BTreeMap::new(),
        };
        let mut event = Event::new(EventId::parse("x:1").unwrap(), channel, "me", UnixMillis(1));
        event.from.id = "me".to_owned();
        if asserted {
            event.metadata.insert(SELF_ASSERTED.to_owned(), true.into());
        }
        let level = identities.default_permissions(&event).level;
        (level, identities.canonical_peer(&event).to_owned())
    }

    #[test]
    fn whoever_merely_says_so_is_nobody_by_a_star() {
        let (owner, stranger) = ((Level::Full, "owner".to_owned()), (Level::Minimal, "me".to_owned()));
        assert_eq!(check("*", "webchat", true), stranger);
        assert_eq!(check("*", "telegram", false), owner);
        assert_eq!(
            check("webchat", "webchat", true),
            owner,
            "the visitor's id is a secret of theirs"
        );
        assert_eq!(check("telegram", "webchat", true), stranger);
    }
}
