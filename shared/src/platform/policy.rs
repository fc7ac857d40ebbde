//! Keys that the accounts of all platforms share: access to an account, and the treatment of doubtful messages. *Pure.*
//!
//! `U` is the type of the platform's user ids: numbers on Telegram, texts elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

/// Key in `groups` that means every group that is not named.
pub const ANY_GROUP: &str = "*";

/// Who may write to an account directly.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DirectPolicy {
    /// Every user of the platform.
    Open,
    /// Users in `allow`, and those whom an operator has paired with the account. All others are sent a code.
    #[default]
    Pairing,
    /// Users in `allow` alone; nobody if it is empty. Pairings have no effect.
    Allowlist,
}

impl DirectPolicy {
    /// Returns the name in `channels.yaml`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Pairing => "pairing",
            Self::Allowlist => "allowlist",
        }
    }
}

/// Treatment of a message that the platform may have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DoubtPolicy {
    /// It is sent again, and may be there twice.
    #[default]
    AtLeastOnce,
    /// It is not sent again, and may be missing.
    AtMostOnce,
}

/// Reactions by which an account shows what becomes of a message; `None` = nothing is shown.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AcknowledgePolicy {
    /// Reaction to a message when a turn that answers it begins.
    pub taken: Option<String>,
    /// Reaction to it when the answer is sent, in place of `taken`.
    pub answered: Option<String>,
    /// Reaction to it when the turn has failed or its answer cannot be sent, in place of `taken`; `None` = `taken` is only
    /// taken back.
    pub failed: Option<String>,
}

/// Maximum length of a [`GroupPrompt`], in characters.
pub const MAX_GROUP_PROMPT_CHARS: usize = 4_000;

/// Instructions of the operator for the agent in one group: 1 to [`MAX_GROUP_PROMPT_CHARS`] characters, not only blanks.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct GroupPrompt(String);

/// The text is no prompt of a group.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a text of 1 to {MAX_GROUP_PROMPT_CHARS} characters")]
pub struct ParseGroupPromptError;

impl GroupPrompt {
    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for GroupPrompt {
    type Error = ParseGroupPromptError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let is_short = text.chars().count() <= MAX_GROUP_PROMPT_CHARS;
        let is_prompt = is_short && !text.trim().is_empty();
        is_prompt.then_some(Self(text)).ok_or(ParseGroupPromptError)
    }
}

/// Settings of a group, or of a channel of several users.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, bound(deserialize = "U: Ord + Deserialize<'de>"))]
pub struct GroupPolicy<U> {
    /// Whether only messages that mention the account, or answer it, are for it.
    pub require_mention: bool,
    /// Whether an answer goes to the thread of the message that it answers, or quotes it.
    pub reply_in_thread: bool,
    /// User ids whose messages are received; empty = those of all members.
    pub allow: BTreeSet<U>,
    /// Instructions for the agent in turns that the group's messages cause. hook-svc reads them from the file by itself.
    pub prompt: Option<GroupPrompt>,
}

impl<U> Default for GroupPolicy<U> {
    fn default() -> Self {
        Self {
            require_mention: true,
            reply_in_thread: true,
            allow: BTreeSet::new(),
            prompt: None,
        }
    }
}

/// The rules that say who may use an account.
#[derive(Debug, Clone, Copy)]
pub struct AccessPolicy<'a, U> {
    /// Who may write to the account directly.
    pub direct: DirectPolicy,
    /// User ids that may write directly, except with [`DirectPolicy::Open`].
    pub allow: &'a BTreeSet<U>,
    /// Settings by group, or [`ANY_GROUP`] for all others; `None` = all groups are ignored.
    pub groups: Option<&'a BTreeMap<String, GroupPolicy<U>>>,
}

impl<'a, U: Ord> AccessPolicy<'a, U> {
    /// Returns the settings of `group`; `None` if its messages are ignored.
    ///
    /// ```
    /// use std::collections::{BTreeMap, BTreeSet};
    /// use shared::platform::policy::{AccessPolicy, ANY_GROUP, DirectPolicy, GroupPolicy};
    ///
    /// let groups = BTreeMap::from([(ANY_GROUP.to_owned(), GroupPolicy::default())]);
    /// let (direct, allow) = (DirectPolicy::Allowlist, BTreeSet::from(["U1".to_owned()]));
    /// let policy = AccessPolicy { direct, allow: &allow, groups: Some(&groups) };
    /// assert!(policy.group_policy("C1").is_some_and(|group| group.require_mention));
    /// assert!(!policy.admits_directly(Some(&"U2".to_owned())));
    /// ```
    #[must_use]
    pub fn group_policy(&self, group: &str) -> Option<&'a GroupPolicy<U>> {
        let groups = self.groups?;
        groups.get(group).or_else(|| groups.get(ANY_GROUP))
    }

    /// Returns whether `sender` may write directly without a pairing. `None` is a sender whose id is not of the platform's form.
    #[must_use]
    pub fn admits_directly(&self, sender: Option<&U>) -> bool {
        match self.direct {
            DirectPolicy::Open => true,
            DirectPolicy::Pairing | DirectPolicy::Allowlist => sender.is_some_and(|sender| self.allow.contains(sender)),
        }
    }

    /// Returns the faults of the rules that types cannot express, as keys and problems. `is_group` says whether a text
    /// has the form of a group's id, and `expected` describes that form.
    #[must_use]
    pub fn find_faults(&self, is_group: impl Fn(&str) -> bool, expected: &str) -> Vec<(String, String)> {
        let mut faults = Vec::new();
        match self.direct {
            DirectPolicy::Open if !self.allow.is_empty() => {
                let problem = "expected none with `direct: open`, which allows every user";
                faults.push(("allow".to_owned(), problem.to_owned()));
            }
            DirectPolicy::Open | DirectPolicy::Pairing | DirectPolicy::Allowlist => {}
        }

        for group in self.groups.into_iter().flat_map(BTreeMap::keys) {
            if group != ANY_GROUP && !is_group(group) {
                faults.push((format!("groups.{group}"), format!("expected {expected}, or \"*\"")));
            }
        }

        faults
    }
}
