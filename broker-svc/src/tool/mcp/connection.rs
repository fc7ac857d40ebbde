//! One open connection to an MCP server.

use std::collections::HashMap;
use std::process::Stdio;

use http::{HeaderName, HeaderValue};
use rmcp::ServiceExt as _;
use rmcp::model::Tool;
use rmcp::service::{Peer, RoleClient, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use shared::process::Secret;
use tokio::process::Child;

use super::declared::{McpServer, credential};
use crate::child::{Group, Handed, Tethered, keep};
use crate::tool::credentials::References;

/// What a server's program keeps of our environment.
const KEPT: [&str; 3] = ["PATH", "HOME", "TMPDIR"];

/// An open connection; the program ends with it.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) peer: Peer<RoleClient>,
    pub(super) tools: Vec<Tool>,
    running: RunningService<RoleClient, ()>,
    /// It ends with this, and with it whatever it started.
    _program: Option<(Child, Group)>,
}

impl Connection {
    pub(super) fn is_open(&self) -> bool {
        !self.running.is_closed() && !self.peer.is_transport_closed()
    }
}

/// Starts or reaches the server `name`, and asks for its tools.
///
/// # Errors
/// What went wrong, without any secret.
pub(super) async fn connect(name: &str, declared: &McpServer, known: &References) -> Result<Connection, String> {
    let (running, program) = if declared.url.is_empty() {
        let mut child = program(declared, known)?;
        let pipes = child
            .stdout
            .take()
            .zip(child.stdin.take())
            .ok_or("has no input and output")?;
        let group = Group::led_by(&child);
        let running = ().serve(pipes).await.map_err(|error| error.to_string())?;
        (running, Some((child, group)))
    } else {
        let transport = StreamableHttpClientTransport::from_config(address(declared, known)?);
        (().serve(transport).await.map_err(|error| error.to_string())?, None)
    };
    let tools = running.list_all_tools().await.map_err(|error| error.to_string())?;
    tracing::info!(server = name, tools = tools.len(), "MCP server is there");
    Ok(Connection {
        peer: running.peer().clone(),
        tools,
        running,
        _program: program,
    })
}

/// A value of the declaration, with the secret in the place of its name.
fn revealed(value: &str, known: &References) -> Result<String, String> {
    let Some(name) = credential(value) else {
        return Ok(value.to_owned());
    };
    let reference = known
        .get(name)
        .ok_or_else(|| format!("credential `{name}` is not declared"))?;
    let secret = Secret::resolve(reference).map_err(|error| format!("credential `{name}`: {error}"))?;
    Ok(secret.reveal().to_owned())
}

fn program(declared: &McpServer, known: &References) -> Result<Child, String> {
    let Tethered { mut command, .. } = Tethered::new(&declared.command, Handed::All);
    command.args(&declared.args).stderr(Stdio::null());
    keep(&mut command, &KEPT);
    for (name, value) in &declared.env {
        command.env(name, revealed(value, known)?);
    }
    command
        .spawn()
        .map_err(|error| format!("{} cannot be started: {error}", declared.command))
}

fn address(declared: &McpServer, known: &References) -> Result<StreamableHttpClientTransportConfig, String> {
    let mut headers = HashMap::new();
    for (name, value) in &declared.headers {
        let name: HeaderName = name.parse().map_err(|_| format!("headers.{name}: not a header"))?;
        let value =
            HeaderValue::from_str(&revealed(value, known)?).map_err(|_| format!("headers.{name}: bad value"))?;
        headers.insert(name, value);
    }
    Ok(StreamableHttpClientTransportConfig::with_uri(declared.url.clone()).custom_headers(headers))
}
