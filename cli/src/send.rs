//! `nexus send`: posts an event, as any other source does, with this machine's token.

use std::io::{IsTerminal as _, Read as _};

use anyhow::{Context as _, Result};
use serde_json::json as object;
use shared::clock::{Clock as _, IdSource as _, SystemClock, SystemIds};

use crate::args::{Common, SendOptions};
use crate::gateway::Gateway;
use crate::output::json;
use crate::say;

/// Runs the command.
///
/// # Errors
/// Fails if the event is invalid, or if the gateway does not accept it.
pub async fn execute(common: &Common, options: SendOptions) -> Result<()> {
    let gateway = Gateway::find(common, options.url.as_deref(), options.token_file.as_deref())?;
    let body = if options.content == "-" {
        let mut text = Vec::new();
        std::io::stdin().read_to_end(&mut text).context("read standard input")?;
        text
    } else {
        from_options(options)
    };

    let ids = gateway.post(body).await?;
    if common.json {
        let id = ids.first().cloned().unwrap_or_default();
        return json(&object!({ "id": id, "ids": ids }));
    }

    // A pipe gets only the ids, which a script can use.
    let is_script = !std::io::stdout().is_terminal();
    if is_script {
        ids.iter().for_each(|id| say!("{id}"));
        return Ok(());
    }

    for id in &ids {
        say!("{id} is accepted");
    }

    if let [id] = ids.as_slice() {
        say!("nexus trace '{id}' --wait 10");
    }

    Ok(())
}

fn from_options(options: SendOptions) -> Vec<u8> {
    let id = options.id.unwrap_or_else(|| SystemIds.ulid().to_string());
    let event = object!({
        "id": id,
        "timestamp": SystemClock.now(),
        "channel": options.channel,
        "peer": { "kind": "dm", "id": options.peer },
        "from": { "id": options.peer },
        "content": options.content,
        "content_types": ["text"],
    });

    event.to_string().into_bytes()
}
