//! The folder of keys, tokens and credentials of one bus. Every file in it is readable by its owner alone.
//!
//! ```text
//! users.json            the users (registry.rs)
//! keys/root.nk          signs the accounts' tokens
//! keys/roles/ROLE.nk    signs the tokens of the users of one role
//! keys/routes           password of the servers' routes
//! users/NAME.creds      credentials of a user
//! tls/*.pem             authority, certificates and their keys
//! server/*              for the servers' configuration
//! secrets.yaml          the same for Kubernetes
//! ```
//!
//! The keys that name the accounts are thrown away once they are made: users are signed by the keys of their roles
//! alone, each of which makes users of its role and no others.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use shared::credentials::{
    AccountClaims, AccountToken, AuthKey, KeyKind, RoleKey, UserCredentials, UserToken, operator_token,
};
use shared::wire::rights::{BusAccount, BusRole};

use super::registry::{
    AccountRecord, CertificateRecord, FileSettings, NewExpiry, UserRecord, UserRegistry, WantedUser,
};
use crate::complain;
use crate::exit::{Exit, ExitContext as _, failure};
use crate::launch::keys::{ensure_secret, random_bytes, random_text, write_secret};

/// Roles of which each bus has a user, under the role's name. Persons and edges are added by name.
pub const STANDARD: [BusRole; 12] = [
    BusRole::Adapter,
    BusRole::Hook,
    BusRole::Broker,
    BusRole::Delivery,
    BusRole::Scheduler,
    BusRole::Topology,
    BusRole::Backup,
    BusRole::Restore,
    BusRole::Admin,
    BusRole::Operator,
    BusRole::Agent,
    BusRole::System,
];

const REGISTRY: &str = "users.json";
const ROOT: &str = "keys/root.nk";
const ROUTES: &str = "keys/routes";

/// A folder of keys, locked until this is dropped.
#[derive(Debug)]
pub struct AuthFolder {
    path: PathBuf,
    registry: UserRegistry,
    operator: AuthKey,
    roles: BTreeMap<BusRole, AuthKey>,
    _lock: File,
}

/// Returns the path of the credentials of the user `name` in the folder at `path`.
#[must_use]
pub fn credentials_path(path: &Path, name: &str) -> PathBuf {
    path.join("users").join(format!("{name}.creds"))
}

/// Reads the seed at `path`, and makes it first if it is missing.
fn ensure_key(path: &Path, kind: KeyKind) -> Result<AuthKey> {
    let made = ensure_secret(path, |path| {
        let key = AuthKey::of_random(kind, random_bytes()?).map_err(std::io::Error::other)?;
        write_secret(path, &format!("{}\n", key.seed().map_err(std::io::Error::other)?))
    });
    made.with_context(|| format!("failed to create the key {}", path.display()))?;
    let text = std::fs::read_to_string(path).with_context(|| format!("failed to read the key {}", path.display()))?;
    let key = AuthKey::parse(&text).with_context(|| path.display().to_string())?;
    // A key in the wrong place would sign tokens that no server believes.
    if key.is_for(kind) {
        Ok(key)
    } else {
        Err(failure(
            Exit::Usage,
            format!("{} is a key for something else", path.display()),
        ))
    }
}

/// Reads the keys of all roles in the folder at `path`, and makes those that are missing. That one was thrown away is said: the
/// servers refuse what it has signed as soon as they are told of the new one.
///
/// # Errors
/// Fails if keys of several roles that have users are missing, or if one cannot be read or made.
fn ensure_role_keys(path: &Path, registry: &UserRegistry) -> Result<BTreeMap<BusRole, AuthKey>> {
    let place_of = |role: BusRole| path.join(format!("keys/roles/{}.nk", role.name()));
    let users_of = |role: BusRole| -> Vec<&str> {
        let users = registry.users.iter();
        let users = users.filter(|(_, user)| user.role == role && !user.revoked);
        users.map(|(name, _)| name.as_str()).collect()
    };

    let is_missing = |role: &BusRole| !place_of(*role).exists() && !users_of(*role).is_empty();
    // Of a part of a copy, which would lock out everybody whose key it lacks.
    if BusRole::ALL.iter().filter(|role| is_missing(role)).count() > 1 {
        let text = format!(
            "keys of several roles are missing in {}: put them back from a copy of the whole folder; those that were stolen are thrown away one after the other",
            path.join("keys/roles").display()
        );
        return Err(failure(Exit::Refused, text));
    }

    let mut roles = BTreeMap::new();
    for role in BusRole::ALL {
        let place = place_of(role);
        let is_known = place.exists();
        roles.insert(role, ensure_key(&place, KeyKind::Account)?);

        let users = users_of(role);
        if !is_known && !users.is_empty() {
            complain!(
                "{} was missing, and another key is made: each user of that role needs `nexus auth rotate` ({})",
                place.display(),
                users.join(", ")
            );
        }
    }
    Ok(roles)
}

impl AuthFolder {
    /// Opens the folder at `path`, and waits while another process has it. Without `make` it must exist.
    ///
    /// # Errors
    /// Fails if the folder or one of its files cannot be read or made.
    pub fn open(path: &Path, make: bool) -> Result<Self> {
        let record = path.join(REGISTRY);
        if !make && !record.exists() {
            let problem = format!("{} is missing; `nexus auth init` creates it", record.display());
            return Err(failure(Exit::NotFound, problem));
        }

        for folder in ["keys/roles", "users"] {
            let folder = path.join(folder);
            std::fs::create_dir_all(&folder).with_context(|| format!("failed to create {}", folder.display()))?;
        }

        let own = std::fs::Permissions::from_mode(0o700);
        std::fs::set_permissions(path, own).with_context(|| format!("failed to close {} to others", path.display()))?;
        let lock = File::open(path).with_context(|| format!("failed to open {}", path.display()))?;
        lock.lock()
            .with_context(|| format!("failed to lock {}", path.display()))?;

        let registry = match std::fs::read_to_string(&record) {
            Ok(text) => serde_json::from_str(&text)
                .with_context(|| format!("{} cannot be read", record.display()))
                .exit(Exit::Usage)?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => UserRegistry::default(),
            Err(error) => return Err(error).with_context(|| format!("failed to read {}", record.display())),
        };

        let root = path.join(ROOT);
        // With another key, what the servers have would be unreadable, and what they are told refused.
        if !registry.accounts.is_empty() && !root.exists() {
            let text = format!(
                "{} is missing: put it back from a copy of the whole folder",
                root.display()
            );
            return Err(failure(Exit::Refused, text));
        }
        let operator = ensure_key(&root, KeyKind::Operator)?;
        let roles = ensure_role_keys(path, &registry)?;
        ensure_secret(&path.join(ROUTES), |path| {
            write_secret(path, &format!("r{}", random_text()))
        })
        .context("failed to create the password of the routes")?;

        let mut folder = Self {
            path: path.to_owned(),
            registry,
            operator,
            roles,
            _lock: lock,
        };
        folder.complete_accounts()?;

        Ok(folder)
    }

    /// The users and accounts.
    #[must_use]
    pub const fn registry(&self) -> &UserRegistry {
        &self.registry
    }

    /// Path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Password by which the servers of a cluster know each other.
    ///
    /// # Errors
    /// Fails if it cannot be read.
    pub fn route_password(&self) -> Result<String> {
        let text = std::fs::read_to_string(self.path.join(ROUTES));
        Ok(text
            .context("failed to read the password of the routes")?
            .trim()
            .to_owned())
    }

    /// Names the accounts that have no name yet.
    fn complete_accounts(&mut self) -> Result<()> {
        let missing: Vec<BusAccount> = BusAccount::ALL
            .into_iter()
            .filter(|account| !self.registry.accounts.contains_key(account))
            .collect();
        for account in &missing {
            let random = random_bytes().context("failed to read random bytes")?;
            let record = AccountRecord {
                public: AuthKey::of_random(KeyKind::Account, random)?.public(),
                issued: 0,
                token: String::new(),
                revoked: BTreeMap::new(),
            };
            self.registry.accounts.insert(*account, record);
        }

        if missing.is_empty() { Ok(()) } else { self.store() }
    }

    /// Makes the users of [`STANDARD`] that are missing, and the credentials that a crash left out; signs tokens of accounts if
    /// they say something else than they should. `now` is in seconds since 1970. Returns whether a token changed.
    ///
    /// # Errors
    /// Fails if a file cannot be written.
    pub fn complete(&mut self, now: i64) -> Result<bool> {
        for role in STANDARD {
            if !self.registry.users.contains_key(role.name()) {
                let wanted = WantedUser {
                    name: role.name().to_owned(),
                    role,
                    channel: None,
                    personas: Vec::new(),
                    expires: None,
                };
                self.add(wanted, now)?;
            }
        }

        let names: Vec<String> = self.registry.users.keys().cloned().collect();
        for name in names {
            let user = self.registry.user(&name)?.clone();
            // A crash may have come between the record and the file. A file that was there and is not any more was moved to
            // where it is used, and its key goes on.
            if !user.unwritten || user.revoked {
                continue;
            }
            if self.has_credentials(&name, &user) {
                self.registry.note_written(&name);
                self.store()?;
            } else {
                let key = AuthKey::of_random(KeyKind::User, random_bytes().context("failed to read random bytes")?)?;
                self.registry.replace_unwritten(&name, key.public());
                self.store()?;
                self.write_credentials(&name, key)?;
            }
        }

        self.sign_accounts(now)
    }

    fn has_credentials(&self, name: &str, user: &UserRecord) -> bool {
        let text = std::fs::read_to_string(credentials_path(&self.path, name)).unwrap_or_default();
        UserCredentials::parse(&text).is_ok_and(|found| found.claims().public == user.public)
    }

    /// Adds a user, with its credentials.
    ///
    /// # Errors
    /// Fails if the name cannot be used, or if a file cannot be written.
    pub fn add(&mut self, wanted: WantedUser, now: i64) -> Result<()> {
        self.registry.check_new(&wanted).exit(Exit::Refused)?;
        let key = AuthKey::of_random(KeyKind::User, random_bytes().context("failed to read random bytes")?)?;
        let name = wanted.name.clone();
        self.registry.add(wanted, key.public(), now).exit(Exit::Refused)?;
        self.store()?;
        self.write_credentials(&name, key)
    }

    /// Gives the user `name` another key, in its file of credentials. The former key is accepted until it is revoked.
    ///
    /// # Errors
    /// Fails if there is no such user, or if a file cannot be written.
    pub fn rotate(&mut self, name: &str, now: i64, expires: NewExpiry) -> Result<()> {
        self.registry.user(name).exit(Exit::NotFound)?;
        let key = AuthKey::of_random(KeyKind::User, random_bytes().context("failed to read random bytes")?)?;
        // Stored first: a former key that is not on record could not be revoked.
        self.registry
            .rotate(name, key.public(), now, expires)
            .exit(Exit::Refused)?;
        self.store()?;
        self.write_credentials(name, key)
    }

    fn write_credentials(&mut self, name: &str, key: AuthKey) -> Result<()> {
        let user = self.registry.user(name)?;
        let account = self.registry.accounts.get(&user.role.account());
        let token = UserToken {
            name,
            role: user.role,
            public: &user.public,
            account: account.map_or("", |account| account.public.as_str()),
            channel: user.channel.as_deref(),
            personas: &user.personas,
            expires: user.expires,
        };
        let role_key = self.roles.get(&user.role).context("a role without a key")?;
        let token = token.sign(role_key, user.issued)?;
        let text = UserCredentials::new(token, key)?.to_text()?;
        let path = credentials_path(&self.path, name);
        write_secret(&path, &text).with_context(|| format!("failed to write {}", path.display()))?;

        self.registry.note_written(name);
        self.store()
    }

    /// Refuses the former keys of the user `name`. Returns whether there were any.
    ///
    /// # Errors
    /// Fails if there is no such user, or if a file cannot be written.
    pub fn revoke_retired(&mut self, name: &str, now: i64) -> Result<bool> {
        let any = self.registry.revoke_retired(name, now).exit(Exit::NotFound)?;
        self.store()?;
        self.sign_accounts(now)?;
        Ok(any)
    }

    /// Refuses the user `name`.
    ///
    /// # Errors
    /// Fails if there is no such user, if it is needed, or if a file cannot be written.
    pub fn revoke(&mut self, name: &str, now: i64) -> Result<()> {
        self.registry.user(name).exit(Exit::NotFound)?;
        self.registry.revoke(name, now).exit(Exit::Refused)?;
        self.store()?;
        self.sign_accounts(now)?;
        Ok(())
    }

    /// Takes over what the servers' `token` of an account says, and signs the accounts anew if they say less: a copy of the
    /// folder that is behind undoes no revocation.
    ///
    /// # Errors
    /// Fails if another operator has signed the token, or if a file cannot be written.
    pub fn take_over(&mut self, account: BusAccount, token: &str, now: i64) -> Result<()> {
        let claims = AccountClaims::decode(token, &self.operator.public());
        let claims = claims
            .with_context(|| format!("the servers have a strange token of account {}", account.name()))
            .exit(Exit::Refused)?;
        let own = self.registry.accounts.get(&account);
        if own.is_none_or(|own| own.public != claims.public) {
            let text = format!("the servers answer for another account than {}", account.name());
            return Err(failure(Exit::Refused, text));
        }
        self.registry.take_over(account, claims.issued, &claims.revoked);
        self.sign_accounts(now)?;
        Ok(())
    }

    /// Signs the token of each account that says something else than it should. Returns whether there was one.
    fn sign_accounts(&mut self, now: i64) -> Result<bool> {
        let accounts = self.registry.account_keys();
        let keys: Vec<RoleKey> = self
            .roles
            .iter()
            .map(|(role, key)| RoleKey {
                role: *role,
                public: key.public(),
            })
            .collect();

        let (mut any, mut unpushed) = (false, self.registry.unpushed);
        for (account, record) in &mut self.registry.accounts {
            let token = AccountToken {
                account: *account,
                accounts: &accounts,
                keys: &keys,
                revoked: &record.revoked,
            };
            // Equal claims of the same time give the same token.
            if token.sign(&self.operator, record.issued)? != record.token {
                // The servers are given the first token by their configuration.
                unpushed |= !record.token.is_empty();
                record.issued = now.max(record.issued + 1);
                record.token = token.sign(&self.operator, record.issued)?;
                any = true;
            }
        }

        if any {
            self.registry.unpushed = unpushed;
            self.store()?;
        }
        Ok(any)
    }

    /// Records the certificates of the servers.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn set_certificates(&mut self, certificates: CertificateRecord) -> Result<()> {
        self.registry.certificates = Some(certificates);
        self.store()
    }

    /// Records what the files for the servers are written with.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn set_files(&mut self, files: FileSettings) -> Result<()> {
        self.registry.files = files;
        self.store()
    }

    /// Records that the servers were told of all changes.
    ///
    /// # Errors
    /// Fails if the file cannot be written.
    pub fn note_pushed(&mut self) -> Result<()> {
        self.registry.unpushed = false;
        self.store()
    }

    fn store(&self) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.registry).context("failed to write JSON")?;
        let path = self.path.join(REGISTRY);
        write_secret(&path, &format!("{text}\n")).with_context(|| format!("failed to write {}", path.display()))
    }

    /// Returns the lines of a server's configuration by which it knows the operator and the accounts. The resolver,
    /// which keeps what it is told later, is not among them.
    ///
    /// # Errors
    /// Fails if the operator's key cannot sign.
    pub fn server_section(&self) -> Result<String> {
        let system = &self
            .registry
            .accounts
            .get(&BusAccount::Sys)
            .context("no system account")?
            .public;
        let operator = operator_token(&self.operator, system, 0)?;
        let mut text = format!("operator: {operator}\nsystem_account: {system}\nresolver_preload: {{\n");
        for record in self.registry.accounts.values() {
            text.push_str(&format!("  {}: {}\n", record.public, record.token));
        }
        text.push_str("}\n");
        Ok(text)
    }
}
