//! Declaration of an MCP server in `personas.yaml`. *Pure.*

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::tool::credentials::SecretReferences;

/// Prefix of a credential's name in `env` and `headers`.
const CREDENTIAL: &str = "credential:";

/// An MCP server: a program (`command`) or an address (`url`).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct McpServer {
    /// Program that is spoken to over its standard input and output.
    pub command: String,
    /// Arguments of the program.
    pub args: Vec<String>,
    /// Environment of the program beside `PATH` and `HOME`: values, or `credential:NAME`.
    pub env: BTreeMap<String, String>,
    /// Address that is spoken to by streamable HTTP.
    pub url: String,
    /// Headers of every request: values, or `credential:NAME`.
    pub headers: BTreeMap<String, String>,
    /// Globs of the tools, in the server's own names, that may be run again after a crash.
    pub idempotent: Vec<String>,
}

impl McpServer {
    /// Returns the names of the credentials that the server is given.
    #[must_use]
    pub fn credential_names(&self) -> Vec<String> {
        let values = self.env.values().chain(self.headers.values());
        let names = values.filter_map(|value| credential_name(value).map(str::to_owned));
        names.collect()
    }
}

/// Returns the credential that `value` names, if it names one.
pub(super) fn credential_name(value: &str) -> Option<&str> {
    value.strip_prefix(CREDENTIAL)
}

/// Returns the fault of the declaration of `server`: the key within it, and the value that is expected.
#[must_use]
pub fn declaration_fault(server: &McpServer, known: &SecretReferences) -> Option<(&'static str, String)> {
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

    let unknown = server
        .credential_names()
        .into_iter()
        .find(|name| !known.contains_key(name));
    unknown.map(|name| ("env", format!("`{name}` is not among `credentials`")))
}
