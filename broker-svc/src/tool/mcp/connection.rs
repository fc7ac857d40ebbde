//! One open connection to an MCP server.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use rmcp::model::Tool;
use rmcp::service::{NotificationContext, Peer, RoleClient, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, ServiceExt as _};
use serde_json::Value;
use shared::json_schema::JsonSchema;
use shared::process::SecretValue;
use tokio::process::Child;

use super::declared::{McpServer, credential_name};
use crate::child::{InputLimit, ProcessGroup, SupervisedCommand, pass_variables, walls};
use crate::tool::credentials::SecretReferences;

/// Environment variables that a server's program inherits.
const KEPT: [&str; 3] = ["PATH", "HOME", "TMPDIR"];

/// Time in which a server must list its changed tools.
const LIST_WITHIN: Duration = Duration::from_secs(5);

/// An open connection; the program ends with it.
#[derive(Debug)]
pub(super) struct McpConnection {
    pub(super) peer: Peer<RoleClient>,
    tools: Mutex<Arc<Vec<Tool>>>,
    ear: Ear,
    running: RunningService<RoleClient, Ear>,
    /// The server's program, which is ended when this is dropped, with all processes that it started.
    _program: Option<(Child, ProcessGroup)>,
}

/// Receiver of the server's notifications.
#[derive(Debug, Clone, Default)]
struct Ear {
    /// Whether the server's tools have changed since it listed them.
    changed: Arc<AtomicBool>,
}

impl ClientHandler for Ear {
    fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) -> impl Future<Output = ()> + Send + '_ {
        self.changed.store(true, Ordering::SeqCst);
        std::future::ready(())
    }
}

impl McpConnection {
    /// Returns the server's tools as last listed.
    pub(super) fn listed_tools(&self) -> Arc<Vec<Tool>> {
        Arc::clone(&self.tools.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lists the tools again if the server has said that they changed. If it does not respond, the known tools remain
    /// until the next try.
    pub(super) async fn keep_up(&self, server: &str) {
        if !self.ear.changed.swap(false, Ordering::SeqCst) {
            return;
        }

        match tokio::time::timeout(LIST_WITHIN, self.running.list_all_tools()).await {
            Ok(Ok(tools)) => {
                tracing::info!(server, tools = tools.len(), "tools of an MCP server changed");
                warn_of_schemas(server, &tools);
                *self.tools.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(tools);
            }
            Ok(Err(error)) => self.still_changed(server, &error.to_string()),
            Err(_) => self.still_changed(server, "no answer in time"),
        }
    }

    fn still_changed(&self, server: &str, error: &str) {
        tracing::warn!(server, error, "failed to list the changed tools of an MCP server");
        self.ear.changed.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_open(&self) -> bool {
        !self.running.is_closed() && !self.peer.is_transport_closed()
    }
}

/// Starts or connects to the server `name`, and lists its tools.
///
/// # Errors
/// Returns the error as text, without any secret.
pub(super) async fn connect(
    name: &str,
    declared: &McpServer,
    known: &SecretReferences,
) -> Result<McpConnection, String> {
    let ear = Ear::default();
    let (running, program) = if declared.url.is_empty() {
        let mut child = start_program(declared, known)?;
        let pipes = child
            .stdout
            .take()
            .zip(child.stdin.take())
            .ok_or("has no input and output")?;

        // A server may start processes of its own, and all of them must end with the connection.
        let group = ProcessGroup::led_by(&child);
        let running = ear.clone().serve(pipes).await.map_err(|error| error.to_string())?;
        (running, Some((child, group)))
    } else {
        let transport = StreamableHttpClientTransport::from_config(transport_config(declared, known)?);
        let running = ear.clone().serve(transport).await;
        (running.map_err(|error| error.to_string())?, None)
    };

    let tools = running.list_all_tools().await.map_err(|error| error.to_string())?;
    tracing::info!(server = name, tools = tools.len(), "connected to an MCP server");
    warn_of_schemas(name, &tools);

    Ok(McpConnection {
        peer: running.peer().clone(),
        tools: Mutex::new(Arc::new(tools)),
        ear,
        running,
        _program: program,
    })
}

/// Logs which of `tools` no arguments can fit, because their schemas cannot be used.
fn warn_of_schemas(server: &str, tools: &[Tool]) {
    for tool in tools {
        if let Err(error) = JsonSchema::parse_foreign(&Value::Object(tool.input_schema.as_ref().clone())) {
            tracing::warn!(server, tool = %tool.name, %error, "schema of a tool cannot be used; its calls will be refused");
        }
    }
}

/// Returns a value of the declaration, with a credential's name replaced by the secret.
fn reveal_value(value: &str, known: &SecretReferences) -> Result<String, String> {
    let Some(name) = credential_name(value) else {
        return Ok(value.to_owned());
    };
    let reference = known
        .get(name)
        .ok_or_else(|| format!("credential `{name}` is not declared"))?;
    let secret = SecretValue::resolve(reference).map_err(|error| format!("credential `{name}`: {error}"))?;
    Ok(secret.reveal().to_owned())
}

fn start_program(declared: &McpServer, known: &SecretReferences) -> Result<Child, String> {
    let SupervisedCommand { mut command, .. } = SupervisedCommand::new(&declared.command, InputLimit::All);
    command.args(&declared.args).stderr(Stdio::null());
    pass_variables(&mut command, &KEPT);
    for (name, value) in &declared.env {
        command.env(name, reveal_value(value, known)?);
    }
    walls::start(command, declared.env.contains_key(walls::BUS))
        .map_err(|error| format!("{} cannot be started: {error}", declared.command))
}

fn transport_config(
    declared: &McpServer,
    known: &SecretReferences,
) -> Result<StreamableHttpClientTransportConfig, String> {
    let mut headers = HashMap::new();
    for (name, value) in &declared.headers {
        let name: HeaderName = name.parse().map_err(|_| format!("headers.{name}: not a header"))?;
        let value =
            HeaderValue::from_str(&reveal_value(value, known)?).map_err(|_| format!("headers.{name}: bad value"))?;
        headers.insert(name, value);
    }
    Ok(StreamableHttpClientTransportConfig::with_uri(declared.url.clone()).custom_headers(headers))
}
