//! Rules for who may decide an approval. *Pure.* Source: `docs/design/sessions.md` §8.3 (scope, checked at every
//! ingress, never the agent).

use shared::model::approval::{ApprovalParty, ApprovalVote, AskedIn, DeciderScope, DecisionProof};
use shared::model::identity::Identities;
use shared::model::origin::LINK;

/// Channel of persons who act on the installation itself, by its command line.
pub const CLI: &str = "cli";
/// Id of a command-line user who gives none: a person who holds the installation's credentials is its owner.
pub const OPERATOR: &str = "operator";
/// Name of the channel of agents, and prefix of an agent's name.
pub const AGENT: &str = "agent";

/// Identity of a party: the person's id if the person is known, and the channel's name for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedParty {
    /// The person's id, or `{channel}:{id}` if unknown.
    pub name: String,
    /// Address on the channel, `{channel}:{id}`.
    address: String,
    proof: DecisionProof,
    owner: bool,
    agent: bool,
}

/// Returns the identity of `party`.
#[must_use]
pub fn identify_party(party: &ApprovalParty, identities: &Identities) -> ResolvedParty {
    let by_name = |id: &str| identities.persons.iter().find(|person| person.id == id);
    let person = match (party.proof, party.channel.as_str()) {
        // A party that the installation itself vouches for goes by the person's id; a message's sender never does.
        (DecisionProof::Vouched, CLI | LINK) => by_name(&party.id),
        (DecisionProof::Vouched, channel) => identities.find_person(channel, &party.id),
        // The message's origin has named the person; the address alone proves nothing.
        (DecisionProof::Channel, _) => party.person.as_deref().and_then(by_name),
        (DecisionProof::Nobody, _) => None,
    };

    let at_home = party.proof == DecisionProof::Vouched && party.channel == CLI;
    let owner = person.is_some_and(|person| identities.owner.as_deref() == Some(person.id.as_str()));
    let name = match person {
        Some(person) => person.id.clone(),
        None if at_home => party.id.clone(),
        None => party.to_string(),
    };

    ResolvedParty {
        agent: party.channel == AGENT || name.starts_with("agent:"),
        name,
        address: party.to_string(),
        proof: party.proof,
        owner: owner || (at_home && party.id == OPERATOR),
    }
}

impl ResolvedParty {
    /// Returns whether the party owns the installation.
    #[must_use]
    pub const fn is_owner(&self) -> bool {
        self.owner && !self.agent
    }

    fn has_name(&self, name: &str) -> bool {
        self.name == name || self.address == name
    }

    /// Returns whether the party is `other`, the author of the message asked about. A party without proof is never one
    /// with proof.
    fn is_same(&self, other: &Self) -> bool {
        let proven = self.proof != DecisionProof::Nobody || other.proof == DecisionProof::Nobody;
        proven && (self.name == other.name || self.address == other.address)
    }

    /// Checks whether the party may decide the question `asked`.
    ///
    /// # Errors
    /// Returns the reason if not, for the audit.
    pub fn check_may_decide(&self, asked: &AskedIn, identities: &Identities) -> Result<(), String> {
        // No agent decides, even if the list of approvers names it.
        if self.agent || self.name == asked.session.persona {
            return Err("an agent does not decide".to_owned());
        }

        let may_be_known = self.proof != DecisionProof::Nobody;
        if may_be_known
            && asked
                .scope
                .parts()
                .iter()
                .any(|scope| self.matches_scope(scope, asked, identities))
        {
            Ok(())
        } else {
            Err(format!(
                "{} may not decide this approval (approvers: {})",
                self.name,
                describe_scope(&asked.scope)
            ))
        }
    }

    /// Returns the indexes of the scopes, among several, that this party's vote counts for; empty if there is one
    /// scope.
    #[must_use]
    pub fn counts_for(&self, asked: &AskedIn, identities: &Identities) -> Vec<usize> {
        match &asked.scope {
            DeciderScope::All { of } => {
                let fits = |(number, scope)| self.matches_scope(scope, asked, identities).then_some(number);
                of.iter().enumerate().filter_map(fits).collect()
            }
            DeciderScope::Initiator
            | DeciderScope::Owner
            | DeciderScope::Named { .. }
            | DeciderScope::Quorum { .. } => Vec::new(),
        }
    }

    fn matches_scope(&self, scope: &DeciderScope, asked: &AskedIn, identities: &Identities) -> bool {
        let one_of = |names: &[String]| names.iter().any(|name| self.has_name(name));
        match (scope, &asked.initiator) {
            (DeciderScope::Initiator, Some(initiator)) => {
                let initiator = identify_party(initiator, identities);
                if initiator.agent {
                    self.owner
                } else {
                    self.is_same(&initiator)
                }
            }
            // No single human asked for it: the owner decides in their place.
            (DeciderScope::Initiator, None) | (DeciderScope::Owner, _) => self.owner,
            (DeciderScope::Named { names }, _) => one_of(names),
            (DeciderScope::Quorum { n: _, of }, _) => one_of(of),
            (DeciderScope::All { of }, _) => of.iter().any(|part| self.matches_scope(part, asked, identities)),
        }
    }
}

/// Returns `scope` in words, for people.
#[must_use]
pub fn describe_scope(scope: &DeciderScope) -> String {
    match scope {
        DeciderScope::Initiator => "the person who asked for it".to_owned(),
        DeciderScope::Owner => "the owner".to_owned(),
        DeciderScope::Named { names } => names.join(" or "),
        DeciderScope::Quorum { n, of } => format!("{n} of {}", of.join(", ")),
        DeciderScope::All { of } => {
            let parts: Vec<String> = of.iter().map(describe_scope).collect();
            parts.join(", and ")
        }
    }
}

/// Returns whether `votes`, each by another person, are all the approvals that `scope` needs.
#[must_use]
pub fn is_agreed(scope: &DeciderScope, votes: &[ApprovalVote]) -> bool {
    let needed = |part: &DeciderScope| match part {
        DeciderScope::Initiator | DeciderScope::Owner | DeciderScope::Named { .. } | DeciderScope::All { .. } => 1,
        DeciderScope::Quorum { n, of: _ } => *n as usize,
    };
    match scope {
        DeciderScope::All { of } => of.iter().enumerate().all(|(number, part)| {
            let counting = votes.iter().filter(|vote| vote.counts_for.contains(&number));
            counting.count() >= needed(part)
        }),
        DeciderScope::Initiator | DeciderScope::Owner | DeciderScope::Named { .. } | DeciderScope::Quorum { .. } => {
            votes.len() >= needed(scope)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::approval::machine::tests::{asked_in, identities};

    fn party(channel: &str, id: &str) -> ApprovalParty {
        ApprovalParty {
            channel: channel.to_owned(),
            id: id.to_owned(),
            proof: DecisionProof::Vouched,
            person: None,
        }
    }

    fn check(scope: &DeciderScope, by: (&str, &str), may: bool) {
        let asked = AskedIn {
            scope: scope.clone(),
            ..asked_in()
        };
        let known = identities();
        let said = identify_party(&party(by.0, by.1), &known).check_may_decide(&asked, &known);
        assert_eq!(said.is_ok(), may, "{scope:?} {by:?}: {said:?}");
    }

    #[test]
    fn each_scope_admits_its_own_and_no_agent() {
        let named = DeciderScope::Named {
            names: vec!["bob".to_owned(), "webchat:v9".to_owned()],
        };
        let quorum = DeciderScope::Quorum {
            n: 2,
            of: vec!["bob".to_owned(), "ann".to_owned()],
        };

        let table = [
            // The message came from Bob, on Telegram.
            (&DeciderScope::Initiator, ("telegram", "2"), true),
            (&DeciderScope::Initiator, ("webchat", "b"), true),
            (&DeciderScope::Initiator, ("telegram", "1"), false),
            (&DeciderScope::Initiator, ("cli", "bob"), true),
            (&DeciderScope::Owner, ("telegram", "1"), true),
            (&DeciderScope::Owner, ("telegram", "2"), false),
            (&DeciderScope::Owner, ("cli", OPERATOR), true),
            (&DeciderScope::Owner, ("telegram", OPERATOR), false),
            (&DeciderScope::Owner, ("cli", "ann"), true),
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

        for scope in [&DeciderScope::Initiator, &DeciderScope::Owner, &named, &quorum] {
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
            (DecisionProof::Vouched, CLI, OPERATOR, None, true),
            (DecisionProof::Channel, CLI, OPERATOR, None, false),
            (DecisionProof::Nobody, CLI, OPERATOR, None, false),
            (DecisionProof::Channel, CLI, "ann", None, false),
            (DecisionProof::Channel, LINK, "ann", None, false),
            (DecisionProof::Channel, CLI, "me", None, false),
            (DecisionProof::Channel, "mail", "x", Some("ann"), true),
            (DecisionProof::Channel, "telegram", "1", Some("bob"), false),
            (DecisionProof::Channel, "telegram", "1", None, false),
            (DecisionProof::Channel, "telegram", "1", Some("gone"), false),
            (DecisionProof::Nobody, "telegram", "1", Some("ann"), false),
            (DecisionProof::Nobody, "webchat", "a", None, false),
        ];

        for (proof, channel, id, person, may) in table {
            let by = ApprovalParty {
                proof,
                person: person.map(str::to_owned),
                ..party(channel, id)
            };
            assert_eq!(
                identify_party(&by, &known).check_may_decide(&asked, &known).is_ok(),
                may,
                "{by:?}"
            );
        }

        // Bob wrote on Telegram; a party that only claims to be Bob is not Bob.
        let asked = AskedIn {
            scope: DeciderScope::Initiator,
            ..asked
        };
        let says = |proof, id| {
            let by = ApprovalParty {
                proof,
                ..party("telegram", id)
            };
            identify_party(&by, &known).check_may_decide(&asked, &known).is_ok()
        };

        assert!(says(DecisionProof::Channel, "2") && !says(DecisionProof::Nobody, "2"));
    }

    #[test]
    fn where_nobody_alone_asked_the_owner_answers() {
        let asked = AskedIn {
            scope: DeciderScope::Initiator,
            initiator: None,
            ..asked_in()
        };
        let by_agent = AskedIn {
            initiator: Some(party(AGENT, "agent:shop")),
            ..asked.clone()
        };

        let known = identities();
        for asked in [asked, by_agent] {
            assert!(
                identify_party(&party("telegram", "1"), &known)
                    .check_may_decide(&asked, &known)
                    .is_ok()
            );
            assert!(
                identify_party(&party("telegram", "2"), &known)
                    .check_may_decide(&asked, &known)
                    .is_err()
            );
        }
    }
}
