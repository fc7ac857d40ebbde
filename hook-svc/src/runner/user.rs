//! As whom hooks run: root's own processes hand them to a user who owns nothing.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Who they run as where nothing is configured.
const NOBODY: &str = "nobody";

/// Where users are listed.
const USERS: &str = "/etc/passwd";

/// A user's and a group's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct User {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl std::fmt::Display for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

/// The user that `wanted` (`hooks.user`) names; none where this process is not root and none is wanted: its workers
/// run as its own user then.
pub(super) fn find(wanted: &str) -> Result<Option<User>, String> {
    let is_root = is_root();
    match (is_root, wanted) {
        (false, "") => Ok(None),
        (false, _) => Err(format!("only root can run hooks as `{wanted}`")),
        (true, wanted) => {
            let wanted = if wanted.is_empty() { NOBODY } else { wanted };
            let users = std::fs::read_to_string(Path::new(USERS)).unwrap_or_default();
            named(wanted, &users).map(Some)
        }
    }
}

/// Why hooks cannot run as `wanted` (`hooks.user`), as far as that can be known without being root: the configuration may be
/// checked by another user than hook-svc's.
pub(crate) fn fault(wanted: &str) -> Option<String> {
    if wanted.is_empty() {
        return None;
    }
    let users = std::fs::read_to_string(Path::new(USERS)).unwrap_or_default();
    named(wanted, &users).err()
}

/// Whether this process is root, where the kernel tells.
fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

fn named(wanted: &str, users: &str) -> Result<User, String> {
    let pair = |uid: &str, gid: &str| {
        Some(User {
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
        Some(User { uid: 0, .. }) => Err("hooks do not run as root".to_owned()),
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
        let user = |uid, gid| Ok(User { uid, gid });
        for (wanted, expected) in [
            ("nobody", user(65_534, 65_533)),
            ("1000:100", user(1_000, 100)),
            ("root", Err("hooks do not run as root".to_owned())),
            ("0:0", Err("hooks do not run as root".to_owned())),
            ("ghost", Err("there is no user `ghost` to run hooks as".to_owned())),
        ] {
            assert_eq!(named(wanted, LISTED), expected, "{wanted}");
        }
    }
}
