//! Participants: `EVENTS` → `contacts`, `contact_identifiers`, `event_participants`; `identities.yaml` → `persons`,
//! and their contacts → `person_contact_links`.
//!
//! A contact is an address on a channel, with the id `{channel}:{address}`. An address that the event's origin does
//! not prove is a separate contact, `{channel}:~{origin}~{address}`, which belongs to no person. Nearly every event
//! comes from a known contact, and must cost no more than its row in `event_participants`: the stored state of the
//! contacts met last is kept in memory, and `last_seen_at` advances in steps of [`SEEN_STEP_MS`]. The steps depend on
//! the events alone, so a rebuilt file has the same contents.

use std::borrow::Cow;
use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, params};

use crate::model::event::{Event, ParticipantRole};
use crate::model::identity::{Identities, KnownPerson};
use crate::model::origin::{WEBCHAT, proven_name};
use crate::model::proof::ProvenOrigin;
use crate::model::time::UnixMillis;

/// Lag in milliseconds from which `last_seen_at` is moved.
const SEEN_STEP_MS: i64 = 60_000;

/// Maximum number of contacts kept in memory; beyond it the memory is cleared, and they are read again.
const MAX_REMEMBERED: usize = 50_000;

/// Value of `source` for a contact that `identities.yaml` names and that no event has come from.
const NAMED: &str = "identities";

/// Key of addresses that are valid on any channel.
const ANY: &str = "*";

/// Identities of persons, and the stored state of the contacts met last.
#[derive(Debug, Default)]
pub(crate) struct ContactTable {
    identities: Identities,
    /// Index of the person by channel and address.
    owners: HashMap<(String, String), usize>,
    met: HashMap<String, MetContact>,
    /// Creation time of new persons.
    learnt_at: UnixMillis,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct MetContact {
    name: Option<String>,
    created_at: i64,
    last_seen_at: i64,
}

impl ContactTable {
    /// Clears the memory, because the transaction of its contents failed or the file is another one.
    pub(crate) fn forget_stored(&mut self) {
        self.met.clear();
    }

    /// Writes the participants of `event`.
    pub(super) fn write_contacts(&mut self, connection: &Connection, event: &Event) -> Result<(), rusqlite::Error> {
        let sender = (
            event.from.id.as_str(),
            event.from.display_name.as_deref(),
            ParticipantRole::Sender,
        );
        let others = event
            .participants
            .iter()
            .map(|one| (one.id.as_str(), one.display_name.as_deref(), one.role));
        for (address, name, role) in std::iter::once(sender).chain(others) {
            // Not every event names its sender.
            if address.is_empty() {
                continue;
            }

            let contact = contact_id(&event.channel, &self.contact_name(event, address));
            self.note_contact(connection, &contact, &event.channel, address, name, event.timestamp)?;
            connection
                .prepare_cached(
                    "INSERT OR IGNORE INTO event_participants(event_id, contact_id, role) VALUES(?1,?2,?3)",
                )?
                .execute((event.id.as_str(), &contact, role_name(role)))?;
        }

        Ok(())
    }

    /// Returns the name of `address` in its contact's id: a stranger who claims another's address is a separate
    /// contact.
    fn contact_name<'a>(&self, event: &Event, address: &'a str) -> Cow<'a, str> {
        let is_proven = match event.origin.proof_of_address(event, address) {
            ProvenOrigin::OnEveryChannel | ProvenOrigin::OnItsChannel => true,
            ProvenOrigin::SpokenFor => self.identities.resolve(event, address).is_some(),
            ProvenOrigin::Nobody => false,
        };

        if is_proven {
            proven_name(address)
        } else {
            Cow::Owned(event.origin.said_name(address))
        }
    }

    fn note_contact(
        &mut self,
        connection: &Connection,
        contact: &str,
        channel: &str,
        address: &str,
        name: Option<&str>,
        at: UnixMillis,
    ) -> Result<(), rusqlite::Error> {
        let known = match self.met.get(contact) {
            Some(met) => Some(met.clone()),
            None => read_contact(connection, contact)?,
        };
        let now = match &known {
            None => MetContact {
                name: name.map(str::to_owned),
                created_at: at.0,
                last_seen_at: at.0,
            },
            // The time is written in steps, so that a busy sender does not cost a write for each message.
            Some(known) => MetContact {
                name: name.map(str::to_owned).or_else(|| known.name.clone()),
                created_at: known.created_at.min(at.0),
                last_seen_at: if at.0 >= known.last_seen_at.saturating_add(SEEN_STEP_MS) {
                    at.0
                } else {
                    known.last_seen_at
                },
            },
        };

        // Most events change nothing here.
        if known.as_ref() != Some(&now) {
            self.write(connection, contact, channel, address, &now)?;
        }

        // Cleared as a whole: the rows are in the file, and the next event reads them again.
        if self.met.len() >= MAX_REMEMBERED {
            self.met.clear();
        }

        if !self.met.contains_key(contact) || known.as_ref() != Some(&now) {
            self.met.insert(contact.to_owned(), now);
        }

        Ok(())
    }

    fn write(
        &self,
        connection: &Connection,
        contact: &str,
        channel: &str,
        address: &str,
        met: &MetContact,
    ) -> Result<(), rusqlite::Error> {
        connection
            .prepare_cached(
                "INSERT INTO contacts(id, display_name, source, created_at, updated_at) VALUES(?1,?2,?3,?4,?5)
                 ON CONFLICT(id) DO UPDATE SET display_name = excluded.display_name,
                   source = excluded.source, created_at = excluded.created_at, updated_at = excluded.updated_at",
            )?
            .execute(params![contact, met.name, channel, met.created_at, met.last_seen_at])?;

        write_identifier(connection, contact, address, Some(met))?;

        // An address that `identities.yaml` gives to a person connects its contact at once, not at the next start.
        if let Some(person) = self.contact_owner(contact, channel, address) {
            link_contact(connection, person, contact, Some(met))?;
        }

        Ok(())
    }

    /// Returns the person that `contact` with `address` on `channel` belongs to, if there is one.
    fn contact_owner(&self, contact: &str, channel: &str, address: &str) -> Option<&KnownPerson> {
        let is_proven = contact == contact_id(channel, &proven_name(address));
        if self.owners.is_empty() || !is_proven {
            return None;
        }
        let of = |channel: &str| self.owners.get(&(channel.to_owned(), address.to_owned()));
        of(channel)
            // The id of a visitor of the chat page is an address only on that channel.
            .or_else(|| of(ANY).filter(|_| channel != WEBCHAT))
            .and_then(|&index| self.identities.persons.get(index))
    }

    /// Replaces the identities; [`Self::relink_contacts`] then writes them to the file.
    pub(crate) fn set_identities(&mut self, identities: Identities, now: UnixMillis) {
        self.owners = address_owners(&identities);
        self.identities = identities;
        self.learnt_at = now;
    }

    /// Writes persons and links again, including those of contacts met before.
    pub(crate) fn relink_contacts(&self, connection: &Connection) -> Result<(), rusqlite::Error> {
        self.write_persons(connection, self.learnt_at)?;
        connection.execute("DELETE FROM person_contact_links", [])?;
        connection.execute(
            "DELETE FROM contact_identifiers WHERE contact_id IN (SELECT id FROM contacts WHERE source = ?1)",
            [NAMED],
        )?;

        connection.execute("DELETE FROM contacts WHERE source = ?1", [NAMED])?;

        for person in &self.identities.persons {
            for (channel, addresses) in person.addresses.iter().filter(|(channel, _)| *channel != ANY) {
                for address in addresses {
                    self.name_contact(connection, person, channel, address)?;
                }
            }
        }

        self.link_met(connection)
    }

    /// Writes the persons. Those that exist already keep their creation time.
    fn write_persons(&self, connection: &Connection, now: UnixMillis) -> Result<(), rusqlite::Error> {
        let ids = serde_json::json!(
            self.identities
                .persons
                .iter()
                .map(|person| &person.id)
                .collect::<Vec<_>>()
        );

        // Persons who are no longer in the file must not be found by a script.
        connection.execute(
            "DELETE FROM persons WHERE id NOT IN (SELECT value FROM json_each(?1))",
            [ids.to_string()],
        )?;

        for person in &self.identities.persons {
            connection
                .prepare_cached(
                    "INSERT INTO persons(id, canonical_name, display_name, is_me, relationship_type, created_at, updated_at)
                     VALUES(?1,?2,?2,?3,?4,?5,?5)
                     ON CONFLICT(id) DO UPDATE SET canonical_name = excluded.canonical_name, display_name = excluded.display_name,
                       is_me = excluded.is_me, relationship_type = excluded.relationship_type, updated_at = excluded.updated_at
                     WHERE (canonical_name, display_name, is_me, relationship_type)
                       IS NOT (excluded.canonical_name, excluded.display_name, excluded.is_me, excluded.relationship_type)",
                )?
                .execute(params![
                    person.id,
                    person.name.as_deref().unwrap_or(&person.id),
                    self.identities.owner.as_deref() == Some(person.id.as_str()),
                    person.relationship,
                    now.0,
                ])?;
        }

        Ok(())
    }

    /// Writes a contact that `identities.yaml` names, even if no event has come from it.
    fn name_contact(
        &self,
        connection: &Connection,
        person: &KnownPerson,
        channel: &str,
        address: &str,
    ) -> Result<(), rusqlite::Error> {
        let contact = contact_id(channel, &proven_name(address));
        let made = connection
            .prepare_cached("INSERT OR IGNORE INTO contacts(id, display_name, source) VALUES(?1,?2,?3)")?
            .execute((&contact, person.name.as_deref(), NAMED))?;
        if made == 1 {
            write_identifier(connection, &contact, address, None)?;
            link_contact(connection, person, &contact, None)?;
        }

        Ok(())
    }

    fn link_met(&self, connection: &Connection) -> Result<(), rusqlite::Error> {
        if self.owners.is_empty() {
            return Ok(());
        }

        // Contacts that the file names are linked already, when they are written.
        let mut statement = connection.prepare(
            "SELECT c.id, c.source, i.value, i.created_at, i.last_seen_at FROM contacts c
             JOIN contact_identifiers i ON i.contact_id = c.id WHERE c.source <> ?1",
        )?;
        let mut rows = statement.query([NAMED])?;
        while let Some(row) = rows.next()? {
            let (contact, channel, address): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
            if let Some(person) = self.contact_owner(&contact, &channel, &address) {
                let met = MetContact {
                    name: None,
                    created_at: row.get(3)?,
                    last_seen_at: row.get(4)?,
                };
                link_contact(connection, person, &contact, Some(&met))?;
            }
        }

        Ok(())
    }
}

/// Returns the index of the person by channel and address. If two persons claim an address, the first one listed has
/// it, as in [`Identities::find_person`].
fn address_owners(identities: &Identities) -> HashMap<(String, String), usize> {
    let mut owners = HashMap::new();
    for (index, person) in identities.persons.iter().enumerate() {
        for (channel, addresses) in &person.addresses {
            for address in addresses {
                owners.entry((channel.clone(), address.clone())).or_insert(index);
            }
        }
    }
    owners
}

fn read_contact(connection: &Connection, contact: &str) -> Result<Option<MetContact>, rusqlite::Error> {
    connection
        .prepare_cached(
            "SELECT display_name, created_at, updated_at FROM contacts WHERE id = ?1 AND created_at IS NOT NULL",
        )?
        .query_row([contact], |row| {
            Ok(MetContact {
                name: row.get(0)?,
                created_at: row.get(1)?,
                last_seen_at: row.get(2)?,
            })
        })
        .optional()
}

fn write_identifier(
    connection: &Connection,
    contact: &str,
    address: &str,
    met: Option<&MetContact>,
) -> Result<(), rusqlite::Error> {
    let (kind, normalized) = normalize_address(address);
    connection
        .prepare_cached(
            "INSERT INTO contact_identifiers(id, contact_id, type, value, normalized, created_at, last_seen_at)
             VALUES(?1,?1,?2,?3,?4,?5,?6)
             ON CONFLICT(id) DO UPDATE SET created_at = excluded.created_at, last_seen_at = excluded.last_seen_at",
        )?
        .execute(params![
            contact,
            kind,
            address,
            normalized,
            met.map(|met| met.created_at),
            met.map(|met| met.last_seen_at),
        ])?;

    Ok(())
}

fn link_contact(
    connection: &Connection,
    person: &KnownPerson,
    contact: &str,
    met: Option<&MetContact>,
) -> Result<(), rusqlite::Error> {
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO person_contact_links(id, person_id, contact_id, confidence, source_type, first_seen_at, last_seen_at)
             VALUES(?1,?2,?3,1.0,?4,?5,?6)",
        )?
        .execute(params![
            format!("{}/{contact}", person.id),
            person.id,
            contact,
            NAMED,
            met.map(|met| met.created_at),
            met.map(|met| met.last_seen_at),
        ])?;

    Ok(())
}

fn contact_id(channel: &str, address: &str) -> String {
    let mut id = String::with_capacity(channel.len() + 1 + address.len());
    id.push_str(channel);
    id.push(':');
    id.push_str(address);
    id
}

/// Returns the type of an address, and the normalised spelling by which it is compared.
fn normalize_address(address: &str) -> (&'static str, String) {
    let address = address.trim();
    let is_email = address
        .split_once('@')
        .is_some_and(|(name, host)| !name.is_empty() && host.contains('.'));
    if is_email {
        return ("email", address.to_lowercase());
    }

    let is_phone = |c: char| c.is_ascii_digit() || matches!(c, ' ' | '-' | '.' | '(' | ')');
    match address.strip_prefix('+') {
        Some(rest) if !rest.is_empty() && rest.chars().all(is_phone) => {
            let digits = rest.chars().filter(char::is_ascii_digit);
            ("phone", std::iter::once('+').chain(digits).collect())
        }
        Some(_) | None => ("handle", address.to_lowercase()),
    }
}

const fn role_name(role: ParticipantRole) -> &'static str {
    match role {
        ParticipantRole::Sender => "sender",
        ParticipantRole::Recipient => "recipient",
        ParticipantRole::Cc => "cc",
        ParticipantRole::Observer => "observer",
    }
}
