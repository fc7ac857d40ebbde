//! Path of the nats-server that tests run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Oldest version of the server with every feature that we use (message schedules, reset of consumers).
const OLDEST: (u32, u32) = (2, 15);

/// Returns the server program: `NEXUS_NATS_SERVER`, else `.tools/bin/nats-server` of the checkout, else the PATH.
///
/// Panics with instructions if there is none or it is too old.
pub(super) fn find() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();

    FOUND.get_or_init(|| {
        let program = candidate();
        let version = version(&program);
        assert!(
            version.is_some_and(|version| version >= OLDEST),
            "{} is not nats-server {}.{} or newer (found {version:?}): run `make tools`, or set NEXUS_NATS_SERVER",
            program.display(),
            OLDEST.0,
            OLDEST.1,
        );

        program
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "tests are told by the environment which server to run"
)]
fn candidate() -> PathBuf {
    if let Some(named) = std::env::var_os("NEXUS_NATS_SERVER") {
        return named.into();
    }
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    let tool = here
        .ancestors()
        .map(|folder| folder.join(".tools/bin/nats-server"))
        .find(|path| path.is_file());
    tool.unwrap_or_else(|| "nats-server".into())
}

fn version(program: &Path) -> Option<(u32, u32)> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    parse_version(&text)
}

/// Parses the major and minor number in a line such as `nats-server: v2.15.1`.
fn parse_version(line: &str) -> Option<(u32, u32)> {
    let mut numbers = line.trim().split_once(": v")?.1.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_the_servers_own_line() {
        let check = |line: &str, expected| assert_eq!(parse_version(line), expected, "{line}");
        check("nats-server: v2.15.1\n", Some((2, 15)));
        check("nats-server: v2.9.10", Some((2, 9)));
        check("nats-server: v3.0.0-preview.1", Some((3, 0)));
        check("nginx", None);
    }
}
