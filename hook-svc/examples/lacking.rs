//! Runs a program as on a machine that lacks a part of the hooks' sandbox, for `make sandbox-levels`.
//!
//! ```text
//! lacking landlock|seccomp|launcher PROGRAM [ARGUMENT…]
//! ```
//!
//! The system calls of Landlock or seccomp are answered as a kernel answers that does not have them, for the program and
//! all that it starts. The launcher is hidden in a mount namespace, which needs root. `NEXUS_SANDBOX=absent` and
//! `NEXUS_TEST_LACKS` tell tests about it.

#[cfg(target_os = "linux")]
fn main() -> std::io::Result<std::convert::Infallible> {
    linux::run(&std::env::args().skip(1).collect::<Vec<_>>())
}

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("this system has neither Landlock nor seccomp");
    std::process::exit(1);
}

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::BTreeMap;
    use std::convert::Infallible;
    use std::io::{Error, ErrorKind};
    use std::os::unix::process::CommandExt as _;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};

    /// Name of the launcher's file, beside the programs or one directory above those of tests.
    const LAUNCHER: &str = "nexus-jail";
    /// Hides the first argument, a file, and executes the others.
    const HIDE: &str = r#"mount --bind /dev/null "$1" && shift && exec "$@""#;

    /// Replaces this process with the program; returns only if that fails.
    pub(super) fn run(arguments: &[String]) -> std::io::Result<Infallible> {
        let [part, program, arguments @ ..] = arguments else {
            return Err(usage());
        };

        let (lacks, mut command) = match part.as_str() {
            "landlock" => {
                hide_calls(&[
                    libc::SYS_landlock_create_ruleset,
                    libc::SYS_landlock_add_rule,
                    libc::SYS_landlock_restrict_self,
                ])?;
                ("Landlock", Command::new(program))
            }
            "seccomp" => {
                hide_calls(&[libc::SYS_seccomp])?;
                ("seccomp", Command::new(program))
            }
            "launcher" => {
                let mut command = Command::new("unshare");
                let launcher = find_launcher(Path::new(program))?;
                command
                    .args(["--mount", "sh", "-c", HIDE, "sh"])
                    .arg(launcher)
                    .arg(program);
                (LAUNCHER, command)
            }
            _ => return Err(usage()),
        };

        command.args(arguments);
        command.env("NEXUS_SANDBOX", "absent").env("NEXUS_TEST_LACKS", lacks);
        Err(command.exec())
    }

    fn usage() -> Error {
        let text = "usage: lacking landlock|seccomp|launcher PROGRAM [ARGUMENT…]";
        Error::new(ErrorKind::InvalidInput, text)
    }

    /// Has the kernel answer `calls` as if it did not have them.
    fn hide_calls(calls: &[i64]) -> std::io::Result<()> {
        let rules = calls.iter().map(|call| (*call, Vec::new())).collect::<BTreeMap<_, _>>();
        let absent = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
        let arch = std::env::consts::ARCH.try_into().map_err(Error::other)?;
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, absent, arch).map_err(Error::other)?;
        let filter: BpfProgram = filter.try_into().map_err(Error::other)?;
        seccompiler::apply_filter(&filter).map_err(Error::other)
    }

    fn find_launcher(program: &Path) -> std::io::Result<PathBuf> {
        let program = program.canonicalize()?;
        let mut candidates = program.ancestors().skip(1).take(2).map(|folder| folder.join(LAUNCHER));
        let found = candidates.find(|path| path.is_file());
        found.ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!("{LAUNCHER} is not beside {}", program.display()),
            )
        })
    }
}
