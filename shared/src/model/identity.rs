//! Who is who: persons, their addresses, groups, the owner (`identities.yaml`). *Pure.*
//!
//! Source: `operations.md` "Configuration"; `001_63a3878cde6a1bc3.txt` §4 (default permissions).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::event::{Event, PeerKind};
use super::permission::{Level, PermissionSet, ToolRules};

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
    /// Channel → ids there. The channel `*` stands for any.
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
    /// The person whose address on `channel` is `address`.
    #[must_use]
    pub fn person(&self, channel: &str, address: &str) -> Option<&Person> {
        self.persons.iter().find(|person| {
            [channel, "*"].iter().any(|key| {
                person
                    .addresses
                    .get(*key)
                    .is_some_and(|known| known.iter().any(|a| a == address))
            })
        })
    }

    /// What the sender of `event` may have done for them, where the hook says nothing:
    /// owner → `full`, group conversation → `group`, known person → `restricted`, anybody else → `minimal`.
    ///
    /// The owner speaking in a group gets `group` too: others read the answer.
    #[must_use]
    pub fn default_permissions(&self, event: &Event) -> PermissionSet {
        let person = self.person(&event.channel, &event.from.id);
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
                .person(&event.channel, &event.peer.id)
                .map_or(event.peer.id.as_str(), |p| &p.id),
            PeerKind::Group | PeerKind::Channel => &event.peer.id,
        }
    }
}
