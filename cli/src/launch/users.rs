//! Users of a stack's server, each with a password in a file that only its owner can read.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use shared::bus::NatsConfig;
use shared::process::secret::SecretValue;

use super::keys::{ensure_secret, random_text, write_secret};

/// Names of the users; `deploy/nats/permissions.conf` has the permissions of each.
pub const NAMES: [&str; 4] = ["nexus", "operator", "restore", "agent"];
/// Part of the server's configuration that sets the users' permissions.
pub(super) const PERMISSIONS: &str = include_str!("../../../deploy/nats/permissions.conf");
/// Directory of their passwords below the data directory: a file each, by name.
const DIRECTORY: &str = "nats-users";

/// Returns the path of the password of `user` below the data directory `data`.
#[must_use]
pub fn password_file(data: &Path, user: &str) -> PathBuf {
    data.join(DIRECTORY).join(user)
}

/// Makes the passwords that do not exist yet. Returns the variables for the server's environment.
pub(super) fn passwords(data: &Path) -> Result<Vec<(String, String)>> {
    std::fs::create_dir_all(data.join(DIRECTORY)).context("failed to create the directory of passwords")?;
    let mut environment = Vec::new();
    for user in NAMES {
        let path = password_file(data, user);
        ensure_secret(&path, make).with_context(|| format!("failed to create the password of {user}"))?;
        let password = std::fs::read_to_string(&path).context("failed to read a password")?;
        environment.push((format!("NATS_{}_PASSWORD", user.to_uppercase()), password));
    }
    Ok(environment)
}

/// Makes a random password or token at `path`.
pub(super) fn make(path: &Path) -> std::io::Result<()> {
    // The first character is a letter, because the server would read digits as a number.
    write_secret(path, &format!("p{}", random_text()))
}

/// Returns the connection settings of `user` for the servers at `servers`.
///
/// # Errors
/// Fails if the user's password cannot be read.
pub fn login(data: &Path, user: &str, servers: Vec<String>) -> Result<NatsConfig> {
    let reference = format!("file:{}", password_file(data, user).display());
    let password =
        SecretValue::resolve(&reference).with_context(|| format!("failed to read the password of {user}"))?;
    Ok(NatsConfig {
        servers,
        user: user.to_owned(),
        password: Some(password),
        ..NatsConfig::default()
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn passwords_are_kept_and_read_by_their_owner_alone() {
        let data = tempfile::tempdir().expect("a directory");
        let cut_off = password_file(data.path(), "agent");
        std::fs::create_dir_all(cut_off.parent().expect("one")).expect("made");

        for left in [&cut_off, &cut_off.with_extension("new")] {
            std::fs::write(left, "").expect("written");
        }

        let made = passwords(data.path()).expect("passwords");
        assert_eq!(passwords(data.path()).expect("passwords"), made, "kept");

        for (user, (_, password)) in NAMES.iter().zip(&made) {
            assert!(password.starts_with('p') && password.len() == 53, "{user}: {password}");
            let found = std::fs::metadata(password_file(data.path(), user)).expect("there");
            assert_eq!(found.permissions().mode() & 0o777, 0o600, "{user}");
        }

        let kept = std::fs::read_dir(data.path().join(DIRECTORY)).expect("listed");
        assert_eq!(kept.count(), NAMES.len());
    }
}
