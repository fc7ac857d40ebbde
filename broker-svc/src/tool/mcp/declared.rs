//! How `personas.yaml` declares an MCP server. *Pure.*

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::tool::credentials::References;

/// What stands before the name of a credential in `env` and `headers`.
const CREDENTIAL: &str = "credential:";

/// An MCP server: a program (`command`) or an address (`url`).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct McpServer {
    /// The program, spoken to over its standard input and output.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its environment beside `PATH` and `HOME`: values, or `credential:NAME`.
    pub env: BTreeMap<String, String>,
    /// The address, spoken to by streamable HTTP.
    pub url: String,
    /// Headers of every request: values, or `credential:NAME`.
    pub headers: BTreeMap<String, String>,
    /// Tools (globs, in the server's own names) that may be run again after a crash.
    pub idempotent: Vec<String>,
}

impl McpServer {
    /// Names of the credentials that it is given.
    #[must_use]
    pub fn credentials(&self) -> Vec<String> {
        let values = self.env.values().chain(self.headers.values());
        let names = values.filter_map(|value| credential(value).map(str::to_owned));
        names.collect()
    }
}

/// The credential that `value` names, where it names one.
pub(super) fn credential(value: &str) -> Option<&str> {
    value.strip_prefix(CREDENTIAL)
}

/// What is wrong with the declaration of `server`: the key within it, and what is expected.
#[must_use]
pub fn fault(server: &McpServer, known: &References) -> Option<(&'static str, String)> {
    match (server.command.is_empty(), server.url.is_empty()) {
        (true, true) => {
            return Some((
                "command",
                "expected `command` (a program) or `url` (an address)".to_owned(),
            ));
        }
        (false, false) => return Some(("url", "expected either `command` or `url`, not both".to_owned())),
        (true, false) if !(server.url.starts_with("http://") || server.url.starts_with("https://")) => {
            return Some(("url", "expected http://… or https://…".to_owned()));
        }
        (true, false) | (false, true) => {}
    }

    let unknown = server.credentials().into_iter().find(|name| !known.contains_key(name));
    unknown.map(|name| ("env", format!("`{name}` is not among `credentials`")))
}
