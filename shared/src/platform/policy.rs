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
    /// Settings by topic: its id, as the platform numbers it. Each goes before that of the group.
    pub topics: BTreeMap<String, TopicPolicy<U>>,
}

/// Settings of a topic of a group. Those that it does not name are the group's.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, bound(deserialize = "U: Ord + Deserialize<'de>"))]
pub struct TopicPolicy<U> {
    /// As [`GroupPolicy::require_mention`].
    #[serde(default)]
    pub require_mention: Option<bool>,
    /// As [`GroupPolicy::reply_in_thread`].
    #[serde(default)]
    pub reply_in_thread: Option<bool>,
    /// As [`GroupPolicy::allow`].
    #[serde(default)]
    pub allow: Option<BTreeSet<U>>,
    /// As [`GroupPolicy::prompt`].
    #[serde(default)]
    pub prompt: Option<GroupPrompt>,
}

/// Settings that hold at one place: a topic, or a group outside of those that have settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacePolicy<'a, U> {
    /// As [`GroupPolicy::require_mention`].
    pub require_mention: bool,
    /// As [`GroupPolicy::reply_in_thread`].
    pub reply_in_thread: bool,
    /// As [`GroupPolicy::allow`].
    pub allow: &'a BTreeSet<U>,
    /// As [`GroupPolicy::prompt`].
    pub prompt: Option<&'a GroupPrompt>,
}

impl<U> GroupPolicy<U> {
    /// Returns the settings in `topic`; `None` = in none.
    ///
    /// ```
    /// use shared::platform::policy::GroupPolicy;
    ///
    /// let text = r#"{"require_mention": false, "allow": [5], "topics": {"7": {"require_mention": true}}}"#;
    /// let group: GroupPolicy<i64> = serde_json::from_str(text)?;
    /// assert!(group.in_topic(Some("7")).require_mention && group.in_topic(Some("7")).allow.contains(&5));
    /// assert!(!group.in_topic(Some("8")).require_mention && !group.in_topic(None).require_mention);
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    #[must_use]
    pub fn in_topic(&self, topic: Option<&str>) -> PlacePolicy<'_, U> {
        let own = topic.and_then(|topic| self.topics.get(topic));
        let setting = |own: Option<bool>, of_group: bool| own.unwrap_or(of_group);
        PlacePolicy {
            require_mention: setting(own.and_then(|own| own.require_mention), self.require_mention),
            reply_in_thread: setting(own.and_then(|own| own.reply_in_thread), self.reply_in_thread),
            allow: own.and_then(|own| own.allow.as_ref()).unwrap_or(&self.allow),
            prompt: own.and_then(|own| own.prompt.as_ref()).or(self.prompt.as_ref()),
        }
    }
}

impl<U> Default for GroupPolicy<U> {
    fn default() -> Self {
        Self {
            require_mention: true,
            reply_in_thread: true,
            allow: BTreeSet::new(),
            prompt: None,
            topics: BTreeMap::new(),
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

    /// Returns the settings in `topic` of `group`, which had the id `former` before; `None` if the group's messages are ignored.
    /// A group whose id is not named has the settings of its former id.
    #[must_use]
    pub fn place_policy(&self, group: &str, former: Option<&str>, topic: Option<&str>) -> Option<PlacePolicy<'a, U>> {
        let is_named = |id: &&str| self.groups.is_some_and(|groups| groups.contains_key(*id));
        let group = [Some(group), former]
            .into_iter()
            .flatten()
            .find(is_named)
            .unwrap_or(group);
        self.group_policy(group).map(|group| group.in_topic(topic))
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

    /// Returns the faults of the topics' ids, as keys and problems. `is_topic` says whether a text has the form of a topic's
    /// id, and `expected` describes that form.
    #[must_use]
    pub fn find_topic_faults(&self, is_topic: impl Fn(&str) -> bool, expected: &str) -> Vec<(String, String)> {
        let groups = self.groups.into_iter().flatten();
        let topics = groups.flat_map(|(group, policy)| policy.topics.keys().map(move |topic| (group, topic)));
        let wrong = topics.filter_map(|(group, topic)| {
            let problem = if group == ANY_GROUP {
                // A topic's id says nothing without its group.
                "expected topics of a group that is named".to_owned()
            } else if is_topic(topic) {
                return None;
            } else {
                format!("expected {expected}")
            };
            Some((format!("groups.{group}.topics.{topic}"), problem))
        });
        wrong.collect()
    }
}
