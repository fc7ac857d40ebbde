//! The channels and guilds that a bot knows, and its roles. *Pure.*
//!
//! Source: <https://discord.com/developers/docs/events/gateway-events#guild-create>.

use std::collections::{BTreeSet, HashMap};

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use shared::platform::discord::ChannelPlace;

/// Kinds of channels that have no messages of their own: categories, directories, forums and media. The newest message
/// of a forum is a thread.
const WITHOUT_MESSAGES: [u64; 4] = [4, 14, 15, 16];

/// What a connection has learnt of its surroundings.
#[derive(Debug, Default)]
pub(super) struct KnownPlaces {
    channels: HashMap<String, ChannelPlace>,
    /// The bot's roles, by guild.
    roles: HashMap<String, BTreeSet<String>>,
    /// What decides about the bot's rights in a channel of a list, as a hash.
    rights: HashMap<String, u64>,
}

/// A channel of a guild, with its newest message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ListedChannel {
    /// Id.
    pub id: String,
    /// Id of the newest message.
    pub newest: Option<u64>,
    /// What decides about the bot's rights in it, as a hash.
    pub rights: u64,
}

impl KnownPlaces {
    /// Returns what is known of `channel`.
    #[must_use]
    pub(super) fn channel(&self, channel: &str) -> Option<&ChannelPlace> {
        self.channels.get(channel)
    }

    /// Returns the bot's roles in `guild`.
    #[must_use]
    pub(super) fn roles(&self, guild: &str) -> Option<&BTreeSet<String>> {
        self.roles.get(guild)
    }

    /// Returns the hash of what decides about the bot's rights in `channel`; 0 if it is not known.
    #[must_use]
    pub(super) fn rights(&self, channel: &str) -> u64 {
        self.rights.get(channel).copied().unwrap_or(0)
    }

    /// Notes what `channel` is.
    pub(super) fn note_channel(&mut self, channel: &str, place: ChannelPlace) {
        self.channels.insert(channel.to_owned(), place);
    }

    /// Notes the bot's roles in `guild`.
    pub(super) fn note_roles(&mut self, guild: &str, roles: BTreeSet<String>) {
        self.roles.insert(guild.to_owned(), roles);
    }

    /// Reads the dispatch of `kind` with `data`, as far as it is about guilds and channels. Returns the channels of a
    /// guild that it lists.
    pub(super) fn read_dispatch(&mut self, kind: &str, data: &Value, own: &str) -> Vec<ListedChannel> {
        let text = |key: &str| data.get(key).and_then(Value::as_str);
        match kind {
            "GUILD_CREATE" => {
                let guild = text("id").unwrap_or_default().to_owned();
                let rights = GuildRights::read(data, own);
                let lists = ["channels", "threads"]
                    .into_iter()
                    .filter_map(|key| data.get(key)?.as_array());
                let found = lists.flatten().filter_map(|channel| {
                    let rights = rights.hash_channel(channel);
                    let listed = self.read_channel(channel, Some(&guild), rights)?;
                    self.rights.insert(listed.id.clone(), rights);
                    Some(listed)
                });
                found.collect()
            }
            "CHANNEL_CREATE" | "CHANNEL_UPDATE" | "THREAD_CREATE" | "THREAD_UPDATE" => {
                if let Some(listed) = self.read_channel(data, None, 0) {
                    self.rights.remove(&listed.id);
                }
                Vec::new()
            }
            "CHANNEL_DELETE" | "THREAD_DELETE" => {
                let channel = text("id").unwrap_or_default();
                self.channels.remove(channel);
                self.rights.remove(channel);
                Vec::new()
            }
            "GUILD_MEMBER_UPDATE" => {
                let user = data.pointer("/user/id").and_then(Value::as_str);
                if user == Some(own) {
                    self.roles.remove(text("guild_id").unwrap_or_default());
                }
                Vec::new()
            }
            "GUILD_DELETE" => {
                let guild = text("id").unwrap_or_default();
                self.roles.remove(guild);
                self.channels
                    .retain(|_, place| place.guild_id.as_deref() != Some(guild));
                self.rights.retain(|channel, _| self.channels.contains_key(channel));
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn read_channel(&mut self, channel: &Value, guild: Option<&str>, rights: u64) -> Option<ListedChannel> {
        let id = channel.get("id")?.as_str()?.to_owned();
        let mut place: ChannelPlace = serde_json::from_value(channel.clone()).ok()?;
        // In a guild's list the guild is not named.
        place.guild_id = place.guild_id.or_else(|| guild.map(str::to_owned));
        self.channels.insert(id.clone(), place);
        let kind = channel.get("type").and_then(Value::as_u64);
        let has_messages = kind.is_none_or(|kind| !WITHOUT_MESSAGES.contains(&kind));
        let newest = channel.get("last_message_id").and_then(Value::as_str);
        let newest = newest.filter(|_| has_messages);
        Some(ListedChannel {
            id,
            newest: newest.and_then(|newest| newest.parse().ok()),
            rights,
        })
    }
}

/// What decides about the bot's rights in the channels of a guild.
struct GuildRights<'a> {
    guild: &'a Value,
    /// Hash of the roles, and of those that the bot has.
    roles: Sha256,
}

impl<'a> GuildRights<'a> {
    /// Reads the list `guild`, in which the bot is `own`.
    fn read(guild: &'a Value, own: &str) -> Self {
        let list = |key: &str| {
            let found = guild.get(key).and_then(Value::as_array);
            found.map(Vec::as_slice).unwrap_or_default().iter()
        };
        let mut roles = Sha256::new();
        for role in list("roles") {
            roles.update(format!("{:?} {:?},", role.get("id"), role.get("permissions")));
        }
        let own = list("members").find(|member| member.pointer("/user/id").and_then(Value::as_str) == Some(own));
        roles.update(format!("{:?}", own.and_then(|member| member.get("roles"))));
        Self { guild, roles }
    }

    /// Returns the hash for `channel`. A thread has the rights of the channel in which it is.
    fn hash_channel(&self, channel: &Value) -> u64 {
        let parent = channel.get("parent_id").and_then(Value::as_str);
        let channels = self.guild.get("channels").and_then(Value::as_array);
        let parent = channels.into_iter().flatten().find(|one| {
            let id = one.get("id").and_then(Value::as_str);
            id.is_some() && id == parent
        });
        let overwrites = |channel: &Value| format!("{:?};", channel.get("permission_overwrites"));

        let mut hash = self.roles.clone();
        hash.update(overwrites(channel));
        hash.update(parent.map(overwrites).unwrap_or_default());
        let digest = hash.finalize();
        let first = digest.iter().take(8);
        // 0 says that the rights are not known.
        first.fold(0, |hash, byte| hash << 8 | u64::from(*byte)).max(1)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_guild_lists_its_channels_and_threads() {
        let mut known = KnownPlaces::default();
        let data = json!({"id": "20", "channels": [{"id": "1", "type": 0, "last_message_id": "99", "name": "general"},
            {"id": "2", "type": 15, "last_message_id": "98"}, {"type": 0}], "threads": [{"id": "3", "type": 11, "parent_id": "1", "owner_id": "77"}]});
        let listed = known.read_dispatch("GUILD_CREATE", &data, "77");
        let ids: Vec<(&str, Option<u64>)> = listed.iter().map(|one| (one.id.as_str(), one.newest)).collect();
        assert_eq!(ids, [("1", Some(99)), ("2", None), ("3", None)]);
        let thread = known.channel("3").expect("known");
        assert_eq!(
            (thread.thread_parent(), thread.guild_id.as_deref()),
            (Some("1"), Some("20"))
        );

        known.read_dispatch("THREAD_DELETE", &json!({"id": "3"}), "77");
        assert_eq!(known.channel("3"), None);
        known.read_dispatch("CHANNEL_CREATE", &json!({"id": "4", "type": 0, "guild_id": "20"}), "77");
        assert_eq!(
            known.channel("4").and_then(|place| place.guild_id.as_deref()),
            Some("20")
        );
    }

    #[test]
    fn a_guild_that_is_left_takes_its_channels_along() {
        let mut known = KnownPlaces::default();
        for guild in ["20", "21"] {
            let data = json!({"id": guild, "channels": [{"id": format!("{guild}1"), "type": 0}]});
            known.read_dispatch("GUILD_CREATE", &data, "77");
        }
        known.read_dispatch("GUILD_DELETE", &json!({"id": "20"}), "77");
        assert!(known.channel("201").is_none() && known.channel("211").is_some());
    }

    #[test]
    fn the_rights_in_a_channel_are_others_once_its_overwrites_or_the_bot_s_roles_are() {
        let rights = |overwrites: &Value, role: &str, has: &Value| {
            let data = json!({"id": "20", "roles": [{"id": "r", "permissions": role}],
                "members": [{"user": {"id": "77"}, "roles": has}],
                "channels": [{"id": "1", "type": 0, "permission_overwrites": overwrites}],
                "threads": [{"id": "3", "type": 11, "parent_id": "1"}]});
            let mut known = KnownPlaces::default();
            let listed = known.read_dispatch("GUILD_CREATE", &data, "77");
            assert_eq!(
                (known.rights("1"), known.rights("3")),
                (listed[0].rights, listed[1].rights)
            );
            assert_eq!(known.rights("unknown"), 0);
            (listed[0].rights, listed[1].rights)
        };
        let base = rights(&json!([]), "1024", &json!([]));
        assert_eq!(rights(&json!([]), "1024", &json!([])), base);
        for other in [
            rights(&json!([{"id": "r", "deny": "1024"}]), "1024", &json!([])),
            rights(&json!([]), "0", &json!([])),
            rights(&json!([]), "1024", &json!(["r"])),
        ] {
            assert!(other.0 != base.0 && other.1 != base.1 && other.0 != 0);
        }
    }

    #[test]
    fn roles_are_asked_for_again_when_they_change() {
        let mut known = KnownPlaces::default();
        known.note_roles("20", BTreeSet::from(["r".to_owned()]));
        known.read_dispatch(
            "GUILD_MEMBER_UPDATE",
            &json!({"guild_id": "20", "user": {"id": "5"}}),
            "77",
        );
        assert!(known.roles("20").is_some());
        known.read_dispatch(
            "GUILD_MEMBER_UPDATE",
            &json!({"guild_id": "20", "user": {"id": "77"}}),
            "77",
        );
        assert!(known.roles("20").is_none());
        for strange in [
            json!(null),
            json!([]),
            json!({"channels": {}}),
            json!({"threads": [null, 5]}),
        ] {
            assert!(known.read_dispatch("GUILD_CREATE", &strange, "77").is_empty());
        }
    }
}
