//! How a client shows itself to the server, and knows the server.
//!
//! A `.creds` file is read again for each connection: a service whose user was made anew connects with the new file as
//! soon as the server ends the connection of the old one.

use std::path::Path;

use async_nats::ConnectOptions;

use super::error::ConnectBusError;
use super::nats_config::NatsConfig;
use crate::credentials::{AuthKey, UserCredentials};
use crate::process::secret::SecretValue;
use crate::wire::rights::BusRole;

/// Reads the `.creds` file at `path`. The error names the path, and repeats nothing of the file.
fn read_credentials(path: &str) -> Result<UserCredentials, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("`{path}` cannot be read: {error}"))?;
    UserCredentials::parse(&text).map_err(|error| format!("`{path}` cannot be read: {error}"))
}

impl NatsConfig {
    /// Returns what is wrong with the files and keys of the connection: each key with its fault. Reads the files.
    #[must_use]
    pub fn login_faults(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        if !self.credentials.is_empty()
            && let Err(problem) = read_credentials(&self.credentials)
        {
            faults.push(("credentials", problem));
        }

        if let Some(nkey) = &self.nkey
            && let Err(error) = AuthKey::parse(nkey.reveal())
        {
            faults.push(("nkey", format!("`{}`: {error}", nkey.reference())));
        }

        let files = [("ca", &self.ca), ("certificate", &self.certificate), ("key", &self.key)];
        for (key, path) in files.into_iter().filter(|(_, path)| !path.is_empty()) {
            if let Err(error) = std::fs::metadata(path) {
                faults.push((key, format!("`{path}` cannot be read: {error}")));
            }
        }

        if self.certificate.is_empty() != self.key.is_empty() {
            let text = "`certificate` and `key` belong together: one is set, the other is not";
            faults.push(("certificate", text.to_owned()));
        }

        faults
    }

    /// Returns the name of the user, from its token if there is one; `None` if the connection names no user. Reads the file
    /// of credentials.
    #[must_use]
    pub fn user_name(&self) -> Option<String> {
        if self.credentials.is_empty() {
            return Some(self.user.clone()).filter(|user| !user.is_empty());
        }
        let credentials = read_credentials(&self.credentials).ok()?;
        Some(credentials.claims().name.clone())
    }

    /// Returns the role of the user that the `.creds` file names. Reads the file.
    #[must_use]
    pub fn role(&self) -> Option<BusRole> {
        if self.credentials.is_empty() {
            return None;
        }
        read_credentials(&self.credentials).ok()?.claims().role
    }
}

/// Returns the beginning of the subjects on which the user `name` awaits answers. The role is unknown if the user has a password, or
/// if its token is not one of Nexus.
fn inboxes_of(role: Option<BusRole>, name: &str) -> String {
    role.map_or_else(|| format!("_INBOX_{name}"), |role| role.inboxes(name))
}

/// Returns the client's options for a connection with `config`: the user, its inboxes, and whom it trusts.
pub(super) fn login_options(config: &NatsConfig) -> Result<ConnectOptions, ConnectBusError> {
    if let Some((key, problem)) = config.login_faults().into_iter().next() {
        return Err(ConnectBusError::Credentials { key, problem });
    }

    let mut options = ConnectOptions::new();
    let mut inboxes = (!config.user.is_empty()).then(|| inboxes_of(None, &config.user));

    if !config.credentials.is_empty() {
        let first = read_credentials(&config.credentials);
        let first = first.map_err(|problem| ConnectBusError::Credentials {
            key: "credentials",
            problem,
        })?;

        inboxes = Some(inboxes_of(first.claims().role, &first.claims().name));
        options = with_credentials(config.credentials.clone(), first);
    } else if let Some(nkey) = &config.nkey {
        options = options.nkey(nkey.reveal().to_owned());
    } else if !config.user.is_empty() {
        let password = config.password.as_ref().map_or("", SecretValue::reveal);
        options = options.user_and_password(config.user.clone(), password.to_owned());
    }

    // The server does not let a user listen on the inboxes of another user.
    if let Some(inboxes) = inboxes {
        options = options.custom_inbox_prefix(inboxes);
    }

    if !config.ca.is_empty() {
        options = options
            .add_root_certificates(Path::new(&config.ca).to_owned())
            .require_tls(true);
    }
    if !config.certificate.is_empty() {
        options = options.add_client_certificate(config.certificate.clone().into(), config.key.clone().into());
    }

    Ok(options)
}

/// Returns options that show the credentials of the file at `path` as they are at that time, or those that were read
/// `first` while the file cannot be read.
fn with_credentials(path: String, first: UserCredentials) -> ConnectOptions {
    ConnectOptions::with_auth_callback(move |nonce| {
        let read = read_credentials(&path);
        let shown = read.as_ref().unwrap_or_else(|problem| {
            tracing::warn!(problem, "nats.credentials: the file as it was at the start is used");
            &first
        });

        let signed = shown.sign(&nonce).map(|signature| {
            let mut auth = async_nats::Auth::new();
            auth.jwt = Some(shown.token().to_owned());
            auth.signature = Some(signature);
            auth
        });
        std::future::ready(signed.map_err(async_nats::AuthError::new))
    })
}
