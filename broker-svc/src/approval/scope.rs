//! Rules for who may decide an approval. *Pure.* Source: `docs/design/sessions.md` §8.3 (scope, checked at every
//! ingress, never the agent).

use shared::model::approval::{AskedIn, Party, Proof, Scope, Vote};
use shared::model::approval_api::LINK;
use shared::model::identity::Identities;

/// Channel of persons who act on the installation itself, by its command line.
pub const CLI: &str = "cli";
/// Id of a command-line user who gives none: a person who holds the installation's credentials is its owner.
pub const OPERATOR: &str = "operator";
/// Name of the channel of agents, and prefix of an agent's name.
pub const AGENT: &str = "agent";

/// Identity of a party: the person's id if the person is known, and the channel's name for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    /// The person's id, or `{channel}:{id}` if unknown.
    pub name: String,
    /// Address on the channel, `{channel}:{id}`.
    address: String,
    proof: Proof,
    owner: bool,
    agent: bool,
}

/// Returns the identity of `party`.
#[must_use]
pub fn who(party: &Party, identities: &Identities) -> Who {
    let by_name = |id: &str| identities.persons.iter().find(|person| person.id == id);
    let person = match (party.proof, party.channel.as_str()) {
        // A party that the installation itself vouches for goes by the person's id; a message's sender never does.
        (Proof::Vouched, CLI | LINK) => by_name(&party.id),
        (Proof::Vouched, channel) => identities.person(channel, &party.id),
        // The message's origin has named the person; the address alone proves nothing.
        (Proof::Channel, _) => party.person.as_deref().and_then(by_name),
        (Proof::Nobody, _) => None,
    };

    let at_home = party.proof == Proof::Vouched && party.channel == CLI;
    let owner = person.is_some_and(|person| identities.owner.as_deref() == Some(person.id.as_str()));
    let name = match person {
        Some(person) => person.id.clone(),
        None if at_home => party.id.clone(),
        None => party.to_string(),
    };

    Who {
        agent: party.channel == AGENT || name.starts_with("agent:"),
        name,
        address: party.to_string(),
        proof: party.proof,
        owner: owner || (at_home && party.id == OPERATOR),
    }
}

impl Who {
    /// Returns whether the party owns the installation.
    #[must_use]
    pub const fn is_owner(&self) -> bool {
        self.owner && !self.agent
    }

    fn is(&self, name: &str) -> bool {
        self.name == name || self.address == name
    }

    /// Returns whether the party is `other`, who wrote what is asked about. A party without proof is never one with
    /// proof.
    fn is_same(&self, other: &Self) -> bool {
        let proven = self.proof != Proof::Nobody || other.proof == Proof::Nobody;
        proven && (self.name == other.name || self.address == other.address)
    }

    /// Checks whether the party may decide what `asked` asks.
    ///
    /// # Errors
    /// Returns the reason if not, for the audit.
    pub fn may(&self, asked: &AskedIn, identities: &Identities) -> Result<(), String> {
        // No agent decides, whatever the list of approvers says.
        if self.agent || self.name == asked.session.persona {
            return Err("an agent does not decide".to_owned());
        }

        let may_be_known = self.proof != Proof::Nobody;
        if may_be_known
            && asked
                .scope
                .parts()
                .iter()
                .any(|scope| self.fits(scope, asked, identities))
        {
            Ok(())
        } else {
            Err(format!(
                "{} may not decide this approval (approvers: {})",
                self.name,
                words(&asked.scope)
            ))
        }
    }

    /// Returns the indexes of the scopes, among several, that this party's vote counts for; empty if there is one
    /// scope.
    #[must_use]
    pub fn counts_for(&self, asked: &AskedIn, identities: &Identities) -> Vec<usize> {
        match &asked.scope {
            Scope::All { of } => {
                let fits = |(number, scope)| self.fits(scope, asked, identities).then_some(number);
                of.iter().enumerate().filter_map(fits).collect()
            }
            Scope::Initiator | Scope::Owner | Scope::Named { .. } | Scope::Quorum { .. } => Vec::new(),
        }
    }

    fn fits(&self, scope: &Scope, asked: &AskedIn, identities: &Identities) -> bool {
        let one_of = |names: &[String]| names.iter().any(|name| self.is(name));
        match (scope, &asked.initiator) {
            (Scope::Initiator, Some(initiator)) => {
                let initiator = who(initiator, identities);
                if initiator.agent {
                    self.owner
                } else {
                    self.is_same(&initiator)
                }
            }
            // No single human asked for it: the owner decides in their place.
            (Scope::Initiator, None) | (Scope::Owner, _) => self.owner,
            (Scope::Named { names }, _) => one_of(names),
            (Scope::Quorum { n: _, of }, _) => one_of(of),
            (Scope::All { of }, _) => of.iter().any(|part| self.fits(part, asked, identities)),
        }
    }
}

/// Returns `scope` in words, for people.
#[must_use]
pub fn words(scope: &Scope) -> String {
    match scope {
        Scope::Initiator => "the person who asked for it".to_owned(),
        Scope::Owner => "the owner".to_owned(),
        Scope::Named { names } => names.join(" or "),
        Scope::Quorum { n, of } => format!("{n} of {}", of.join(", ")),
        Scope::All { of } => {
            let parts: Vec<String> = of.iter().map(words).collect();
            parts.join(", and ")
        }
    }
}

/// Returns whether `votes`, each by another person, are all the approvals that `scope` needs.
#[must_use]
pub fn is_agreed(scope: &Scope, votes: &[Vote]) -> bool {
    let needed = |part: &Scope| match part {
        Scope::Initiator | Scope::Owner | Scope::Named { .. } | Scope::All { .. } => 1,
        Scope::Quorum { n, of: _ } => *n as usize,
    };
    match scope {
        Scope::All { of } => of.iter().enumerate().all(|(number, part)| {
            let counting = votes.iter().filter(|vote| vote.counts_for.contains(&number));
            counting.count() >= needed(part)
        }),
        Scope::Initiator | Scope::Owner | Scope::Named { .. } | Scope::Quorum { .. } => votes.len() >= needed(scope),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::approval::machine::tests::{asked_in, identities};

    fn party(channel: &str, id: &str) -> Party {
        Party {
            channel: channel.to_owned(),
            id: id.to_owned(),
            proof: Proof::Vouched,
            person: None,
        }
    }

    fn check(scope: &Scope, by: (&str, &str), may: bool) {
        let asked = AskedIn {
            scope: scope.clone(),
            ..asked_in()
        };
        let known = identities();
        let said = who(&party(by.0, by.1), &known).may(&asked, &known);
        assert_eq!(said.is_ok(), may, "{scope:?} {by:?}: {said:?}");
    }

    #[test]
    fn each_scope_admits_its_own_and_no_agent() {
        let named = Scope::Named {
            names: vec!["bob".to_owned(), "webchat:v9".to_owned()],
        };
        let quorum = Scope::Quorum {
            n: 2,
            of: vec!["bob".to_owned(), "ann".to_owned()],
        };

        let table = [
            // The message came from Bob, on Telegram.
            (&Scope::Initiator, ("telegram", "2"), true),
            (&Scope::Initiator, ("webchat", "b"), true),
            (&Scope::Initiator, ("telegram", "1"), false),
            (&Scope::Initiator, ("cli", "bob"), true),
            (&Scope::Owner, ("telegram", "1"), true),
            (&Scope::Owner, ("telegram", "2"), false),
            (&Scope::Owner, ("cli", OPERATOR), true),
            (&Scope::Owner, ("telegram", OPERATOR), false),
            (&Scope::Owner, ("cli", "ann"), true),
            (&named, ("telegram", "2"), true),
            (&named, ("webchat", "v9"), true),
            (&named, ("telegram", "v9"), false),
            (&named, ("cli", OPERATOR), false),
            (&quorum, ("telegram", "1"), true),
            (&quorum, ("telegram", "3"), false),
        ];

        for (scope, by, may) in table {
            check(scope, by, may);
        }

        for scope in [&Scope::Initiator, &Scope::Owner, &named, &quorum] {
            check(scope, ("agent", "default"), false);
            check(scope, ("cli", "default"), false);
            check(scope, ("cli", "agent:default"), false);
        }
    }

    #[test]
    fn a_message_is_from_the_person_whom_its_origin_proves() {
        let mut known = identities();
        known.persons[0].addresses.insert(CLI.to_owned(), vec!["me".to_owned()]);
        let asked = asked_in();

        let table = [
            (Proof::Vouched, CLI, OPERATOR, None, true),
            (Proof::Channel, CLI, OPERATOR, None, false),
            (Proof::Nobody, CLI, OPERATOR, None, false),
            (Proof::Channel, CLI, "ann", None, false),
            (Proof::Channel, LINK, "ann", None, false),
            (Proof::Channel, CLI, "me", None, false),
            (Proof::Channel, "mail", "x", Some("ann"), true),
            (Proof::Channel, "telegram", "1", Some("bob"), false),
            (Proof::Channel, "telegram", "1", None, false),
            (Proof::Channel, "telegram", "1", Some("gone"), false),
            (Proof::Nobody, "telegram", "1", Some("ann"), false),
            (Proof::Nobody, "webchat", "a", None, false),
        ];

        for (proof, channel, id, person, may) in table {
            let by = Party {
                proof,
                person: person.map(str::to_owned),
                ..party(channel, id)
            };
            assert_eq!(who(&by, &known).may(&asked, &known).is_ok(), may, "{by:?}");
        }

        // Bob wrote on Telegram; a party that only claims to be Bob is not Bob.
        let asked = AskedIn {
            scope: Scope::Initiator,
            ..asked
        };
        let says = |proof, id| {
            let by = Party {
                proof,
                ..party("telegram", id)
            };
            who(&by, &known).may(&asked, &known).is_ok()
        };

        assert!(says(Proof::Channel, "2") && !says(Proof::Nobody, "2"));
    }

    #[test]
    fn where_nobody_alone_asked_the_owner_answers() {
        let asked = AskedIn {
            scope: Scope::Initiator,
            initiator: None,
            ..asked_in()
        };
        let by_agent = AskedIn {
            initiator: Some(party(AGENT, "agent:shop")),
            ..asked.clone()
        };

        let known = identities();
        for asked in [asked, by_agent] {
            assert!(who(&party("telegram", "1"), &known).may(&asked, &known).is_ok());
            assert!(who(&party("telegram", "2"), &known).may(&asked, &known).is_err());
        }
    }
}
