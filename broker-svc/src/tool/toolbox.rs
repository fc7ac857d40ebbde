//! All tools of a persona: built-ins by its `tools` patterns, those of its MCP servers by their names.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use shared::bus::Bus;
use shared::clock::SharedClock;
use shared::model::permission::glob_matches;

use super::Tool;
use super::catalogue;
use super::mcp::{McpServers, may_be_of};
use crate::agent::personas::{Persona, Personas};
use crate::agent::port::UnreachableTool;

/// The tools of a broker.
#[derive(Debug, Clone)]
pub struct Toolbox {
    builtins: Arc<BTreeMap<String, Arc<dyn Tool>>>,
    servers: McpServers,
}

impl Toolbox {
    /// Creates the tools that speak over `bus`, and the MCP servers that `personas` declare; a server is started when
    /// it is first needed.
    #[must_use]
    pub fn new(bus: &Bus, clock: &SharedClock, personas: &Personas) -> Self {
        let builtins = catalogue::builtin_tools(bus, clock);
        let named = builtins.into_iter().map(|tool| (tool.description().name.clone(), tool));

        Self {
            builtins: Arc::new(named.collect()),
            servers: McpServers::new(
                personas.mcp_servers.clone(),
                Arc::new(personas.credentials.clone()),
                Arc::clone(clock),
            ),
        }
    }

    /// Returns every tool of `persona`. An unreachable server offers none.
    pub async fn tools_of(&self, persona: &Persona) -> Vec<Arc<dyn Tool>> {
        let wanted = |name: &str| persona.tools.iter().any(|pattern| glob_matches(pattern, name));
        let tools = self.builtins.values();
        let mut tools: Vec<_> = tools.filter(|tool| wanted(&tool.description().name)).cloned().collect();
        let servers = persona
            .mcp_servers
            .iter()
            .map(|server| self.servers.server_tools(server));
        tools.extend(join_all(servers).await.into_iter().flatten());
        tools
    }

    /// Returns the known facts about the tool `name` of `persona`, if its server is unreachable.
    #[must_use]
    pub fn unreachable_tool(&self, persona: &Persona, name: &str) -> Option<UnreachableTool> {
        persona
            .mcp_servers
            .iter()
            .find_map(|server| self.servers.unreachable_tool(server, name))
    }

    /// Returns the tool `name` of `persona`.
    pub async fn find(&self, persona: &Persona, name: &str) -> Option<Arc<dyn Tool>> {
        let wanted = persona.tools.iter().any(|pattern| glob_matches(pattern, name));
        if let Some(builtin) = self.builtins.get(name).filter(|_| wanted) {
            return Some(Arc::clone(builtin));
        }

        // The other servers may be slow, or gone, and are not asked.
        for server in persona.mcp_servers.iter().filter(|server| may_be_of(server, name)) {
            let tools = self.servers.server_tools(server).await;
            if let Some(tool) = tools.into_iter().find(|tool| tool.description().name == name) {
                return Some(tool);
            }
        }

        None
    }
}
