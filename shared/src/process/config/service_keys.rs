//! Sections that every service shares.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::document::ConfigDocument;
use super::fault::ConfigFault;
use super::trust::TrustConfig;
use crate::bus::{NatsConfig, StreamDurability};

/// Maximum number of threads that a service may be given.
const MAX_THREADS: usize = 1_024;

/// Sections `[nats]`, `[trust]`, `[telemetry]`, `[runtime]` and `[files]`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CommonConfig {
    /// Connection to the bus.
    pub nats: NatsConfig,
    /// Keys that events are sealed with.
    pub trust: TrustConfig,
    /// Settings of logs, traces, metrics and health pages.
    pub telemetry: TelemetryConfig,
    /// Share of the machine that a service takes.
    pub runtime: RuntimeConfig,
    /// Paths of files that several services read.
    pub files: FilesConfig,
    /// Every file that a secret anywhere in the configuration is read from, other services' secrets among them.
    #[serde(skip)]
    pub secret_files: Vec<PathBuf>,
}

/// Configuration section `[telemetry]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TelemetryConfig {
    /// Address on which `/livez`, `/readyz` and `/metrics` are served; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Collector of traces, OTLP over gRPC: `http://host:4317`. Empty if traces are not exported.
    pub otlp_endpoint: String,
    /// Form of the log on standard error.
    pub log: LogFormat,
    /// Filter of the log: a level, or directives such as `info,hook_svc=debug`. Overridden by `NEXUS_LOG`.
    pub level: String,
    /// Time within which a service must finish its work after it was asked to stop, in milliseconds.
    pub drain_timeout_ms: u64,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            otlp_endpoint: String::new(),
            log: LogFormat::Pretty,
            level: "info,async_nats=warn".to_owned(),
            drain_timeout_ms: 10_000,
        }
    }
}

/// Form of the log on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// One JSON object per line.
    Json,
    /// Readable lines for people.
    #[default]
    Pretty,
}

/// Configuration section `[runtime]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RuntimeConfig {
    /// Number of threads that run a service's tasks; 0 = half the processors that it may use, at least one. The other
    /// half is for the server, Bun and the read model, which usually run on the same machine (`docs/performance.md`).
    pub threads: usize,
}

impl RuntimeConfig {
    /// Returns the number of threads to start if `processors` may be used.
    #[must_use]
    pub const fn thread_count(&self, processors: usize) -> usize {
        match self.threads {
            0 if processors < 4 => 1,
            0 => processors / 2,
            threads => threads,
        }
    }
}

/// Configuration section `[files]`: paths of YAML files; an empty path means the built-in defaults.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FilesConfig {
    /// Persons and their addresses, the owner, groups.
    pub identities: String,
    /// Agents by their names.
    pub personas: String,
    /// Accounts of outbound channels.
    pub channels: String,
    /// Kinds and budgets of the intents that agents may request.
    pub intents: String,
    /// Hooks within agents' turns.
    pub hooks: String,
}

impl CommonConfig {
    /// Returns the shared sections of `document`, and their faults.
    #[must_use]
    pub fn load(document: &ConfigDocument) -> (Self, Vec<ConfigFault>) {
        let nats = document.section("nats", check_nats);
        let trust = document.section("trust", TrustConfig::find_faults);
        let telemetry = document.section("telemetry", check_telemetry);
        let runtime = document.section("runtime", check_runtime);
        let files = document.section("files", |_: &FilesConfig| Vec::new());

        // The faults of all sections together, so that one start shows everything that has to be corrected.
        let faults = [
            nats.faults,
            trust.faults,
            telemetry.faults,
            runtime.faults,
            files.faults,
        ]
        .concat();

        (
            Self {
                nats: nats.value,
                trust: trust.value,
                telemetry: telemetry.value,
                runtime: runtime.value,
                files: files.value,
                secret_files: document.secret_files(),
            },
            faults,
        )
    }
}

fn check_nats(nats: &NatsConfig) -> Vec<String> {
    let mut faults = Vec::new();
    if nats.servers.is_empty() {
        faults.push("servers: expected at least one address, nats://host:port".to_owned());
    }

    for (index, server) in nats.servers.iter().enumerate() {
        let address = server.strip_prefix("nats://").or_else(|| server.strip_prefix("tls://"));
        let is_plain = address.is_some_and(|address| !address.is_empty() && !address.contains([',', ' ']));
        if !is_plain || !NatsConfig::is_address(server) {
            faults.push(format!(
                "servers[{index}]: `{server}` is not an address: expected nats://host:port"
            ));
        }
    }

    for (index, monitor) in nats.monitors.iter().enumerate() {
        let address = monitor
            .strip_prefix("http://")
            .and_then(|address| address.rsplit_once(':'));
        if address.is_none_or(|(host, port)| host.is_empty() || port.parse::<u16>().is_err()) {
            faults.push(format!(
                "monitors[{index}]: `{monitor}` is not an address: expected http://host:port"
            ));
        }
    }

    faults.extend(
        nats.login_faults()
            .into_iter()
            .map(|(key, problem)| format!("{key}: {problem}")),
    );

    if ![1, 3].contains(&nats.replicas) {
        faults.push(format!("replicas: {} found, expected 1 or 3", nats.replicas));
    }

    if nats.durability == StreamDurability::Replicated && nats.replicas != 3 {
        faults.push("replicas: expected 3 if durability is replicated".to_owned());
    }

    faults
}

fn check_runtime(runtime: &RuntimeConfig) -> Vec<String> {
    if runtime.threads > MAX_THREADS {
        return vec![format!(
            "threads: {} found, expected at most {MAX_THREADS}",
            runtime.threads
        )];
    }
    Vec::new()
}

fn check_telemetry(telemetry: &TelemetryConfig) -> Vec<String> {
    let mut faults = Vec::new();
    let endpoint = telemetry.otlp_endpoint.as_str();
    if !(endpoint.is_empty() || endpoint.starts_with("http://") || endpoint.starts_with("https://")) {
        faults.push(format!(
            "otlp_endpoint: `{endpoint}` found, expected http://host:port or nothing"
        ));
    }

    if let Err(error) = telemetry.level.parse::<tracing_subscriber::filter::EnvFilter>() {
        faults.push(format!(
            "level: {error}, expected a level such as info, or directives such as hook_svc=debug"
        ));
    }

    if telemetry.drain_timeout_ms == 0 {
        faults.push("drain_timeout_ms: expected at least 1".to_owned());
    }

    faults
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::environment::ConfigEnvironment;
    use super::*;
    use crate::testing::trust_section;

    #[test]
    fn half_the_processors_are_left_to_others() {
        let threads = |threads, processors| RuntimeConfig { threads }.thread_count(processors);
        for (processors, expected) in [(1, 1), (2, 1), (3, 1), (4, 2), (9, 4), (64, 32)] {
            assert_eq!(threads(0, processors), expected, "{processors}");
        }
        assert_eq!(threads(3, 2), 3, "as it is said");
    }

    fn check(text: &str, expected: &[&str]) {
        let text = format!("{}{text}", trust_section());
        let document = ConfigDocument::parse(Path::new("nexus.toml"), &text, &ConfigEnvironment::default());
        let (_, faults) = CommonConfig::load(&document);
        assert_eq!(
            faults.iter().map(ConfigFault::to_string).collect::<Vec<_>>(),
            expected,
            "{text}"
        );
    }

    #[test]
    fn the_defaults_are_sound() {
        check("", &[]);
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        check(
            "[nats]\nservers = ['nats://a:1', 'b']\nreplicas = 2\nmonitors = ['http://a:8222', 'http://a/jsz']\n\
             [telemetry]\nlisten = 'here'\notlp_endpoint = 'x:1'\n[runtime]\nthreads = 2000\n",
            &[
                "nexus.toml: nats.servers[1]: `b` is not an address: expected nats://host:port",
                "nexus.toml: nats.monitors[1]: `http://a/jsz` is not an address: expected http://host:port",
                "nexus.toml: nats.replicas: 2 found, expected 1 or 3",
                "nexus.toml: telemetry.listen: expected IP:PORT, such as 127.0.0.1:8080",
                "nexus.toml: telemetry.otlp_endpoint: `x:1` found, expected http://host:port or nothing",
                "nexus.toml: runtime.threads: 2000 found, expected at most 1024",
            ],
        );

        check(
            "[nats]\nservers = ['nats://:x']\ncredentials = '/no/such/file.creds'\n",
            &[
                "nexus.toml: nats.servers[0]: `nats://:x` is not an address: expected nats://host:port",
                "nexus.toml: nats.credentials: `/no/such/file.creds` cannot be read: No such file or directory (os error 2)",
            ],
        );

        check(
            "[nats]\ndurability = 'replicated'\n",
            &["nexus.toml: nats.replicas: expected 3 if durability is replicated"],
        );
    }
}
