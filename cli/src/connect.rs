//! Finds the configuration and the bus that a command line names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use shared::bus::{Bus, ConnectBusError, NatsConfig};
use shared::process::config::{
    CommonConfig as Shared, ConfigDocument, ConfigEnvironment, ServiceArguments, TrustConfig, edge_faults,
};
use shared::wire::rights::BusRole;
use shared::wire::seal::TrustKeys;

use crate::args::Common;
use crate::exit::{Exit, ExitContext as _, failure};

/// Configuration that a running `nexus up` keeps, relative to the working directory.
const RUNNING_CONFIG: &str = ".nexus/nexus.toml";
/// User of the command line of a `nexus up`, and the name under which requests are recorded if the server knows no users.
const OPERATOR_USER: &str = "operator";

/// Returns the configuration file that the command line names, else the one that `NEXUS_CONFIG` names.
#[must_use]
pub fn named_config(common: &Common) -> Option<PathBuf> {
    common
        .config
        .clone()
        .or_else(|| ConfigEnvironment::of_process().config_path())
}

/// Checks that a named configuration file can be read, even if the command does not use it.
///
/// # Errors
/// Fails if the file does not exist, is a directory, or cannot be read as text.
pub fn check_named_config(common: &Common) -> Result<()> {
    let Some(path) = named_config(common) else {
        return Ok(());
    };

    let by = if common.config.is_some() {
        "--config"
    } else {
        "NEXUS_CONFIG"
    };
    let read = std::fs::read_to_string(&path);
    read.with_context(|| format!("{by}: failed to read the configuration {}", path.display()))
        .exit(Exit::Usage)?;

    Ok(())
}

/// Returns the configuration that `common` names, else `./nexus.toml`, else that of a running `nexus up`.
#[must_use]
pub fn load_document(common: &Common) -> ConfigDocument {
    let mut config = named_config(common);
    let beside = config.is_some() || PathBuf::from("nexus.toml").exists();
    if !beside && PathBuf::from(RUNNING_CONFIG).exists() {
        config = Some(PathBuf::from(RUNNING_CONFIG));
    }
    read(config)
}

fn read(config: Option<PathBuf>) -> ConfigDocument {
    let arguments = ServiceArguments {
        config,
        ..ServiceArguments::default()
    };
    ConfigDocument::read(&arguments, &ConfigEnvironment::of_process())
}

/// Returns the settings by which this command reaches the bus: section `[nats]` of the configuration, else of the
/// `nexus up` that keeps its data in `.nexus`, with `--server` laid over it. On the server of a `nexus up` the command
/// line is the user `operator`.
///
/// # Errors
/// Returns all faults of the section together.
pub fn nats_config(common: &Common) -> Result<NatsConfig> {
    let chosen = load_document(common);
    // `nexus up` ignores `[nats]` of the file beside it: it runs a server of its own.
    let is_elsewhere = named_config(common).is_none() && !chosen.value("nats").contains_key("servers");
    let running = PathBuf::from(RUNNING_CONFIG);
    let is_beside = is_elsewhere && running.exists();
    let document = if is_beside { read(Some(running)) } else { chosen };

    let (shared, mut faults) = Shared::load(&document);
    // A command seals no event, so that an operator needs no key of the cluster.
    faults.retain(|fault| !fault.key.starts_with("trust"));
    let faults: Vec<String> = document
        .faults()
        .iter()
        .chain(&faults)
        .map(ToString::to_string)
        .collect();

    let mut config = shared.nats;
    match &common.server {
        // The credentials belong to the configured server and must not be sent to another one.
        Some(server) if !config.servers.contains(server) => {
            config.servers = vec![server.clone()];
            if is_beside {
                config.credentials.clear();
            }
        }
        Some(server) => config.servers = vec![server.clone()],
        None if !faults.is_empty() => {
            let text = format!("the configuration is wrong:\n{}", faults.join("\n"));
            return Err(failure(Exit::Usage, text));
        }
        None => {}
    }

    Ok(config)
}

/// Returns the keys that seal and check events, as far as the configuration names keys that can be read.
pub fn load_trust(common: &Common) -> Arc<TrustKeys> {
    let document = load_document(common);
    let trust = document.section("trust", TrustConfig::find_faults);
    let edges = document.section("edges", edge_faults);
    Arc::new(trust.value.build_trust(&edges.value))
}

/// Returns a connection to the bus, with the keys that the configuration names.
///
/// # Errors
/// Fails if no server answers; the error names the remedy.
pub async fn connect_bus(common: &Common) -> Result<Bus> {
    connect_with(common, &nats_config(common)?).await
}

async fn connect_with(common: &Common, config: &NatsConfig) -> Result<Bus> {
    let bus = Bus::connect(config, "nexus-cli").await.map_err(explain_connect)?;
    Ok(bus.with_trust(load_trust(common)))
}

/// Returns a connection to the bus for a command that needs what an operator may not: as the user of `role`, if the
/// configuration names the credentials of `operator` and those of `role` are beside them, as in the folder of a
/// `nexus up`. Other credentials are used as they are.
///
/// # Errors
/// As [`connect_bus`].
pub async fn connect_as(common: &Common, role: BusRole) -> Result<Bus> {
    let mut config = nats_config(common)?;
    config.credentials = instead_of_operator(config.credentials, role);
    connect_with(common, &config).await
}

/// Returns the credentials of `role` beside those of `operator` at the path `credentials`, else that path.
fn instead_of_operator(credentials: String, role: BusRole) -> String {
    let path = Path::new(&credentials);
    if path.file_stem().is_none_or(|name| name != OPERATOR_USER) {
        return credentials;
    }
    let beside = path.with_file_name(format!("{}.creds", role.name()));
    if beside.is_file() {
        beside.display().to_string()
    } else {
        credentials
    }
}

/// A connection to the bus, and the name under which its requests are recorded.
#[derive(Debug)]
pub struct Caller {
    /// The connection.
    pub bus: Bus,
    /// Name of the user of the bus; `operator` if the server knows no users.
    pub name: String,
}

/// Returns a connection to the bus for requests that are recorded with the name of the user who asks.
///
/// # Errors
/// As [`connect_bus`].
pub async fn connect_caller(common: &Common) -> Result<Caller> {
    let config = nats_config(common)?;
    let bus = connect_with(common, &config).await?;
    let name = config.user_name().unwrap_or_else(|| OPERATOR_USER.to_owned());
    Ok(Caller { bus, name })
}

/// Returns the error of a connection, with a hint if nothing listens at the address.
fn explain_connect(error: ConnectBusError) -> anyhow::Error {
    let is_refused = match &error {
        ConnectBusError::Unreachable { detail, .. } => detail.to_lowercase().contains("connection refused"),
        ConnectBusError::Address(_) | ConnectBusError::Credentials { .. } => false,
    };

    if is_refused {
        failure(
            Exit::Unreachable,
            format!("{error}; is it running? `nexus up` starts one here"),
        )
    } else {
        error.into()
    }
}
