//! The user that hooks run as: if this process is root, a user that owns nothing.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

/// User that hooks run as if none is configured.
const NOBODY: &str = "nobody";

/// Path of the list of users.
const USERS: &str = "/etc/passwd";

/// First of the ids that authors' hooks run as, one for each author: no distribution assigns them (60706 to 61183 are
/// unused, systemd's `UIDS-GIDS`).
const FIRST_OF_AUTHORS: u32 = 61_000;

/// A user id and a group id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct UnixUser {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl std::fmt::Display for UnixUser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

/// Returns the user that `wanted` (`hooks.user`) names. Returns `None` if this process is not root and `wanted` is
/// empty: its workers then run as its own user.
pub(super) fn find(wanted: &str) -> Result<Option<UnixUser>, String> {
    let is_root = is_root();
    match (is_root, wanted) {
        (false, "") => Ok(None),
        (false, _) => Err(format!("only root can run hooks as `{wanted}`")),
        (true, wanted) => {
            let wanted = if wanted.is_empty() { NOBODY } else { wanted };
            let users = std::fs::read_to_string(Path::new(USERS)).unwrap_or_default();
            find_user(wanted, &users).map(Some)
        }
    }
}

/// Returns the user for the hooks of the author in `seat`, which no other author's hooks run as.
pub(super) fn of_author(seat: u32) -> UnixUser {
    let number = FIRST_OF_AUTHORS + seat;
    UnixUser {
        uid: number,
        gid: number,
    }
}

/// Gives the group of `user` access to the folder at `path`; beside it only this process has access.
pub(super) fn open_to(path: &Path, user: UnixUser) -> std::io::Result<()> {
    std::os::unix::fs::chown(path, None, Some(user.gid))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o750))
}

/// Returns the reason why hooks cannot run as `wanted` (`hooks.user`), as far as it can be checked without being root:
/// the configuration may be checked by another user than hook-svc's.
pub(crate) fn fault(wanted: &str) -> Option<String> {
    if wanted.is_empty() {
        return None;
    }
    let users = std::fs::read_to_string(Path::new(USERS)).unwrap_or_default();
    find_user(wanted, &users).err()
}

/// Returns whether this process is root, if the kernel shows it.
fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

fn find_user(wanted: &str, users: &str) -> Result<UnixUser, String> {
    let pair = |uid: &str, gid: &str| {
        Some(UnixUser {
            uid: uid.parse().ok()?,
            gid: gid.parse().ok()?,
        })
    };

    let by_number = wanted.split_once(':').and_then(|(uid, gid)| pair(uid, gid));
    let by_name = || {
        let line = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let mut known = line.filter(|fields| fields.len() > 3 && fields[0] == wanted);
        known.find_map(|fields| pair(fields[2], fields[3]))
    };

    match by_number.or_else(by_name) {
        Some(UnixUser { uid: 0, .. }) => Err("hooks do not run as root".to_owned()),
        Some(user) => Ok(user),
        None => Err(format!("there is no user `{wanted}` to run hooks as")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: &str = "root:x:0:0:root:/root:/bin/bash\nbroken\nnobody:x:65534:65533:nobody:/:/bin/false\n";

    #[test]
    fn users_have_names_or_numbers_and_none_is_root() {
        let user = |uid, gid| Ok(UnixUser { uid, gid });
        for (wanted, expected) in [
            ("nobody", user(65_534, 65_533)),
            ("1000:100", user(1_000, 100)),
            ("root", Err("hooks do not run as root".to_owned())),
            ("0:0", Err("hooks do not run as root".to_owned())),
            ("ghost", Err("there is no user `ghost` to run hooks as".to_owned())),
        ] {
            assert_eq!(find_user(wanted, LISTED), expected, "{wanted}");
        }
    }
}
