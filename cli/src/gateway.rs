//! Finds adapter-svc's address and this machine's token, for commands that post events as any other source does.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::Value;
use shared::process::ProcessName;

use crate::args::Common;
use crate::connect::load_document;
use crate::exit::{Exit, ExitContext as _, failure, of_status};
use crate::launch::token;

/// Default data directory of `nexus up`.
const DATA: &str = ".nexus";
/// Address at which adapter-svc listens by default.
const DEFAULT_LISTEN: &str = "127.0.0.1:8080";

/// Address of an adapter, with the token for posting to it.
#[derive(Debug, Clone)]
pub struct Gateway {
    url: String,
    token: String,
    client: reqwest::Client,
}

impl Gateway {
    /// Returns the gateway at `url` with `token`.
    ///
    /// # Errors
    /// Fails if no HTTP client can be made.
    pub fn new(url: &str, token: String) -> Result<Self> {
        Ok(Self {
            url: url.trim_end_matches('/').to_owned(),
            token,
            client: crate::http::client()?,
        })
    }

    /// Returns the gateway that `url` and `token_file` name; without them, that of a running `nexus up`, or as
    /// configured.
    ///
    /// # Errors
    /// Fails if there is no token; the error names the places that were searched.
    pub fn find(common: &Common, url: Option<&str>, token_file: Option<&Path>) -> Result<Self> {
        let (adapter, here) = adapter_section(common);
        let url = url.map_or_else(|| address_of(&adapter, &here), str::to_owned);

        let named = adapter["http"]["local_token"].as_str();
        let named = named
            .and_then(|reference| reference.strip_prefix("file:"))
            .map(PathBuf::from);
        let places = [named, Some(token::file(&here)), Some(token::file(Path::new(DATA)))];

        let path = match token_file {
            Some(path) => path.to_owned(),
            None => {
                let mut places = places.into_iter().flatten();
                let found = places.find(|path| path.is_file());
                found.unwrap_or_else(|| token::file(Path::new(DATA)))
            }
        };

        Self::new(&url, token::read(&path).exit(Exit::Usage)?)
    }

    /// Posts `body` (JSON: an event or a list of events). Returns the ids under which the events are stored.
    ///
    /// # Errors
    /// Fails if the gateway cannot be reached or refuses the events; the error has its answer.
    pub async fn post_events(&self, body: Vec<u8>) -> Result<Vec<String>> {
        let url = format!("{}/v1/events", self.url);
        let answer = self
            .client
            .post(&url)
            .bearer_auth(&self.token)
            .header("content-type", "application/json")
            .body(body)
            .send()
            .await
            .map_err(|error| explain_post(&url, error))?;

        let status = answer.status();
        let said: Value = answer.json().await.unwrap_or(Value::Null);
        if !status.is_success() {
            let why = said["error"]["message"].as_str().unwrap_or("no reason given");
            return Err(failure(
                of_status(status.as_u16()),
                format!("{url} answered {status}: {why}"),
            ));
        }

        let ids = said["ids"].as_array().cloned().unwrap_or_default();
        Ok(ids.iter().filter_map(|id| id.as_str().map(str::to_owned)).collect())
    }
}

/// Returns the address of the running `nexus up`, else the configured one, as `http://…`.
#[must_use]
pub fn find_address(common: &Common) -> String {
    let (adapter, here) = adapter_section(common);
    address_of(&adapter, &here)
}

/// Returns the section `[adapter]` as JSON, and the directory of the configuration.
fn adapter_section(common: &Common) -> (Value, PathBuf) {
    let document = load_document(common);
    let adapter = document
        .section::<toml::Table>("adapter", |_| Vec::new())
        .shown_values()
        .try_into()
        .unwrap_or(Value::Null);

    let here = Path::new(document.source()).parent().unwrap_or(Path::new(""));
    (adapter, here.to_owned())
}

fn address_of(adapter: &Value, here: &Path) -> String {
    let mut directories = [here.join("run"), Path::new(DATA).join("run")].into_iter();
    let running = directories.find_map(|directory| announced(&directory));
    let configured = || adapter["listen"].as_str().unwrap_or(DEFAULT_LISTEN).to_owned();
    format!("http://{}", running.unwrap_or_else(configured))
}

/// Returns the error of a post to `url`, with a hint if nothing listens there.
fn explain_post(url: &str, error: reqwest::Error) -> anyhow::Error {
    let exit = if error.is_builder() {
        Exit::Usage
    } else {
        Exit::Unreachable
    };
    let error = anyhow::Error::new(error.without_url());
    let is_refused = error.chain().any(|cause| {
        let io = cause.downcast_ref::<std::io::Error>();
        io.is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
    });

    let hint = if is_refused {
        "; is adapter-svc running? `nexus up` starts it here"
    } else {
        ""
    };
    failure(exit, format!("post to {url}: {error:#}{hint}"))
}

/// Returns the address of a running adapter that is announced in `directory`.
fn announced(directory: &Path) -> Option<String> {
    let entries = std::fs::read_dir(directory).ok()?;
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.starts_with("adapter-svc-") && name.ends_with(".json")
        })
        .collect();

    found.sort();
    found.iter().find_map(|path| {
        let text = std::fs::read(path).ok()?;
        let said: Value = serde_json::from_slice(&text).ok()?;
        // A process that has the id of a gateway that was killed must not receive this machine's token.
        let process = ProcessName::parse(said["process"].as_str()?)?;
        Some(said["gateway"].as_str()?.to_owned()).filter(|_| process.is_running())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_adapter_that_runs_is_found_and_a_dead_one_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let own = ProcessName::own().expect("this process").to_string();
        let write = |name: &str, process: &str, gateway: &str| {
            let text = json!({ "process": process, "gateway": gateway }).to_string();
            std::fs::write(directory.path().join(name), text).expect("written");
        };

        assert_eq!(announced(directory.path()), None);

        let (pid, rest) = own.split_once(' ').expect("id, start, boot");
        let (started, boot) = rest.split_once(' ').expect("start, boot");

        // The id of a killed gateway, which another process has got since.
        write("adapter-svc-a.json", &format!("{pid} {started}1 {boot}"), "127.0.0.1:1");
        write("hook-svc-h.json", &own, "127.0.0.1:2");
        assert_eq!(announced(directory.path()), None);

        write("adapter-svc-b.json", &own, "127.0.0.1:3");
        assert_eq!(announced(directory.path()).as_deref(), Some("127.0.0.1:3"));

        // The chat page of the owner's link is that of the running adapter, else the configured one.
        let adapter = json!({ "listen": "127.0.0.1:9" });
        let here = tempfile::tempdir().expect("a directory");
        assert_eq!(address_of(&adapter, here.path()), "http://127.0.0.1:9");

        std::fs::rename(directory.path(), here.path().join("run")).expect("moved");
        assert_eq!(address_of(&adapter, here.path()), "http://127.0.0.1:3");
    }
}
