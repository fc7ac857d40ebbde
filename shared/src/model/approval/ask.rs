//! Approval policies: the approvers, and the way they are asked. *Pure.* Source: `docs/design/sessions.md` §8.

use serde::{Deserialize, Serialize};

use crate::wire::unknown::read_strict;

/// The approvers of an approval, checked at every entry point. The agent that asks may never decide.
///
/// In configuration: `initiator`, `owner`, `{kind: named, names: [ann]}`, `{kind: quorum, n: 2, of: [ann, bob]}` or
/// `{kind: all, of: [owner, {kind: named, names: [ann]}]}`.
/// Names are those of persons in `identities.yaml`, or sender ids `{channel}:{id}`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", from = "ScopeForm")]
pub enum DeciderScope {
    /// The sender of the message that the turn answers.
    Initiator,
    /// The owner of the installation.
    #[default]
    Owner,
    /// Any one of the named approvers.
    Named {
        /// Person ids or sender ids.
        names: Vec<String>,
    },
    /// Any `n` different approvers of a list.
    Quorum {
        /// Number of approvers that must agree; a single denial decides at once.
        n: u32,
        /// Person ids or sender ids.
        of: Vec<String>,
    },
    /// Each of several scopes, for several policies: an approval for one scope does not count for another.
    All {
        /// The scopes; none of them is `All` itself.
        of: Vec<DeciderScope>,
    },
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ScopeForm {
    Word(ScopeWord),
    Full(ScopeFull),
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ScopeWord {
    Initiator,
    Owner,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
enum ScopeFull {
    Initiator,
    Owner,
    Named { names: Vec<String> },
    Quorum { n: u32, of: Vec<String> },
    All { of: Vec<DeciderScope> },
}

impl From<ScopeForm> for DeciderScope {
    fn from(form: ScopeForm) -> Self {
        match form {
            ScopeForm::Word(ScopeWord::Initiator) | ScopeForm::Full(ScopeFull::Initiator) => Self::Initiator,
            ScopeForm::Word(ScopeWord::Owner) | ScopeForm::Full(ScopeFull::Owner) => Self::Owner,
            ScopeForm::Full(ScopeFull::Named { names }) => Self::Named { names },
            ScopeForm::Full(ScopeFull::Quorum { n, of }) => Self::Quorum { n, of },
            ScopeForm::Full(ScopeFull::All { of }) => Self::All { of },
        }
    }
}

impl DeciderScope {
    /// Returns the scopes that must each be satisfied.
    #[must_use]
    pub fn parts(&self) -> &[Self] {
        match self {
            Self::All { of } => of,
            Self::Initiator | Self::Owner | Self::Named { .. } | Self::Quorum { .. } => std::slice::from_ref(self),
        }
    }

    /// Returns whether an approver set that satisfies this scope also satisfies `other`.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        other.parts().iter().all(|part| self.parts().contains(part))
    }

    /// Returns a scope that is satisfied if both this one and `other` are.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let missing = other.parts().iter().filter(|part| !self.parts().contains(part));
        let of: Vec<Self> = self.parts().iter().chain(missing).cloned().collect();
        match <[Self; 1]>::try_from(of) {
            Ok([one]) => one,
            Err(of) => Self::All { of },
        }
    }

    /// Returns the error in the scope as configuration.
    #[must_use]
    pub fn find_fault(&self) -> Option<String> {
        match self {
            Self::Initiator | Self::Owner => None,
            Self::Named { names } if names.is_empty() => Some("scope: names at least one".to_owned()),
            Self::Named { names: _ } => None,
            Self::Quorum { n, of } => {
                let mut persons: Vec<&str> = of.iter().map(String::as_str).collect();
                // A person who is listed twice counts once.
                persons.sort_unstable();
                persons.dedup();
                let enough = *n >= 1 && usize::try_from(*n).is_ok_and(|n| n <= persons.len());
                (!enough).then(|| format!("scope: n between 1 and {}, the number of persons", persons.len()))
            }
            Self::All { of } if of.is_empty() || of.iter().any(|part| matches!(part, Self::All { .. })) => {
                Some("scope: all of at least one that is not `all` itself".to_owned())
            }
            Self::All { of } => of.iter().find_map(Self::find_fault),
        }
    }
}

/// The way a policy asks for an approval: the parameters of the built-in `approval_gate`, and of a tool with the flag
/// `requires_confirmation`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ApprovalAsk {
    /// Name of the policy, shown in records and on the card.
    pub policy: String,
    /// Approvers that may decide.
    #[serde(deserialize_with = "read_strict")]
    pub scope: DeciderScope,
    /// Time in which they may decide, in milliseconds; absent = [`DEFAULT_EXPIRES_MS`], at most [`MAX_EXPIRES_MS`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<u64>,
    /// Fraction of that time, above 0 and below 1, after which the owner is notified as well; absent = never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub escalate_at: Option<f64>,
    /// Reason for the approval, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Default time in which approvers may decide, in milliseconds.
pub const DEFAULT_EXPIRES_MS: u64 = 15 * 60_000;
/// Maximum time in which approvers may decide, in milliseconds.
pub const MAX_EXPIRES_MS: u64 = 7 * 24 * 3_600_000;

impl ApprovalAsk {
    /// Returns one question in place of this and `other`: the approvers of both must agree, in the shorter time.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let joined = |one: &str, other: &str, between: &str| match (one, other) {
            (one, other) if one == other || other.is_empty() => one.to_owned(),
            ("", other) => other.to_owned(),
            (one, other) => format!("{one}{between}{other}"),
        };
        let reason = joined(
            self.reason.as_deref().unwrap_or_default(),
            other.reason.as_deref().unwrap_or_default(),
            "; ",
        );

        let lasts = |ask: &Self| ask.expires_ms.unwrap_or(DEFAULT_EXPIRES_MS);
        Self {
            policy: joined(&self.policy, &other.policy, ", "),
            scope: self.scope.and(&other.scope),
            // An absent time is the default one, which takes part in the minimum too.
            expires_ms: self
                .expires_ms
                .or(other.expires_ms)
                .map(|_| lasts(self).min(lasts(other))),
            escalate_at: match (self.escalate_at, other.escalate_at) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            },
            reason: Some(reason).filter(|reason| !reason.is_empty()),
        }
    }

    /// Returns the errors in the configuration, each as `key: expected value`.
    #[must_use]
    pub fn find_faults(&self) -> Vec<String> {
        let mut faults: Vec<String> = self.scope.find_fault().into_iter().collect();
        if self.expires_ms.is_some_and(|ms| !(1..=MAX_EXPIRES_MS).contains(&ms)) {
            faults.push(format!("expires_ms: expected 1 to {MAX_EXPIRES_MS} (7 days)"));
        }
        if self.escalate_at.is_some_and(|part| !(part > 0.0 && part < 1.0)) {
            faults.push("escalate_at: above 0 and below 1".to_owned());
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_ask_is_read_in_its_short_and_in_its_long_form() {
        let short: ApprovalAsk = serde_json::from_value(json!({"scope": "initiator"})).expect("an ask");
        assert_eq!(short.scope, DeciderScope::Initiator);

        let quorum = DeciderScope::Quorum {
            n: 2,
            of: vec!["ann".to_owned(), "bob".to_owned()],
        };
        let long =
            json!({"policy": "pay", "scope": {"kind": "quorum", "n": 2, "of": ["ann", "bob"]}, "escalate_at": 0.5});
        let long: ApprovalAsk = serde_json::from_value(long).expect("an ask");

        assert_eq!((&long.scope, long.find_faults()), (&quorum, Vec::new()));

        let written = serde_json::to_value(&quorum).expect("JSON");
        assert_eq!(
            serde_json::from_value::<DeciderScope>(written).expect("a scope"),
            quorum
        );

        for wrong in [
            json!({"scope": "agent"}),
            json!({"scope": {"kind": "named", "n": 1, "names": []}}),
            json!({"x": 1}),
        ] {
            assert!(serde_json::from_value::<ApprovalAsk>(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_nobody_could_decide_is_a_fault() {
        let of = |n, names: &[&str]| DeciderScope::Quorum {
            n,
            of: names.iter().map(|&name| name.to_owned()).collect(),
        };
        assert!(of(2, &["ann", "ann"]).find_fault().is_some());
        assert!(of(0, &["ann"]).find_fault().is_some());
        assert!(of(2, &["ann", "bob"]).find_fault().is_none());

        let wrong = ApprovalAsk {
            scope: DeciderScope::Named { names: Vec::new() },
            expires_ms: Some(MAX_EXPIRES_MS + 1),
            escalate_at: Some(1.0),
            ..ApprovalAsk::default()
        };

        assert_eq!(wrong.find_faults().len(), 3);

        let all = |of| DeciderScope::All { of };
        assert!(all(Vec::new()).find_fault().is_some());
        assert!(all(vec![all(vec![DeciderScope::Owner])]).find_fault().is_some());
        assert!(all(vec![DeciderScope::Owner, of(3, &["ann"])]).find_fault().is_some());
        assert!(all(vec![DeciderScope::Owner, of(1, &["ann"])]).find_fault().is_none());
    }

    #[test]
    fn what_two_ask_is_asked_of_all_whom_they_want() {
        let ask = |policy: &str, scope, expires_ms, escalate_at, reason: Option<&str>| ApprovalAsk {
            policy: policy.to_owned(),
            scope,
            expires_ms,
            escalate_at,
            reason: reason.map(str::to_owned),
        };

        let intern = DeciderScope::Named {
            names: vec!["intern".to_owned()],
        };
        let one = ask("pay", DeciderScope::Owner, None, Some(0.5), None);
        let other = ask("desk", intern.clone(), Some(60_000), Some(0.2), Some("new shop"));
        let both = one.and(&other);
        let of = vec![DeciderScope::Owner, intern.clone()];

        let expected = ask(
            "pay, desk",
            DeciderScope::All { of },
            Some(60_000),
            Some(0.2),
            Some("new shop"),
        );

        assert_eq!(both, expected);
        assert_eq!(both.and(&one).scope, both.scope, "nobody is asked twice");
        assert_eq!(one.and(&one), one);
        assert!(both.scope.covers(&intern) && !intern.covers(&both.scope));

        let written = serde_json::to_value(&both.scope).expect("JSON");
        assert_eq!(
            serde_json::from_value::<DeciderScope>(written).expect("a scope"),
            both.scope
        );
    }
}
