//! `nexus mcp`: hooks and the search as tools of an agent, over the Model Context Protocol on standard input and
//! output.
//!
//! Each tool is one request to `nexus.svc.hook.*` (seed 003 §9.4) or `nexus.svc.events.search`. If the service refuses,
//! the agent gets the service's own text as the tool's error, so that it can correct its hook. Only this module uses
//! crate `rmcp`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt as _};
use serde_json::{Map, Value, json};
use shared::bus::{Bus, RequestError};
use shared::wire::headers::Headers;

use crate::args::{Common, McpOptions};
use crate::connect::connect_bus;

/// Longest time that an answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Instructions that an agent gets at the start.
const INSTRUCTIONS: &str = "Hooks are TypeScript functions that see every event (messages, webhooks, timers) and may fire, \
which hands the event to an agent. create_hook takes the body of `async function (ctx)`: ctx.event, ctx.now, ctx.hook, \
ctx.dbPath (SQLite), ctx.search(query), ctx.llm(prompt). Return { fire: boolean, routing?: { persona, session }, context?: \
{ prompt, extracted }, disable_hook?: boolean }.";

/// Runs the command until its input ends.
///
/// # Errors
/// Fails if the server cannot be asked, or if the peer does not use MCP.
pub async fn execute(common: &Common, options: McpOptions) -> Result<()> {
    let tools = Tools {
        bus: connect_bus(common).await?,
        created_by: options.created_by,
    };
    let running = tools
        .serve(rmcp::transport::stdio())
        .await
        .context("failed to start the MCP server")?;
    running.waiting().await.context("failed to serve MCP")?;
    Ok(())
}

/// The tools, with the connection to the bus.
#[derive(Debug, Clone)]
struct Tools {
    bus: Bus,
    created_by: String,
}

fn text(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

/// Returns a tool that takes `properties`, of which those in `required` are mandatory.
fn tool(name: &'static str, description: &'static str, properties: &Value, required: &[&str]) -> Tool {
    let schema = json!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false,
    });
    let schema = match schema {
        Value::Object(schema) => schema,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    };
    Tool::new(name, description, Arc::new(schema))
}

fn tools() -> Vec<Tool> {
    let name = json!({ "name": text("The hook's name") });
    vec![
        tool(
            "create_hook",
            "Create a hook; it becomes active at once",
            &json!({
                "name": { "type": "string", "pattern": "^[a-z0-9-]{1,64}$", "description": "Becomes its id and its file's name" },
                "description": text("What it does, in one line"),
                "mode": { "enum": ["persistent", "one-shot"], "description": "one-shot: disabled after it has fired once" },
                "script": text("The function's body, with `ctx` in scope, or a whole file with a default export"),
            }),
            &["name", "description", "mode", "script"],
        ),
        tool(
            "list_hooks",
            "List hooks with their status and how often they fired",
            &json!({
                "status": { "enum": ["active", "degraded", "paused", "waiting", "disabled", "errored"], "description": "Only those of this status" },
                "created_by": text("Only those of this author"),
            }),
            &[],
        ),
        tool(
            "get_hook",
            "One hook: its source, its state, its recent invocations",
            &name,
            &["name"],
        ),
        tool(
            "disable_hook",
            "Disable a hook; its file and history are kept",
            &json!({ "name": text("The hook's name"), "reason": text("Why") }),
            &["name"],
        ),
        tool(
            "delete_hook",
            "Delete a hook and its file; its history is kept",
            &name,
            &["name"],
        ),
        tool(
            "search_events",
            "Search everything that was said and done on all channels, by words and by meaning",
            &json!({
                "query": text("What to look for"),
                "channels": { "type": "array", "items": { "type": "string" }, "description": "Only on these" },
                "since": { "type": "integer", "description": "Unix milliseconds" },
                "until": { "type": "integer", "description": "Unix milliseconds" },
                "limit": { "type": "integer", "minimum": 1, "maximum": 100 },
            }),
            &["query"],
        ),
    ]
}

/// Returns the subject that serves `tool`.
fn subject(tool: &str) -> Option<&'static str> {
    match tool {
        "create_hook" => Some("nexus.svc.hook.create"),
        "list_hooks" => Some("nexus.svc.hook.list"),
        "get_hook" => Some("nexus.svc.hook.get"),
        "disable_hook" => Some("nexus.svc.hook.disable"),
        "delete_hook" => Some("nexus.svc.hook.delete"),
        "search_events" => Some("nexus.svc.events.search"),
        _ => None,
    }
}

impl ServerHandler for Tools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(Implementation::new("nexus", env!("CARGO_PKG_VERSION")))
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let name = request.name.as_ref();
        let unknown = || ErrorData::invalid_params(format!("there is no tool {name}"), None);
        let subject = subject(name).ok_or_else(unknown)?;
        let mut arguments = request.arguments.unwrap_or_default();

        // The author of a hook, and the asker, come from the command line, never from the agent.
        let said_by = match name {
            "create_hook" => Some("created_by"),
            "disable_hook" | "delete_hook" => Some("asked_by"),
            _ => None,
        };

        if let Some(key) = said_by {
            arguments.insert(key.to_owned(), Value::from(self.created_by.clone()));
        }

        let answer = self
            .bus
            .request::<_, Value>(subject, Headers::new(), &arguments, ANSWER_WITHIN)
            .await;
        let result = match answer {
            Ok(answer) => CallToolResult::structured(answer),
            Err(RequestError::Service { text, .. }) => CallToolResult::error(vec![ContentBlock::text(text)]),
            Err(error) => {
                let text = format!("hook-svc does not answer: {error}; see `nexus status`");
                CallToolResult::error(vec![ContentBlock::text(text)])
            }
        };

        Ok(result.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_that_is_offered_is_answered() {
        for tool in tools() {
            assert!(subject(&tool.name).is_some(), "{}", tool.name);
        }
    }
}
