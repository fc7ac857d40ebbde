//! The users of the bus and their accounts, as a value. *Pure.*
//!
//! A change is made here and stored before the file that depends on it is written; [`super::folder`] repairs what a
//! crash leaves between the two. Times are seconds since 1970.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use shared::wire::rights::{BusAccount, BusRole};

/// Maximum length of a user's name, in bytes.
const MAX_NAME_BYTES: usize = 48;
/// The name that users' Secrets leave to that of the servers.
const SERVER: &str = "server";

/// All users and accounts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserRegistry {
    /// The accounts.
    pub accounts: BTreeMap<BusAccount, AccountRecord>,
    /// The users, by name.
    pub users: BTreeMap<String, UserRecord>,
    /// Certificates of the servers, if they have any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificates: Option<CertificateRecord>,
    /// What the files for the servers were written with.
    #[serde(default)]
    pub files: FileSettings,
    /// Whether an account has changed since the servers were told.
    #[serde(default)]
    pub unpushed: bool,
}

/// What the files for the servers and for Kubernetes are written with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSettings {
    /// Names and addresses of the servers.
    pub hosts: Vec<String>,
    /// Directory in which the servers find the files.
    pub etc: PathBuf,
    /// Namespace of the Secrets.
    pub namespace: String,
}

impl Default for FileSettings {
    fn default() -> Self {
        Self {
            hosts: Vec::new(),
            etc: PathBuf::from("/etc/nats/auth"),
            namespace: "nexus".to_owned(),
        }
    }
}

/// An account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccountRecord {
    /// Public key that names it; its streams are stored under this name.
    pub public: String,
    /// Time of its token.
    pub issued: i64,
    /// Its token; empty until it is signed.
    pub token: String,
    /// Keys of users that are refused, each with the time until which tokens are.
    pub revoked: BTreeMap<String, i64>,
}

/// A user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserRecord {
    /// Role of the user.
    pub role: BusRole,
    /// Channel of an edge.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// Personas for which an agent answers; none stands for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub personas: Vec<String>,
    /// Public half of the user's key.
    pub public: String,
    /// Time of the user's token.
    pub issued: i64,
    /// Time from which the token is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<i64>,
    /// Former keys that are still accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retired: Vec<String>,
    /// Whether the user is refused.
    #[serde(default)]
    pub revoked: bool,
    /// Whether the file of the credentials has yet to be written: the key is in no hands.
    #[serde(default)]
    pub unwritten: bool,
}

/// Certificates of the servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateRecord {
    /// Names and addresses of the servers.
    pub hosts: Vec<String>,
    /// Time at which they expire.
    pub expires: i64,
}

/// State of a user, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum UserState {
    /// The user is accepted.
    Active,
    /// The user is accepted, and so is a former key.
    Rotating,
    /// The user's token has expired.
    Expired,
    /// The user is refused.
    Revoked,
}

impl UserState {
    /// Name of the state.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Rotating => "rotating",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
        }
    }
}

impl UserRecord {
    /// Returns the user's state at `now`.
    #[must_use]
    pub fn state(&self, now: i64) -> UserState {
        if self.revoked {
            UserState::Revoked
        } else if self.expires.is_some_and(|expires| expires <= now) {
            UserState::Expired
        } else if self.retired.is_empty() {
            UserState::Active
        } else {
            UserState::Rotating
        }
    }
}

/// A user to be added.
#[derive(Debug, Clone)]
pub struct WantedUser {
    /// Name of the user.
    pub name: String,
    /// Role of the user.
    pub role: BusRole,
    /// Channel of an edge.
    pub channel: Option<String>,
    /// Personas for which an agent answers; none stands for all.
    pub personas: Vec<String>,
    /// Time from which the user is refused.
    pub expires: Option<i64>,
}

/// When a user with a new key is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewExpiry {
    /// After as long a time as with the former key.
    AsBefore,
    /// Never.
    Never,
    /// From this time on.
    At(i64),
}

/// Why a change of the users is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UserRegistryError {
    /// The name is not allowed.
    #[error("`{0}` is not a user's name: expected 1 to {MAX_NAME_BYTES} of a-z, 0-9 and - within, and not `server`")]
    Name(String),
    /// The name belongs to another role.
    #[error("`{name}` is the name of the role `{name}`: choose another name for a user of role `{role}`")]
    RoleName {
        /// The name.
        name: String,
        /// The role that was asked for.
        role: &'static str,
    },
    /// There is a user of that name.
    #[error("there is a user `{0}`; `nexus auth rotate {0}` gives it another key")]
    Taken(String),
    /// There is no user of that name.
    #[error("there is no user `{0}`; `nexus auth list` shows all")]
    Unknown(String),
    /// The user is refused.
    #[error("user `{0}` is revoked; `nexus auth add {0}` makes it again")]
    Revoked(String),
    /// An option does not fit the role: an edge needs a channel, and an agent may have personas.
    #[error("role `{role}`: {problem}")]
    Option {
        /// The role.
        role: &'static str,
        /// What is wrong.
        problem: &'static str,
    },
    /// The user is needed to tell the servers about others.
    #[error(
        "user `{0}` tells the servers about the others and cannot be revoked; `nexus auth rotate {0}` replaces its key"
    )]
    Needed(String),
}

/// Returns whether `name` is a user's name: it is part of a Kubernetes Secret's, beside that of the servers.
fn is_user_name(name: &str) -> bool {
    let is_edged = name.starts_with('-') || name.ends_with('-');
    is_token(name) && !is_edged && !name.contains('_') && name != SERVER
}

/// Returns what is wrong with the personas of `wanted`.
fn persona_problem(wanted: &WantedUser) -> Option<&'static str> {
    if wanted.role != BusRole::Agent {
        let any = !wanted.personas.is_empty();
        return any.then_some("only an agent has personas");
    }
    let is_name = |persona: &String| (1..=MAX_NAME_BYTES).contains(&persona.len());
    (!wanted.personas.iter().all(is_name)).then_some("`--persona`: expected a name of 1 to 48 bytes")
}

fn is_token(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(allowed)
}

impl UserRegistry {
    /// Returns the public keys of the accounts.
    #[must_use]
    pub fn account_keys(&self) -> BTreeMap<BusAccount, String> {
        let keys = self.accounts.iter();
        keys.map(|(account, record)| (*account, record.public.clone()))
            .collect()
    }

    /// Returns the user `name`.
    ///
    /// # Errors
    /// Fails if there is none.
    pub fn user(&self, name: &str) -> Result<&UserRecord, UserRegistryError> {
        self.users
            .get(name)
            .ok_or_else(|| UserRegistryError::Unknown(name.to_owned()))
    }

    /// Returns why `wanted` cannot be added.
    ///
    /// # Errors
    /// Returns that as an error.
    pub fn check_new(&self, wanted: &WantedUser) -> Result<(), UserRegistryError> {
        let (name, role) = (&wanted.name, wanted.role.name());
        if !is_user_name(name) {
            return Err(UserRegistryError::Name(name.clone()));
        }
        if BusRole::parse(name).is_some_and(|named| named != wanted.role) {
            let name = name.clone();
            return Err(UserRegistryError::RoleName { name, role });
        }
        if self.users.get(name).is_some_and(|user| !user.revoked) {
            return Err(UserRegistryError::Taken(name.clone()));
        }

        let problem = match (wanted.role, wanted.channel.as_deref()) {
            (BusRole::Edge, None) => Some("`--channel` names the channel on which it publishes"),
            (BusRole::Edge, Some(channel)) if !is_token(channel) => {
                Some("`--channel`: expected a-z, 0-9, - and _, as a channel is written in subjects")
            }
            (BusRole::Edge, Some(_)) => None,
            (
                BusRole::Adapter
                | BusRole::Hook
                | BusRole::Broker
                | BusRole::Delivery
                | BusRole::Scheduler
                | BusRole::Topology
                | BusRole::Backup
                | BusRole::Restore
                | BusRole::Admin
                | BusRole::Operator
                | BusRole::Viewer
                | BusRole::Agent
                | BusRole::System,
                channel,
            ) => channel.map(|_| "only an edge has a channel"),
        };
        let problem = problem.or_else(|| persona_problem(wanted));
        problem.map_or(Ok(()), |problem| Err(UserRegistryError::Option { role, problem }))
    }

    /// Adds `wanted` with the key `public`. A user that was revoked under that name is replaced.
    ///
    /// # Errors
    /// Fails as [`UserRegistry::check_new`] does.
    pub fn add(&mut self, wanted: WantedUser, public: String, now: i64) -> Result<(), UserRegistryError> {
        self.check_new(&wanted)?;
        let record = UserRecord {
            role: wanted.role,
            channel: wanted.channel,
            personas: wanted.personas,
            public,
            issued: now,
            expires: wanted.expires,
            retired: Vec::new(),
            revoked: false,
            unwritten: true,
        };
        self.users.insert(wanted.name, record);
        Ok(())
    }

    /// Gives the user `name` the key `public`. The former key is accepted until [`UserRegistry::revoke_retired`].
    ///
    /// # Errors
    /// Fails if there is no such user, or if it is revoked.
    pub fn rotate(
        &mut self,
        name: &str,
        public: String,
        now: i64,
        expires: NewExpiry,
    ) -> Result<(), UserRegistryError> {
        let unknown = || UserRegistryError::Unknown(name.to_owned());
        let user = self.users.get_mut(name).ok_or_else(unknown)?;
        if user.revoked {
            return Err(UserRegistryError::Revoked(name.to_owned()));
        }

        // A clock that was set back makes no key older than a former one, which a revocation could then miss.
        let now = now.max(user.issued);
        user.retired.push(std::mem::replace(&mut user.public, public));
        user.unwritten = true;
        user.expires = match expires {
            NewExpiry::AsBefore => user.expires.map(|at| now + at.saturating_sub(user.issued)),
            NewExpiry::Never => None,
            NewExpiry::At(at) => Some(at),
        };
        user.issued = now;
        Ok(())
    }

    /// Gives the user `name`, whose key was never written to a file, the key `public` instead.
    pub fn replace_unwritten(&mut self, name: &str, public: String) {
        if let Some(user) = self.users.get_mut(name) {
            user.public = public;
        }
    }

    /// Records that the file of the credentials of `name` is written.
    pub fn note_written(&mut self, name: &str) {
        if let Some(user) = self.users.get_mut(name) {
            user.unwritten = false;
        }
    }

    /// Refuses the former keys of the user `name` from `now` on. Returns whether there were any.
    ///
    /// # Errors
    /// Fails if there is no such user.
    pub fn revoke_retired(&mut self, name: &str, now: i64) -> Result<bool, UserRegistryError> {
        let unknown = || UserRegistryError::Unknown(name.to_owned());
        let user = self.users.get_mut(name).ok_or_else(unknown)?;
        let retired = std::mem::take(&mut user.retired);
        let (account, until) = (user.role.account(), now.max(user.issued));
        let any = !retired.is_empty();
        self.refuse(account, retired, until);

        Ok(any)
    }

    /// Refuses the user `name` from `now` on.
    ///
    /// # Errors
    /// Fails if there is no such user, or if the others cannot be changed without it.
    pub fn revoke(&mut self, name: &str, now: i64) -> Result<(), UserRegistryError> {
        let unknown = || UserRegistryError::Unknown(name.to_owned());
        let user = self.users.get_mut(name).ok_or_else(unknown)?;
        if user.role == BusRole::System {
            return Err(UserRegistryError::Needed(name.to_owned()));
        }

        user.revoked = true;
        let mut keys = std::mem::take(&mut user.retired);
        keys.push(user.public.clone());
        let (account, until) = (user.role.account(), now.max(user.issued));
        self.refuse(account, keys, until);

        Ok(())
    }

    /// Takes over what the servers know of `account` from a token that was made at `issued` and refuses `revoked`: another
    /// copy of these records may have told them. The next token is newer, and refuses those users too.
    pub fn take_over(&mut self, account: BusAccount, issued: i64, revoked: &BTreeMap<String, i64>) {
        let Some(record) = self.accounts.get_mut(&account) else {
            return;
        };
        record.issued = record.issued.max(issued);
        for (key, until) in revoked {
            let refused = record.revoked.entry(key.clone()).or_insert(*until);
            *refused = (*until).max(*refused);
        }

        let users = self.users.values_mut();
        for user in users.filter(|user| user.role.account() == account) {
            let is_refused = |key: &String| revoked.contains_key(key);
            user.retired.retain(|key| !is_refused(key));
            user.revoked |= revoked.get(&user.public).is_some_and(|until| user.issued <= *until);
        }
    }

    fn refuse(&mut self, account: BusAccount, keys: Vec<String>, until: i64) {
        self.unpushed |= !keys.is_empty();
        if let Some(record) = self.accounts.get_mut(&account) {
            for key in keys {
                let refused = record.revoked.entry(key).or_insert(until);
                *refused = until.max(*refused);
            }
        }
    }
}

#[cfg(test)]
mod tests;
