//! Instructions for agents by group and topic, from `channels.yaml`, for programs that may not have the accounts' secrets. *Pure.*
//!
//! The text is the operator's, from the file, and never from a message: an event only says in which group it happened,
//! and only an event that the account itself brought is believed.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::accounts::ReadAccountsError;
use super::discord::DISCORD;
use super::policy::{ANY_GROUP, GroupPrompt};
use super::slack::SLACK;
use super::telegram::TELEGRAM;
use super::topic::topic_of;
use crate::model::event::{Event, PeerKind};
use crate::model::origin::EventOrigin;
use crate::process::config::read_yaml;

/// The prompts of one account, by group. An entry without a prompt is kept, because it goes before [`ANY_GROUP`].
type AccountPrompts = BTreeMap<String, PromptGroup>;

/// The prompts of all accounts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupPrompts {
    /// Prompts by channel, and name of the account.
    accounts: BTreeMap<(&'static str, String), AccountPrompts>,
}

/// The keys of `channels.yaml` that are read here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PromptFile {
    telegram: Option<PromptSection>,
    discord: Option<PromptSection>,
    slack: Option<PromptSection>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PromptSection {
    accounts: BTreeMap<String, Option<PromptAccount>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PromptAccount {
    groups: Option<BTreeMap<String, Option<PromptGroup>>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct PromptGroup {
    prompt: Option<GroupPrompt>,
    topics: Option<BTreeMap<String, Option<PromptTopic>>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct PromptTopic {
    prompt: Option<GroupPrompt>,
}

impl PromptGroup {
    /// Returns the prompt in `topic`, as [`GroupPolicy::in_topic`](super::policy::GroupPolicy::in_topic) does.
    fn in_topic(&self, topic: Option<&str>) -> Option<&GroupPrompt> {
        let own = topic.and_then(|topic| self.topics.as_ref()?.get(topic)?.as_ref());
        own.and_then(|own| own.prompt.as_ref()).or(self.prompt.as_ref())
    }
}

impl GroupPrompts {
    /// Reads the prompts in `text`, the content of `channels.yaml`. Secrets are not resolved, and keys that are not read
    /// here may be wrong: adapter-svc and delivery-svc refuse those.
    ///
    /// # Errors
    /// Returns [`ReadAccountsError`] with every invalid key that is read here.
    ///
    /// ```
    /// use shared::model::event::{Event, EventId, PeerKind};
    /// use shared::model::origin::EventOrigin;
    /// use shared::model::time::UnixMillis;
    /// use shared::platform::group_prompts::GroupPrompts;
    ///
    /// let text = "telegram: {accounts: {main: {token: 'env:NOT_OURS', groups: {-7: {prompt: Answer in German.}}}}}";
    /// let prompts = GroupPrompts::read(text)?;
    /// let mut event = Event::new(EventId::parse("telegram:main/-7/1")?, "telegram", "-7", UnixMillis(1));
    /// event.peer.kind = PeerKind::Group;
    /// event.account_id = Some("main".to_owned());
    /// assert_eq!(prompts.find_prompt(&event), None, "nobody proves who brought it");
    ///
    /// event.origin = EventOrigin::account("telegram", "main");
    /// assert_eq!(prompts.find_prompt(&event), Some("Answer in German."));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read(text: &str) -> Result<Self, ReadAccountsError> {
        let file: Option<PromptFile> = read_yaml(text, |_| Vec::new()).map_err(ReadAccountsError)?;
        let file = file.unwrap_or_default();
        let sections = [(TELEGRAM, file.telegram), (DISCORD, file.discord), (SLACK, file.slack)];

        let mut accounts = BTreeMap::new();
        for (channel, section) in sections {
            for (name, account) in section.unwrap_or_default().accounts {
                let groups = account.unwrap_or_default().groups.unwrap_or_default();
                let prompts = groups.into_iter().map(|(id, group)| (id, group.unwrap_or_default()));
                accounts.insert((channel, name), prompts.collect());
            }
        }

        Ok(Self { accounts })
    }

    /// Returns the prompt of the topic in which `event` happened, or else of the group; `None` if it happened in none, if they
    /// have no prompt, or if the account did not bring the event itself. Groups are found as the account's other settings are:
    /// by id, on Discord then by server, then by [`ANY_GROUP`].
    #[must_use]
    pub fn find_prompt(&self, event: &Event) -> Option<&str> {
        match event.peer.kind {
            PeerKind::Dm => return None,
            PeerKind::Group | PeerKind::Channel => {}
        }
        // Another publisher could name any account and group, and so choose the agent's instructions.
        if event.origin != EventOrigin::account(&event.channel, event.account()) {
            return None;
        }

        let account = event.account();
        let is_account = |channel: &str, name: &str| channel == event.channel && name == account;
        let mut accounts = self.accounts.iter();
        let (_, groups) = accounts.find(|((channel, name), _)| is_account(channel, name))?;
        let guild = event.peer.guild_id.as_ref().filter(|_| event.channel == DISCORD);
        let of_guild = || guild.and_then(|guild| groups.get(guild));
        let of_former = || event.former_peer().and_then(|former| groups.get(former));
        let found = groups.get(&event.peer.id).or_else(of_former).or_else(of_guild);

        let group = found.or_else(|| groups.get(ANY_GROUP))?;
        group.in_topic(topic_of(event)).map(GroupPrompt::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::{EventId, MIGRATED_FROM};
    use crate::model::time::UnixMillis;
    use crate::platform::policy::MAX_GROUP_PROMPT_CHARS;

    const FILE: &str = "\
webhook: {accounts: {demo: {url: 'https://example.com', secret: 'env:A'}}}
telegram:
  accounts:
    main: {token: 'env:B', groups: {-5: {prompt: five}, -6: {}, '*': {prompt: others}}}
    out: {token: 'env:C', receive: none}
discord:
  accounts:
    bot: {token: 'env:D', groups: {'1': {prompt: channel}, '2': {prompt: server}}}
slack:
";

    /// An event of the conversation `peer` that `main` or `bot` of `channel` brought.
    fn event(channel: &str, peer: &str) -> Event {
        let id = EventId::parse("x:1").expect("an id");
        let mut event = Event::new(id, channel, peer, UnixMillis(1));
        let account = if channel == DISCORD { "bot" } else { "main" };
        event.account_id = Some(account.to_owned());
        event.origin = EventOrigin::account(channel, account);
        event.peer.kind = PeerKind::Group;
        event
    }

    #[test]
    fn a_group_has_its_own_prompt_or_that_of_its_server_or_of_all_others() {
        let prompts = GroupPrompts::read(FILE).expect("read");
        let found = |event: Event| prompts.find_prompt(&event).map(str::to_owned);
        let some = |text: &str| Some(text.to_owned());

        assert_eq!(found(event("telegram", "-5")), some("five"));
        assert_eq!(found(event("telegram", "-6")), None, "named, and without a prompt");
        assert_eq!(found(event("telegram", "-7")), some("others"));
        assert_eq!(found(event("slack", "C1")), None);

        let in_server = |channel: &str| {
            let mut event = event(DISCORD, channel);
            event.peer.guild_id = Some("2".to_owned());
            event
        };
        assert_eq!(found(in_server("1")), some("channel"));
        assert_eq!(found(in_server("3")), some("server"));
        assert_eq!(found(event(DISCORD, "3")), None);
    }

    #[test]
    fn a_topic_has_its_own_prompt_or_that_of_its_group() {
        let file =
            "telegram: {accounts: {main: {groups: {-5: {prompt: five, topics: {7: {prompt: seven}, 8: {}, 9: }}}}}}";
        let prompts = GroupPrompts::read(file).expect("read");
        let found = |peer: &str, thread: Option<&str>| {
            let mut event = event("telegram", peer);
            event.thread_id = thread.map(str::to_owned);
            prompts.find_prompt(&event).map(str::to_owned)
        };
        assert_eq!(found("-5", Some("7")).as_deref(), Some("seven"));
        for thread in [None, Some("8"), Some("9"), Some("10")] {
            assert_eq!(found("-5", thread).as_deref(), Some("five"), "{thread:?}");
        }
        assert_eq!(found("-6", Some("7")), None);
    }

    #[test]
    fn a_group_with_another_id_has_the_prompt_of_its_former_one() {
        let prompts = GroupPrompts::read(FILE).expect("read");
        let of = |peer: &str, former: &str| {
            let mut event = event("telegram", peer);
            event.metadata.insert(MIGRATED_FROM.to_owned(), former.into());
            prompts.find_prompt(&event).map(str::to_owned)
        };
        assert_eq!(of("-1005", "-5").as_deref(), Some("five"));
        assert_eq!(of("-1005", "-6"), None, "named, and without a prompt");
        assert_eq!(of("-1005", "-7").as_deref(), Some("others"));
        assert_eq!(of("-5", "-6").as_deref(), Some("five"), "its own goes before");
    }

    #[test]
    fn nobody_but_the_account_chooses_a_group() {
        let prompts = GroupPrompts::read(FILE).expect("read");
        let forged = [
            EventOrigin::Open,
            EventOrigin::System,
            EventOrigin::Token { name: "crm".to_owned() },
            EventOrigin::Edge {
                name: "roof".to_owned(),
            },
            EventOrigin::account("telegram", "out"),
            EventOrigin::account("slack", "main"),
        ];
        for origin in forged {
            let event = Event {
                origin,
                ..event("telegram", "-5")
            };
            assert_eq!(prompts.find_prompt(&event), None, "{:?}", event.origin);
        }

        let mut direct = event("telegram", "-5");
        direct.peer.kind = PeerKind::Dm;
        assert_eq!(prompts.find_prompt(&direct), None);
    }

    #[test]
    fn a_prompt_is_bounded() {
        let file = |prompt: &str| format!("slack: {{accounts: {{app: {{groups: {{'*': {{prompt: '{prompt}'}}}}}}}}}}");
        assert!(GroupPrompts::read(&file(&"ß".repeat(MAX_GROUP_PROMPT_CHARS))).is_ok());
        for wrong in [" ".to_owned(), "x".repeat(MAX_GROUP_PROMPT_CHARS + 1)] {
            let error = GroupPrompts::read(&file(&wrong)).expect_err("refused");
            assert_eq!(error.0.len(), 1, "{error}");
            assert_eq!(error.0[0].key, "slack.accounts.app.groups.*.prompt");
        }
        assert_eq!(GroupPrompts::read("").expect("empty"), GroupPrompts::default());
    }
}
