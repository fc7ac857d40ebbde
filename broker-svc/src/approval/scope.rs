//! Whose word counts. *Pure.* Source: `sessions.md` "Approvals" (scope, checked at every ingress, never the agent).

use shared::model::approval::{AskedIn, Party, Scope};
use shared::model::approval_api::LINK;
use shared::model::identity::Identities;

/// Channel of those who act on the installation itself, by its command line.
pub const CLI: &str = "cli";
/// Their id where they give none: whoever holds the installation's credentials is its owner.
pub const OPERATOR: &str = "operator";
/// What names an agent, as a channel and as the beginning of a name.
const AGENT: &str = "agent";

/// Who somebody is: the person's id where they are known, and what their channel calls them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    /// The person's id, or `{channel}:{id}`.
    pub name: String,
    /// `{channel}:{id}`.
    address: String,
    owner: bool,
    agent: bool,
}

/// Who `party` is.
#[must_use]
pub fn who(party: &Party, identities: &Identities) -> Who {
    let by_name = |party: &Party| identities.persons.iter().find(|person| person.id == party.id);
    let person = match party.channel.as_str() {
        // Whom the installation itself vouches for goes by their person's id.
        CLI | LINK => by_name(party),
        channel => identities.person(channel, &party.id),
    };
    let operator = party.channel == CLI && party.id == OPERATOR;
    let owner = person.is_some_and(|person| identities.owner.as_deref() == Some(person.id.as_str()));
    let name = match person {
        Some(person) => person.id.clone(),
        None if party.channel == CLI => party.id.clone(),
        None => party.to_string(),
    };
    Who {
        agent: party.channel == AGENT || name.starts_with("agent:"),
        name,
        address: party.to_string(),
        owner: owner || operator,
    }
}

impl Who {
    /// Whether they own the installation.
    #[must_use]
    pub const fn is_owner(&self) -> bool {
        self.owner && !self.agent
    }

    fn is(&self, name: &str) -> bool {
        self.name == name || self.address == name
    }

    /// Whether they may decide what `asked` asks; the text says why not.
    ///
    /// # Errors
    /// Why not, for the audit.
    pub fn may(&self, asked: &AskedIn, identities: &Identities) -> Result<(), String> {
        if self.agent || self.name == asked.session.persona {
            return Err("an agent does not decide".to_owned());
        }
        let one_of = |names: &[String]| names.iter().any(|name| self.is(name));
        let may = match (&asked.scope, &asked.initiator) {
            (Scope::Initiator, Some(initiator)) => {
                let initiator = who(initiator, identities);
                !initiator.agent && (initiator.name == self.name || initiator.address == self.address)
            }
            // Nobody alone asked for it: the owner answers for them.
            (Scope::Initiator, None) | (Scope::Owner, _) => self.owner,
            (Scope::Named { names }, _) => one_of(names),
            (Scope::Quorum { n: _, of }, _) => one_of(of),
        };
        if may {
            Ok(())
        } else {
            Err(format!(
                "{} is not one of those who may decide it ({})",
                self.name,
                words(&asked.scope)
            ))
        }
    }
}

/// `scope` in words, for people.
#[must_use]
pub fn words(scope: &Scope) -> String {
    match scope {
        Scope::Initiator => "whoever asked for it".to_owned(),
        Scope::Owner => "the owner".to_owned(),
        Scope::Named { names } => names.join(" or "),
        Scope::Quorum { n, of } => format!("{n} of {}", of.join(", ")),
    }
}

/// How many must say yes.
#[must_use]
pub const fn needed(scope: &Scope) -> usize {
    match scope {
        Scope::Initiator | Scope::Owner | Scope::Named { names: _ } => 1,
        Scope::Quorum { n, of: _ } => *n as usize,
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
            // The message came from bob, on Telegram.
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
    fn where_nobody_alone_asked_the_owner_answers() {
        let asked = AskedIn {
            scope: Scope::Initiator,
            initiator: None,
            ..asked_in()
        };
        let known = identities();
        assert!(who(&party("telegram", "1"), &known).may(&asked, &known).is_ok());
        assert!(who(&party("telegram", "2"), &known).may(&asked, &known).is_err());
    }
}
