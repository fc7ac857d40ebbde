//! Restrictions on the programs of agents, command hooks and MCP servers, although they run as our own user.
//!
//! Files: `nexus-tether` hides them before it starts a program. NATS ports: a thread gives up connecting to them,
//! once, and starts the programs; rights that a thread has given up, its children do not have. A program that has
//! `NATS_URL` in its environment is started elsewhere and reaches the server. Source: `docs/design/trust.md` §1;
//! `docs/security.md`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use shared::process::spawner::ChildSpawner;
use tokio::process::{Child, Command};

/// Variable with the server's address: an operator who sets it lets the program reach the server.
pub const BUS: &str = "NATS_URL";
/// Port of a server whose address names none.
const NATS_PORT: u16 = 4_222;

/// Hidden files and closed ports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProcessWalls {
    /// Directories and files that programs cannot read or change.
    pub hidden: Vec<PathBuf>,
    /// TCP ports that programs cannot connect to, on any host.
    pub ports: Vec<u16>,
}

static WALLS: OnceLock<ProcessWalls> = OnceLock::new();

impl ProcessWalls {
    /// Returns the walls of a broker: `run` is its run directory, `hidden` the paths that its configuration hides,
    /// `secrets` the files of all secrets of the configuration, and `servers` the addresses of NATS.
    #[must_use]
    pub fn new(run: Option<&Path>, hidden: &[String], secrets: &[PathBuf], servers: &[String]) -> Self {
        let files = secrets.iter().cloned();
        let named = hidden
            .iter()
            .map(PathBuf::from)
            .chain(run.map(Path::to_path_buf))
            .chain(files);

        let absolute = named.filter(|path| !path.as_os_str().is_empty());
        let mut hidden: Vec<PathBuf> = absolute.filter_map(|path| std::path::absolute(path).ok()).collect();
        hidden.sort();
        hidden.dedup();

        let mut ports: Vec<u16> = servers.iter().map(|server| port_of(server)).collect();
        ports.sort_unstable();
        ports.dedup();

        Self { hidden, ports }
    }

    /// Puts the walls around every program that is started from now on, once in a process. Returns in words what this
    /// kernel enforces: `Err` if that is not everything.
    ///
    /// # Errors
    /// Describes the restriction that the kernel cannot enforce. The others apply.
    pub fn raise(self) -> Result<&'static str, &'static str> {
        let (files, ports) = (kernel::hides_files(), kernel::closes_ports());
        let told = match (files, ports) {
            (true, true) => Ok("programs can read no secret files and reach no NATS port"),
            (true, false) => {
                Err("programs can read no secret files, but this kernel cannot close NATS ports to them (Landlock 4)")
            }
            (false, _) => {
                Err("this kernel has no Landlock: programs of agents and hooks can read all files of the broker")
            }
        };

        if let Err(lacks) = told {
            tracing::warn!(files, ports, "{lacks}");
        }

        let _ = WALLS.set(self);
        told
    }
}

/// Returns the port of `server`: `nats://host:port`, `host:port`, `host`.
fn port_of(server: &str) -> u16 {
    let address = server.split_once("://").map_or(server, |(_, rest)| rest);
    let address = address.split('/').next().unwrap_or_default();
    let after_host = address.rsplit_once(']').map_or(address, |(_, rest)| rest);
    let port = after_host.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    port.unwrap_or(NATS_PORT)
}

/// Returns the paths that are hidden from programs.
pub(crate) fn hidden_paths() -> &'static [PathBuf] {
    WALLS.get().map_or(&[], |walls| &walls.hidden)
}

/// Starts `command`, which can connect to NATS only if it `reaches_bus`.
///
/// # Errors
/// Returns the system's error if the command does not start.
pub(crate) fn start(mut command: Command, reaches_bus: bool) -> io::Result<Child> {
    let ports = WALLS.get().map_or(&[][..], |walls| &walls.ports);
    if reaches_bus || ports.is_empty() {
        return command.spawn();
    }

    static SPAWNER: OnceLock<ChildSpawner> = OnceLock::new();

    let spawner = SPAWNER.get_or_init(|| {
        let mut closed = None;
        ChildSpawner::new("start-programs", move |command| {
            let closed = closed.get_or_insert_with(|| kernel::close_ports(ports));
            spawn_behind(closed.as_ref(), command)
        })
    });

    spawner.start(command)
}

/// Starts `command` on a thread that has given up the NATS ports, if the kernel can do that and it was `closed`.
fn spawn_behind(closed: Result<&(), &String>, command: &mut Command) -> io::Result<Child> {
    match closed {
        Err(error) if kernel::closes_ports() => Err(io::Error::other(format!("NATS ports are not closed: {error}"))),
        // The broker has reported at its start that this kernel cannot.
        Ok(()) | Err(_) => command.spawn(),
    }
}

#[cfg(target_os = "linux")]
mod kernel {
    use landlock::{
        ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, NetPort, Ruleset, RulesetAttr as _,
        RulesetCreatedAttr as _,
    };

    fn strict_ruleset() -> Ruleset {
        Ruleset::default().set_compatibility(CompatLevel::HardRequirement)
    }

    pub(crate) fn hides_files() -> bool {
        let asked = strict_ruleset()
            .handle_access(AccessFs::from_all(ABI::V1))
            .and_then(Ruleset::create);
        asked.is_ok()
    }

    pub(crate) fn closes_ports() -> bool {
        let asked = strict_ruleset()
            .handle_access(AccessNet::ConnectTcp)
            .and_then(Ruleset::create);
        asked.is_ok()
    }

    /// Forbids this thread and its children to connect to `ports`: every other port is allowed, one by one.
    pub(crate) fn close_ports(ports: &[u16]) -> Result<(), String> {
        let text = |error: landlock::RulesetError| error.to_string();
        let mut rules = strict_ruleset()
            .handle_access(AccessNet::ConnectTcp)
            .and_then(Ruleset::create)
            .map_err(text)?;
        for port in (0..=u16::MAX).filter(|port| !ports.contains(port)) {
            rules = rules
                .add_rule(NetPort::new(port, AccessNet::ConnectTcp))
                .map_err(text)?;
        }

        rules.restrict_self().map(|_| ()).map_err(text)
    }
}

#[cfg(not(target_os = "linux"))]
mod kernel {
    pub(crate) const fn hides_files() -> bool {
        false
    }

    pub(crate) const fn closes_ports() -> bool {
        false
    }

    pub(crate) fn close_ports(_ports: &[u16]) -> Result<(), String> {
        Err("this system has no Landlock".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_port_is_found_in_every_spelling() {
        for (server, port) in [
            ("nats://127.0.0.1:4333", 4_333),
            ("127.0.0.1:4333", 4_333),
            ("nats://host", NATS_PORT),
            ("tls://user:password@host:4443/", 4_443),
            ("nats://[::1]:4555", 4_555),
            ("nats://[::1]", NATS_PORT),
        ] {
            assert_eq!(port_of(server), port, "{server}");
        }
    }

    #[test]
    fn secrets_in_files_and_the_run_directory_are_hidden() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("password");
        let servers = ["nats://a:4333".to_owned(), "nats://b:4333".to_owned(), "c".to_owned()];

        let walls = ProcessWalls::new(
            Some(Path::new("/run/nexus")),
            &["/data".to_owned()],
            std::slice::from_ref(&file),
            &servers,
        );

        assert_eq!(walls.ports, [NATS_PORT, 4_333]);

        for path in [Path::new("/run/nexus"), Path::new("/data"), &file] {
            assert!(walls.hidden.iter().any(|hidden| hidden == path), "{}", path.display());
        }

        assert_eq!(walls.hidden.len(), 3);
    }
}
