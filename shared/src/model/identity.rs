//! Identities: persons, their addresses, groups and the owner (`identities.yaml`). *Pure.*
//!
//! Source: `docs/design/operations.md` §1; seed 001 §4 (default permissions).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::event::{Event, PeerKind};
use super::origin::proven_name;
use super::permission::{PermissionLevel, PermissionSet};
use super::proof::ProvenOrigin;
use super::session::PeerName;

/// One person and the addresses at which this person is reached on each channel.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownPerson {
    /// Canonical id of the person.
    pub id: String,
    /// Name that is shown to people.
    #[serde(default)]
    pub name: Option<String>,
    /// Relationship to the owner (`family`, `colleague`, …).
    #[serde(default)]
    pub relationship: Option<String>,
    /// Ids by channel. The channel `*` is every channel whose senders are proven by a platform account.
    #[serde(default)]
    pub addresses: BTreeMap<String, Vec<String>>,
}

/// The content of `identities.yaml`.
///
/// ```
/// use shared::model::identity::Identities;
///
/// let identities: Identities = serde_json::from_value(serde_json::json!({
///     "owner": "ann",
///     "persons": [{"id": "ann", "addresses": {"telegram": ["4711"]}}],
/// }))?;
/// assert_eq!(identities.find_person("telegram", "4711").map(|person| person.id.as_str()), Some("ann"));
/// assert!(identities.find_faults().is_empty());
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identities {
    /// Id of the person whom the installation serves.
    #[serde(default)]
    pub owner: Option<String>,
    /// All persons that the installation knows.
    #[serde(default)]
    pub persons: Vec<KnownPerson>,
    /// Ids of the members by group name.
    #[serde(default)]
    pub groups: BTreeMap<String, Vec<String>>,
}

impl Identities {
    /// Returns every error in the identities, each with its dotted key.
    #[must_use]
    pub fn find_faults(&self) -> Vec<(String, String)> {
        let mut faults = Vec::new();
        let mut ids = BTreeSet::new();
        for (index, person) in self.persons.iter().enumerate() {
            let key = format!("persons[{index}].id");
            if person.id.is_empty() {
                faults.push((key, "expected a non-empty id".to_owned()));
            } else if !ids.insert(person.id.as_str()) {
                faults.push((key, format!("the id `{}` is used twice", person.id)));
            }
        }

        // One address of two persons would let the order of the file decide about a sender's identity.
        let mut owners: BTreeMap<(&str, &str), &str> = BTreeMap::new();
        for (index, person) in self.persons.iter().enumerate() {
            for (channel, addresses) in &person.addresses {
                for address in addresses {
                    let known = owners.insert((channel.as_str(), address.as_str()), person.id.as_str());
                    if let Some(other) = known.filter(|other| *other != person.id.as_str()) {
                        faults.push((
                            format!("persons[{index}].addresses.{channel}"),
                            format!("`{address}` is also an address of `{other}`"),
                        ));
                    }
                }
            }
        }

        // An owner who is no person could never be recognized.
        if let Some(owner) = self.owner.as_deref().filter(|owner| !ids.contains(owner)) {
            faults.push(("owner".to_owned(), format!("`{owner}` is not in persons")));
        }

        for (group, members) in &self.groups {
            for member in members.iter().filter(|member| !ids.contains(member.as_str())) {
                faults.push((format!("groups.{group}"), format!("`{member}` is not in persons")));
            }
        }

        faults
    }

    /// Returns the person whose address on `channel` is `address`.
    #[must_use]
    pub fn find_person(&self, channel: &str, address: &str) -> Option<&KnownPerson> {
        self.person_at(&[channel, "*"], address)
    }

    /// Returns the person who wrote `event`, as far as its origin proves the sender.
    #[must_use]
    pub fn find_sender(&self, event: &Event) -> Option<&KnownPerson> {
        self.resolve(event, &event.from.id)
    }

    /// Returns the person whose address on the channel of `event` is `address`, as far as the origin of `event`
    /// proves it; `None` if the sender is a stranger, or the event merely claims to be from a person.
    #[must_use]
    pub fn resolve(&self, event: &Event, address: &str) -> Option<&KnownPerson> {
        match event.origin.proof_of_address(event, address) {
            ProvenOrigin::OnEveryChannel => self.find_person(&event.channel, address),
            ProvenOrigin::OnItsChannel => self.person_at(&[&event.channel], address),
            ProvenOrigin::SpokenFor => self
                .find_person(&event.channel, address)
                .filter(|person| event.may_speak_for(&person.id)),
            ProvenOrigin::Nobody => None,
        }
    }

    fn person_at(&self, channels: &[&str], address: &str) -> Option<&KnownPerson> {
        self.persons.iter().find(|person| {
            channels.iter().any(|channel| {
                let known = person.addresses.get(*channel);
                known.is_some_and(|known| known.iter().any(|a| a == address))
            })
        })
    }

    /// Returns the default permissions of the sender of `event`, for hooks that set none: owner → `full`, group
    /// conversation → `group`, known person → `restricted`, stranger → `minimal`.
    ///
    /// The owner gets `group` in a group conversation too, because others read the reply.
    #[must_use]
    pub fn default_permissions(&self, event: &Event) -> PermissionSet {
        let person = self.find_sender(event);
        let level = match (event.peer.kind, person) {
            (PeerKind::Group | PeerKind::Channel, Some(_)) => PermissionLevel::Group,
            (PeerKind::Dm, Some(person)) if self.owner.as_deref() == Some(person.id.as_str()) => PermissionLevel::Full,
            (PeerKind::Dm, Some(_)) => PermissionLevel::Restricted,
            (PeerKind::Dm | PeerKind::Group | PeerKind::Channel, None) => PermissionLevel::Minimal,
        };

        PermissionSet {
            level,
            ..PermissionSet::default()
        }
    }

    /// Returns the conversation's peer for session keys: the canonical person in a direct conversation, otherwise the
    /// peer's id, which is an address. A group that goes on under another id has the one that it had ([`Event::former_peer`]).
    ///
    /// Two peers never have the same name: a peer that its origin does not prove is `~{origin}~{id}`, and an unknown
    /// peer whose id equals a person's id, or looks like such a name, is `~={id}`.
    #[must_use]
    pub fn canonical_peer<'a>(&'a self, event: &'a Event) -> PeerName<'a> {
        let peer = event.peer.id.as_str();
        if !event.origin.speaks_on(event) {
            return PeerName::Address(Cow::Owned(event.origin.said_name(peer)));
        }

        let person = match event.peer.kind {
            PeerKind::Dm => self.resolve(event, peer),
            PeerKind::Group | PeerKind::Channel => None,
        };
        // A stranger's id that equals a person's id must not get the person's session.
        let is_taken = event.peer.kind == PeerKind::Dm && self.persons.iter().any(|known| known.id == peer);
        match person {
            Some(person) => PeerName::Person(proven_name(&person.id)),
            None if is_taken => PeerName::Address(Cow::Owned(format!("~={peer}"))),
            None => PeerName::Address(proven_name(event.former_peer().unwrap_or(peer))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::EventId;
    use super::super::origin::EventOrigin;
    use super::super::time::UnixMillis;
    use super::*;

    /// Returns identities with an owner whose address is `me` under `key`.
    fn identities(key: &str) -> Identities {
        let owner = KnownPerson {
            id: "owner".to_owned(),
            addresses: BTreeMap::from([(key.to_owned(), vec!["me".to_owned()])]),
            ..KnownPerson::default()
        };

        Identities {
            owner: Some("owner".to_owned()),
            persons: vec![owner],
            groups: BTreeMap::new(),
        }
    }

    /// Returns a direct message from `me` on `channel`, which `origin` brought.
    fn event(channel: &str, origin: &str) -> Event {
        let mut event = Event::new(EventId::parse("x:1").unwrap(), channel, "me", UnixMillis(1));
        event.from.id = "me".to_owned();
        event.origin = EventOrigin::parse(origin).unwrap();
        event
    }

    /// Returns level and session name of a direct message from `me`, if `me` is the owner's address under `key`.
    fn check(key: &str, channel: &str, origin: &str) -> (PermissionLevel, String) {
        let (identities, event) = (identities(key), event(channel, origin));
        let level = identities.default_permissions(&event).level;
        (level, identities.canonical_peer(&event).as_str().to_owned())
    }

    #[test]
    fn an_address_belongs_to_one_person() {
        let mut identities = identities("telegram");
        assert_eq!(identities.find_faults(), []);

        let other = KnownPerson {
            id: "ann".to_owned(),
            addresses: BTreeMap::from([("telegram".to_owned(), vec!["you".to_owned(), "me".to_owned()])]),
            ..KnownPerson::default()
        };
        identities.persons.push(other);

        let [(key, problem)] = identities.find_faults().try_into().expect("one fault");
        assert_eq!(key, "persons[1].addresses.telegram");
        assert!(problem.contains("`me`") && problem.contains("`owner`"), "{problem}");
    }

    #[test]
    fn a_person_resolves_only_through_what_the_origin_proves() {
        let owner = (PermissionLevel::Full, "owner".to_owned());
        let stranger = |peer: &str| (PermissionLevel::Minimal, peer.to_owned());
        assert_eq!(check("*", "telegram", "verified:telegram/default"), owner);
        assert_eq!(check("telegram", "telegram", "verified:telegram/default"), owner);
        assert_eq!(check("webchat", "webchat", "verified:webchat/default/me"), owner);

        assert_eq!(
            check("*", "webchat", "verified:webchat/default/me"),
            stranger("me"),
            "a visitor is known on the page alone"
        );

        for (channel, origin) in [
            ("telegram", "open"),
            ("telegram", "verified:telegram/other"),
            ("telegram", "verified:webhook/std"),
            ("webchat", "verified:webchat/default/you"),
            ("mail", "open"),
        ] {
            for key in ["*", channel] {
                assert_eq!(
                    check(key, channel, origin),
                    stranger(&format!("~{origin}~me")),
                    "{origin}"
                );
            }
        }

        for (channel, origin) in [
            ("telegram", "token:crm"),
            ("telegram", "edge:roof"),
            // A mail's `From`, forged or not: the account that fetched the mail does not prove it.
            ("email", "verified:email/default"),
            ("gmail", "verified:gmail/default"),
        ] {
            for key in ["*", channel] {
                assert_eq!(check(key, channel, origin), stranger("me"), "{origin}");
            }
        }
    }

    #[test]
    fn who_is_spoken_for_resolves() {
        let identities = identities("telegram");
        for origin in ["token:crm", "edge:roof", "verified:webhook/std"] {
            let mut event = event("telegram", origin);
            event.speaks_for = vec!["mom".to_owned()];
            assert_eq!(identities.find_sender(&event), None, "{origin}");

            for named in ["owner", "*"] {
                event.speaks_for = vec![named.to_owned()];
                assert_eq!(
                    identities.find_sender(&event).map(|p| p.id.as_str()),
                    Some("owner"),
                    "{origin}"
                );
            }
        }

        let mut open = event("telegram", "open");
        open.speaks_for = vec!["*".to_owned()];
        assert_eq!(identities.find_sender(&open), None);
    }

    #[test]
    fn no_peer_takes_the_name_of_another() {
        let identities = identities("telegram");
        let mut seen = BTreeSet::new();

        let peers = ["me", "owner", "~=owner", "~open~me", "x"];
        for (origin, peer) in ["verified:telegram/default", "open", "verified:telegram/~", "token:a"]
            .into_iter()
            .flat_map(|origin| peers.map(|peer| (origin, peer)))
        {
            let mut event = event("telegram", origin);
            event.peer.id = peer.to_owned();
            let name = identities.canonical_peer(&event).as_str().to_owned();
            // A token of the channel may speak on its conversations, like the platform's account.
            let is_shared = origin == "token:a" && peer != "me";
            assert_eq!(seen.insert(name.clone()), !is_shared, "{origin} {peer}: {name}");
        }
    }
}
