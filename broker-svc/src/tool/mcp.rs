//! MCP servers: programs and addresses that offer tools by the Model Context Protocol. The only module that uses
//! crate `rmcp`.
//!
//! A server is started or connected to when a turn first needs it, and again when it has gone. Its tools are named
//! `{server}__{tool}`, so that names of two servers do not collide and permissions can name one server's
//! (`files__*`). A server's own declarations about its tools are hints and no promise: a tool is run again after a
//! crash only if `personas.yaml` says that it is idempotent. Source: `docs/design/sessions.md` §6.4.

mod connection;
mod declared;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use rmcp::model::{CallToolRequestParams, CallToolResult, RequestMetaObject};
use serde_json::{Map, Value, json};
use shared::clock::SharedClock;
use shared::model::ledger::ToolOutcome;
use shared::model::permission::glob_matches;
use shared::wire::agent::ToolDescription;
use tokio::sync::Mutex;

use self::connection::{McpConnection, connect};
pub use self::declared::{McpServer, declaration_fault};
use super::credentials::SecretReferences;
use super::{Tool, ToolCall, failed_outcome};
use crate::agent::port::UnreachableTool;

/// Time in which a server must start and list its tools.
const START_WITHIN: Duration = Duration::from_secs(30);
/// Minimum and maximum pause before an unreachable server is tried again: each turn would wait for it.
const REST: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(30)];
/// Pause before an unreachable server is tried again, as a multiple of the time that the failure took.
const REST_FOR: u32 = 10;
/// Maximum number of tools of one server.
const MAX_TOOLS: usize = 256;
/// Maximum length of a name that model providers accept.
const MAX_NAME: usize = 64;

/// The declared servers, and the connections to those that were needed.
#[derive(Debug, Clone)]
pub struct McpServers {
    declared: Arc<BTreeMap<String, McpServer>>,
    references: Arc<SecretReferences>,
    places: Arc<BTreeMap<String, Mutex<Place>>>,
    clock: SharedClock,
}

/// State of a server: its open connection, or why it is unreachable and until when it is not tried again.
#[derive(Debug, Default)]
struct Place {
    open: Option<Arc<McpConnection>>,
    failed: Option<(Instant, String)>,
}

impl McpServers {
    /// Creates the `declared` servers; `references` are the secrets that they may name.
    #[must_use]
    pub fn new(declared: BTreeMap<String, McpServer>, references: Arc<SecretReferences>, clock: SharedClock) -> Self {
        let places = declared.keys().map(|name| (name.clone(), Mutex::default())).collect();
        Self {
            declared: Arc::new(declared),
            references,
            places: Arc::new(places),
            clock,
        }
    }

    /// Returns the tools of `server`; none if it is unreachable at the moment.
    pub async fn server_tools(&self, server: &str) -> Vec<Arc<dyn Tool>> {
        let Some(declared) = self.declared.get(server) else {
            return Vec::new();
        };
        let connection = match self.open_connection(server, declared).await {
            Ok(connection) => connection,
            Err(error) => {
                tracing::debug!(server, error, "MCP server unavailable");
                return Vec::new();
            }
        };

        // The server may have announced a changed list of tools.
        connection.keep_up(server).await;
        let tools = connection.listed_tools();
        let tools = tools.iter().take(MAX_TOOLS).filter_map(|tool| {
            let name = qualified_name(server, &tool.name)?;
            let idempotent = declared
                .idempotent
                .iter()
                .any(|pattern| glob_matches(pattern, &tool.name));

            Some(Arc::new(McpTool {
                description: ToolDescription {
                    name,
                    description: tool.description.as_deref().unwrap_or_default().to_owned(),
                    parameters: Value::Object(tool.input_schema.as_ref().clone()),
                },
                remote: tool.name.to_string(),
                needs: declared.credential_names(),
                idempotent,
                connection: Arc::clone(&connection),
            }) as Arc<dyn Tool>)
        });

        tools.collect()
    }

    /// Returns the known facts about the tool `name` of `server`, if the server is unreachable.
    #[must_use]
    pub fn unreachable_tool(&self, server: &str, name: &str) -> Option<UnreachableTool> {
        let declared = self.declared.get(server)?;
        let tool = name.strip_prefix(&qualified_name(server, "")?)?;
        // While another task is connecting to the server, it counts as unreachable.
        let is_open = self.places.get(server)?.try_lock().is_ok_and(|place| {
            let open = place.open.as_ref();
            open.is_some_and(|open| open.is_open())
        });
        let idempotent = declared.idempotent.iter().any(|pattern| glob_matches(pattern, tool));
        (!is_open).then_some(UnreachableTool { idempotent })
    }

    /// Returns the open connection to `server`, or opens one. A caller that comes meanwhile waits for the same
    /// connection, and a caller soon after a failure gets that failure.
    async fn open_connection(&self, server: &str, declared: &McpServer) -> Result<Arc<McpConnection>, String> {
        let place = self.places.get(server).ok_or("is not declared")?;
        let mut place = place.lock().await;
        if let Some(open) = place.open.as_ref().filter(|open| open.is_open()) {
            return Ok(Arc::clone(open));
        }

        let began = self.clock.monotonic();
        // A server that just failed is not started again for each turn.
        if let Some((_, error)) = place.failed.as_ref().filter(|(until, _)| began < *until) {
            return Err(error.clone());
        }

        let connecting = connect(server, declared, &self.references);
        let opened = tokio::time::timeout(START_WITHIN, connecting).await;
        match opened.unwrap_or_else(|_| Err("did not answer in time".to_owned())) {
            Ok(opened) => {
                let opened = Arc::new(opened);
                place.open = Some(Arc::clone(&opened));
                place.failed = None;
                Ok(opened)
            }
            Err(error) => {
                tracing::warn!(server, error, "MCP server unavailable");
                let now = self.clock.monotonic();
                place.failed = Some((now + rest_duration(now.saturating_duration_since(began)), error.clone()));
                Err(error)
            }
        }
    }
}

/// Returns the pause before a server is tried again, if the failure `took` so long.
fn rest_duration(took: Duration) -> Duration {
    let [least, most] = REST;
    took.saturating_mul(REST_FOR).clamp(least, most)
}

/// Returns whether a tool called `name` may belong to `server`.
#[must_use]
pub fn may_be_of(server: &str, name: &str) -> bool {
    prefix_of(server).is_some_and(|own| name.starts_with(&own))
}

/// Returns the prefix of the names of `server`'s tools; `None` if they would be too long.
#[must_use]
pub fn prefix_of(server: &str) -> Option<String> {
    qualified_name(server, "")
}

/// Returns the name of a server's tool in characters that every model provider accepts; `None` if it is too long.
fn qualified_name(server: &str, tool: &str) -> Option<String> {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '-' || c == '_' {
            c
        } else {
            '_'
        }
    };
    let name: String = format!("{server}__{tool}").chars().map(plain).collect();
    (name.len() <= MAX_NAME).then_some(name)
}

/// A tool of an MCP server.
#[derive(Debug)]
struct McpTool {
    description: ToolDescription,
    /// Name of the tool on the server.
    remote: String,
    /// Credentials that the server was given: a turn without all of them may not use the tool.
    needs: Vec<String>,
    idempotent: bool,
    connection: Arc<McpConnection>,
}

#[async_trait]
impl Tool for McpTool {
    fn description(&self) -> &ToolDescription {
        &self.description
    }

    fn is_idempotent(&self) -> bool {
        self.idempotent
    }

    async fn call(&self, call: ToolCall) -> ToolOutcome {
        for name in &self.needs {
            if let Err(error) = call.credentials.check(name) {
                return failed_outcome(error.to_string());
            }
        }

        let meta = named_call(&call);
        let arguments = match call.call.call.arguments {
            Value::Object(map) => map,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
        };

        let mut params = CallToolRequestParams::new(self.remote.clone()).with_arguments(arguments);
        params.meta = Some(meta);

        // Dropping a request's future cancels the request at the server as well.
        tokio::select! {
            answer = self.connection.peer.call_tool(params) => match answer {
                Ok(result) => result_outcome(&result),
                Err(rmcp::ServiceError::McpError(error)) => failed_outcome(error.message.to_string()),
                Err(error) => ToolOutcome::Unknown { reason: error.to_string() },
            },
            () = call.call.cancel.cancelled() => ToolOutcome::Unknown { reason: "interrupted".to_owned() },
        }
    }
}

/// Returns metadata with the call's id, so that a server can tell a repeated call from a new one.
fn named_call(call: &ToolCall) -> RequestMetaObject {
    let call = &call.call;
    let mut meta = RequestMetaObject::new();
    meta.0.insert("nexus/turn".to_owned(), json!(call.turn));
    meta.0.insert("nexus/call".to_owned(), json!(call.call.call));
    meta.0.insert("nexus/epoch".to_owned(), json!(call.epoch));
    meta
}

/// Returns the structured result if there is one, else the texts; other contents by their kind alone.
fn result_outcome(result: &CallToolResult) -> ToolOutcome {
    let texts: Vec<String> = result
        .content
        .iter()
        .map(|block| {
            let block = serde_json::to_value(block).unwrap_or_default();
            match block["text"].as_str() {
                Some(text) => text.to_owned(),
                None => format!("[{}]", block["type"].as_str().unwrap_or("content")),
            }
        })
        .collect();

    let text = texts.join("\n");
    // The server's own error is a result that the model can react to.
    if result.is_error == Some(true) {
        return failed_outcome(text);
    }

    let result = match &result.structured_content {
        Some(structured) => structured.clone(),
        None => json!(text),
    };

    ToolOutcome::Ok { result }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_every_provider_takes() {
        assert_eq!(
            qualified_name("files", "read.text file").as_deref(),
            Some("files__read_text_file")
        );
        assert_eq!(qualified_name("s", &"x".repeat(62)), None);
        assert!(may_be_of("my files", "my_files__read") && !may_be_of("files", "my_files__read"));
    }
}
