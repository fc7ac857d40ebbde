//! Who may do what on the bus, as data. *Pure.*
//!
//! The one list of rights: the server's configuration, the users' tokens, the table in `docs/rights.md` and the tests
//! come from it. A role is what a program or a person is to the bus; each user has one. Source:
//! `docs/adr/0029-accounts-are-the-walls.md`.
//!
//! Within an account rights only stop mistakes, because the server sends its own answers to whatever subject a request
//! names: who may publish into one stream can have the server's acknowledgement stored in another. The walls are the
//! accounts. A request that crosses them is answered on a subject of the server's own, which no stream stores.

mod account_limits;
mod role_rights;
mod table;

pub use self::account_limits::AccountLimits;
pub use self::table::rights_table;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Placeholder for a user's name, which the server fills in.
pub const NAME: &str = "{{name()}}";
/// Beginning of the tag by which a user's token names its role.
pub const ROLE_TAG: &str = "role:";
/// Beginning of the tag by which an edge's token names its channel.
pub const CHANNEL_TAG: &str = "channel:";
/// Beginning of the tags by which an agent's token names the personas for which it answers; `*` stands for all.
pub const PERSONA_TAG: &str = "persona:";
/// Longest time for which a service may be asked before it answers: a gate waits as long as an approval.
const ANSWERED_WITHIN: Duration = Duration::from_secs(24 * 3_600);
/// Number of messages in which an agent may answer one question.
const AGENT_ANSWERS: i64 = 64;

/// An account of the bus. Messages of one are not seen in another, except what is exported and imported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum BusAccount {
    /// The services, with all streams and keys.
    Nexus,
    /// Adapters on other hosts. They publish events into `Nexus`.
    Edge,
    /// Programs that are agents of personas. Brokers ask them; they ask whether a tool may run.
    Agents,
    /// The servers' own account, for the user that changes the others.
    Sys,
}

impl BusAccount {
    /// All accounts.
    pub const ALL: [Self; 4] = [Self::Nexus, Self::Edge, Self::Agents, Self::Sys];

    /// Name of the account.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nexus => "NEXUS",
            Self::Edge => "EDGE",
            Self::Agents => "AGENTS",
            Self::Sys => "SYS",
        }
    }

    /// Whether the account has streams.
    #[must_use]
    pub const fn has_streams(self) -> bool {
        match self {
            Self::Nexus => true,
            Self::Edge | Self::Agents | Self::Sys => false,
        }
    }
}

/// A subject on which members of other accounts may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedService {
    /// The subject, in all accounts alike.
    pub subject: &'static str,
    /// Account that answers.
    pub from: BusAccount,
    /// Account that asks.
    pub to: BusAccount,
    /// Whether one question may have several answers.
    pub many_answers: bool,
}

/// All that passes from one account to another.
pub const SHARED: [SharedService; 3] = [
    SharedService {
        subject: "nexus.event.*.*.*",
        from: BusAccount::Nexus,
        to: BusAccount::Edge,
        many_answers: false,
    },
    SharedService {
        subject: "nexus.svc.turn.gate",
        from: BusAccount::Nexus,
        to: BusAccount::Agents,
        many_answers: false,
    },
    SharedService {
        subject: "nexus.agent.>",
        from: BusAccount::Agents,
        to: BusAccount::Nexus,
        many_answers: true,
    },
];

/// Role of a program or a person on the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BusRole {
    /// adapter-svc.
    Adapter,
    /// hook-svc.
    Hook,
    /// broker-svc.
    Broker,
    /// delivery-svc.
    Delivery,
    /// scheduler-svc.
    Scheduler,
    /// `nexus topology apply`: creates and changes streams and consumers, which no service may.
    Topology,
    /// `nexus backup`.
    Backup,
    /// `nexus restore`, while the services are stopped.
    Restore,
    /// An administrator of the installation: everything but writing history or taking it away.
    Admin,
    /// A person who runs the system through its services.
    Operator,
    /// A person who looks on through the services.
    Viewer,
    /// A program that is the agent of personas.
    Agent,
    /// An adapter on another host.
    Edge,
    /// `nexus auth`: tells the servers which users there are.
    System,
}

impl BusRole {
    /// All roles.
    pub const ALL: [Self; 14] = [
        Self::Adapter,
        Self::Hook,
        Self::Broker,
        Self::Delivery,
        Self::Scheduler,
        Self::Topology,
        Self::Backup,
        Self::Restore,
        Self::Admin,
        Self::Operator,
        Self::Viewer,
        Self::Agent,
        Self::Edge,
        Self::System,
    ];

    /// Name of the role: that of its first user, in tags and in commands.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Adapter => "adapter",
            Self::Hook => "hook",
            Self::Broker => "broker",
            Self::Delivery => "delivery",
            Self::Scheduler => "scheduler",
            Self::Topology => "topology",
            Self::Backup => "backup",
            Self::Restore => "restore",
            Self::Admin => "admin",
            Self::Operator => "operator",
            Self::Viewer => "viewer",
            Self::Agent => "agent",
            Self::Edge => "edge",
            Self::System => "system",
        }
    }

    /// Returns the role of that name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    /// Returns the role of the service `service` (`hook-svc`).
    #[must_use]
    pub fn of_service(service: &str) -> Option<Self> {
        let role = Self::parse(service.strip_suffix("-svc")?)?;
        role.is_service().then_some(role)
    }

    /// Account of the role's users.
    #[must_use]
    pub const fn account(self) -> BusAccount {
        match self {
            Self::Adapter
            | Self::Hook
            | Self::Broker
            | Self::Delivery
            | Self::Scheduler
            | Self::Topology
            | Self::Backup
            | Self::Restore
            | Self::Admin
            | Self::Operator
            | Self::Viewer => BusAccount::Nexus,
            Self::Agent => BusAccount::Agents,
            Self::Edge => BusAccount::Edge,
            Self::System => BusAccount::Sys,
        }
    }

    /// Whether the role is that of one of the five services.
    #[must_use]
    pub const fn is_service(self) -> bool {
        match self {
            Self::Adapter | Self::Hook | Self::Broker | Self::Delivery | Self::Scheduler => true,
            Self::Topology
            | Self::Backup
            | Self::Restore
            | Self::Admin
            | Self::Operator
            | Self::Viewer
            | Self::Agent
            | Self::Edge
            | Self::System => false,
        }
    }

    /// Who the role's users are, in a few words.
    #[must_use]
    pub const fn purpose(self) -> &'static str {
        match self {
            Self::Adapter => "adapter-svc",
            Self::Hook => "hook-svc",
            Self::Broker => "broker-svc",
            Self::Delivery => "delivery-svc",
            Self::Scheduler => "scheduler-svc",
            Self::Topology => "`nexus topology apply`, once before the services of a version start",
            Self::Backup => "`nexus backup`",
            Self::Restore => "`nexus restore`, while the services are stopped",
            Self::Admin => "an administrator of the installation",
            Self::Operator => "a person who runs the system through its services",
            Self::Viewer => "a person who looks on through the services",
            Self::Agent => "a program that is the agent of personas; its tags `persona` name them, or all with `*`",
            Self::Edge => "an adapter on another host; its tag `channel` names its channel",
            Self::System => "`nexus auth`",
        }
    }

    /// Rights of the role.
    #[must_use]
    pub const fn rights(self) -> &'static [Right] {
        role_rights::of(self)
    }

    /// Subjects that its users may publish and hear, as the server takes them.
    #[must_use]
    pub fn subjects(self) -> SubjectRights {
        let rights = self.rights();
        let all = |of: fn(Right) -> Vec<String>| rights.iter().copied().flat_map(of).collect::<BTreeSet<_>>();
        let mut hear = all(Right::subscribes);
        // An empty list of what is allowed would allow everything.
        hear.insert(format!("{}.>", self.inboxes(NAME)));

        SubjectRights {
            publish: all(Right::publishes).into_iter().collect(),
            deny_publish: role_rights::denied(self)
                .iter()
                .map(|&subject| subject.to_owned())
                .collect(),
            hear: hear.into_iter().collect(),
            answers: self.answers(),
            is_bearer: self == Self::Agent,
        }
    }

    /// Returns the beginning of the subjects on which its user `name` awaits answers. It names the role if there are others in
    /// the account: a thief of one role's key can give its users any name.
    #[must_use]
    pub fn inboxes(self, name: &str) -> String {
        match self.account() {
            BusAccount::Nexus => format!("_INBOX_{}_{name}", self.name()),
            BusAccount::Edge | BusAccount::Agents | BusAccount::Sys => format!("_INBOX_{name}"),
        }
    }

    /// How its users may answer questions; `None` if they serve nothing.
    const fn answers(self) -> Option<AnswerRights> {
        let most = match self {
            Self::Adapter | Self::Hook | Self::Broker | Self::Delivery | Self::Scheduler => 1,
            Self::Agent => AGENT_ANSWERS,
            Self::Topology
            | Self::Backup
            | Self::Restore
            | Self::Admin
            | Self::Operator
            | Self::Viewer
            | Self::Edge
            | Self::System => return None,
        };
        Some(AnswerRights {
            most,
            within: ANSWERED_WITHIN,
        })
    }

    /// Whether its users may read `stream` and remove single messages of it, as who repairs a reader does.
    #[must_use]
    pub fn may_clear(self, stream: &str) -> bool {
        let calls = [
            format!("$JS.API.CONSUMER.LIST.{stream}"),
            format!("$JS.API.STREAM.MSG.DELETE.{stream}"),
        ];
        calls
            .iter()
            .all(|call| self.is_granted(|allowed| covers(allowed, call)))
    }

    /// Whether there is any stream of which its users may remove single messages.
    #[must_use]
    pub fn clears_streams(self) -> bool {
        let of_one = "$JS.API.STREAM.MSG.DELETE.";
        self.is_granted(|allowed| allowed.starts_with(of_one) || covers(allowed, "$JS.API.STREAM.MSG.DELETE.EVENTS"))
    }

    /// Whether one of the subjects on which its users may publish is `wanted`.
    fn is_granted(self, wanted: impl Fn(&str) -> bool) -> bool {
        let rights = self.rights().iter();
        rights
            .flat_map(|right| right.publishes())
            .any(|allowed| wanted(&allowed))
    }
}

/// One thing that a role does on the bus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Right {
    /// Publishes messages on these subjects.
    Publish(&'static str),
    /// Hears messages on these subjects that are not stored.
    Hear(&'static str),
    /// Asks `nexus.svc.…`.
    Ask(&'static str),
    /// Answers on `nexus.svc.…`.
    Serve(&'static str),
    /// Calls `$JS.API.…`.
    Api(&'static str),
    /// Reads a stream, by consumers of its own or those that are shared.
    Read(&'static str),
    /// Deletes single messages of a stream.
    Delete(&'static str),
    /// Deletes the messages of a stream under one subject.
    Purge(&'static str),
    /// Reads a KV bucket.
    ReadKeys(&'static str),
    /// Writes a KV bucket.
    WriteKeys(&'static str),
    /// Reads an object bucket.
    ReadFiles(&'static str),
    /// Writes an object bucket.
    WriteFiles(&'static str),
}

/// Subjects by which a stream is read.
fn reading(stream: &str) -> Vec<String> {
    let calls = [
        "$JS.API.DIRECT.GET.{}",
        "$JS.API.DIRECT.GET.{}.>",
        "$JS.API.STREAM.MSG.GET.{}",
        "$JS.API.CONSUMER.CREATE.{}",
        "$JS.API.CONSUMER.CREATE.{}.>",
        "$JS.API.CONSUMER.DELETE.{}.*",
        "$JS.API.CONSUMER.RESET.{}.*",
        "$JS.API.CONSUMER.MSG.NEXT.{}.*",
        "$JS.API.CONSUMER.LIST.{}",
        "$JS.ACK.{}.>",
    ];
    calls.iter().map(|call| call.replace("{}", stream)).collect()
}

impl Right {
    /// Subjects on which it is to be published.
    #[must_use]
    pub fn publishes(self) -> Vec<String> {
        match self {
            Self::Publish(subject) => vec![subject.to_owned()],
            Self::Hear(_) => Vec::new(),
            Self::Ask(endpoint) => vec![format!("nexus.svc.{endpoint}")],
            // A service answers on the inbox of the question, by a right of its own.
            Self::Serve(_) => Vec::new(),
            Self::Api(call) => vec![format!("$JS.API.{call}")],
            Self::Read(stream) => reading(stream),
            Self::Delete(stream) => vec![format!("$JS.API.STREAM.MSG.DELETE.{stream}")],
            Self::Purge(stream) => vec![format!("$JS.API.STREAM.PURGE.{stream}")],
            Self::ReadKeys(bucket) => reading(&format!("KV_{bucket}")),
            // A bucket refuses the call. It comes first if a message is taken out that no client can read.
            Self::WriteKeys(bucket) => vec![
                format!("$KV.{bucket}.>"),
                format!("$JS.API.STREAM.MSG.DELETE.KV_{bucket}"),
            ],
            Self::ReadFiles(bucket) => reading(&format!("OBJ_{bucket}")),
            Self::WriteFiles(bucket) => vec![
                format!("$O.{bucket}.C.>"),
                format!("$O.{bucket}.M.>"),
                format!("$JS.API.STREAM.PURGE.OBJ_{bucket}"),
                format!("$JS.API.STREAM.MSG.DELETE.OBJ_{bucket}"),
            ],
        }
    }

    /// Subjects that are to be subscribed to.
    #[must_use]
    pub fn subscribes(self) -> Vec<String> {
        match self {
            Self::Hear(subject) => vec![subject.to_owned()],
            Self::Serve(endpoint) => vec![format!("nexus.svc.{endpoint}")],
            Self::Publish(_)
            | Self::Ask(_)
            | Self::Api(_)
            | Self::Read(_)
            | Self::Delete(_)
            | Self::Purge(_)
            | Self::ReadKeys(_)
            | Self::WriteKeys(_)
            | Self::ReadFiles(_)
            | Self::WriteFiles(_) => Vec::new(),
        }
    }
}

/// Subjects that a user may publish and hear.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubjectRights {
    /// Subjects on which it may publish, sorted.
    pub publish: Vec<String>,
    /// Exceptions from them.
    pub deny_publish: Vec<String>,
    /// Subjects that it may subscribe to, sorted.
    pub hear: Vec<String>,
    /// How it may answer on a subject that a question names; `None` if it may not.
    pub answers: Option<AnswerRights>,
    /// Whether its token alone lets it in, as a password does: agents are written in any language, and not each of them
    /// signs.
    pub is_bearer: bool,
}

impl SubjectRights {
    /// Whether a user of the name `name` may publish on `subject`, without its answers.
    #[must_use]
    pub fn may_publish(&self, name: &str, subject: &str) -> bool {
        let is_in = |list: &[String]| list.iter().any(|allowed| covers(&allowed.replace(NAME, name), subject));
        is_in(&self.publish) && !is_in(&self.deny_publish)
    }

    /// Whether a user of the name `name` may subscribe to `subject`.
    #[must_use]
    pub fn may_hear(&self, name: &str, subject: &str) -> bool {
        let is_in = |list: &[String]| list.iter().any(|allowed| covers(&allowed.replace(NAME, name), subject));
        is_in(&self.hear)
    }
}

/// How a user may answer questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerRights {
    /// Number of answers to one question.
    pub most: i64,
    /// Time within which they must come.
    pub within: Duration,
}

/// Returns whether every subject under `subject`, which may have wildcards itself, is under `filter`.
///
/// ```
/// use shared::wire::rights::covers;
///
/// assert!(covers("nexus.event.*.*.*", "nexus.event.webhook.default.ann"));
/// assert!(covers("nexus.>", "nexus.svc.hook.*"));
/// assert!(!covers("nexus.svc.*", "nexus.svc.>"));
/// assert!(!covers("nexus.>", "nexus"));
/// ```
#[must_use]
pub fn covers(filter: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    for expected in filter.split('.') {
        match (expected, tokens.next()) {
            (_, None) => return false,
            (">", Some(_)) => return true,
            (_, Some(">")) => return false,
            ("*", Some(_)) => {}
            (expected, Some(token)) if expected == token => {}
            (_, Some(_)) => return false,
        }
    }
    tokens.next().is_none()
}

#[cfg(test)]
mod tests;
