//! `nexus send`: posts an event, as any other source does, with this machine's token.

use std::io::{IsTerminal as _, Read as _};

use anyhow::{Context as _, Result};
use serde_json::json as object;
use shared::clock::{Clock as _, IdSource as _, SystemClock, SystemIds};

use crate::args::{Common, SendOptions};
use crate::gateway::Gateway;
use crate::output::View;

/// Runs the command.
///
/// # Errors
/// Fails if the event is invalid, or if the gateway does not accept it.
pub async fn execute(common: &Common, options: SendOptions) -> Result<()> {
    let gateway = Gateway::find(common, options.url.as_deref(), options.token_file.as_deref())?;
    let is_list = options.content == "-";
    let body = if is_list {
        let mut text = Vec::new();
        std::io::stdin()
            .read_to_end(&mut text)
            .context("failed to read standard input")?;
        text
    } else {
        event_body(options)
    };

    let ids = gateway.post_events(body).await?;
    let objects: Vec<serde_json::Value> = ids.iter().map(|id| object!({ "id": id })).collect();
    let view = match (is_list, objects.as_slice()) {
        (false, [only]) => View::of(only)?,
        _ => View::of(&objects)?,
    };

    // A pipe gets only the ids, which a script can use.
    let is_script = !std::io::stdout().is_terminal();
    let mut view = view.ids(ids.clone());
    for id in &ids {
        view = view.line(if is_script {
            id.clone()
        } else {
            format!("{id} is accepted")
        });
    }
    if let ([id], false) = (ids.as_slice(), is_script) {
        view = view.line(format!("nexus trace '{id}' --wait 10"));
    }

    view.show(common)
}

fn event_body(options: SendOptions) -> Vec<u8> {
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
