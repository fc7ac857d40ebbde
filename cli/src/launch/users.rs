//! The users of a stack's server: for each a password, kept in a file that only its owner reads.

use std::fs::{File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use shared::bus::NatsConfig;
use shared::clock::{IdSource as _, SystemIds};
use shared::process::secret::Secret;

/// Who they are; what each may do says [`PERMISSIONS`].
pub const NAMES: [&str; 3] = ["nexus", "operator", "agent"];
/// The part of the server's configuration that says what they may do.
pub(super) const PERMISSIONS: &str = include_str!("../../../deploy/nats/permissions.conf");
/// Where their passwords are kept, below the data directory: a file each, by name.
const DIRECTORY: &str = "nats-users";

/// Where the password of `user` is kept below the data directory `data`.
#[must_use]
pub fn password_file(data: &Path, user: &str) -> PathBuf {
    data.join(DIRECTORY).join(user)
}

/// Makes those passwords that are not there yet. Answers what the server's environment needs.
pub(super) fn passwords(data: &Path) -> Result<Vec<(String, String)>> {
    std::fs::create_dir_all(data.join(DIRECTORY)).context("make the directory of passwords")?;
    let mut environment = Vec::new();
    for user in NAMES {
        let path = password_file(data, user);
        if !path.exists() {
            let mut file = File::create(&path).context("make a password")?;
            file.set_permissions(Permissions::from_mode(0o600))
                .context("keep a password from others")?;
            // Two of them have 160 random bits; a letter first, as the server would read digits as a number.
            write!(file, "p{}{}", SystemIds.ulid(), SystemIds.ulid()).context("write a password")?;
        }
        let password = std::fs::read_to_string(&path).context("read a password")?;
        environment.push((format!("NATS_{}_PASSWORD", user.to_uppercase()), password));
    }
    Ok(environment)
}

/// How `user` is known to the server at `servers`.
///
/// # Errors
/// Where their password cannot be read.
pub fn login(data: &Path, user: &str, servers: Vec<String>) -> Result<NatsConfig> {
    let reference = format!("file:{}", password_file(data, user).display());
    let password = Secret::resolve(&reference).with_context(|| format!("the password of {user}"))?;
    Ok(NatsConfig {
        servers,
        user: user.to_owned(),
        password: Some(password),
        ..NatsConfig::default()
    })
}
