//! `nexus send`: publish an event.

use std::io::Read as _;

use anyhow::{Context as _, Result};
use shared::bus::Outgoing;
use shared::clock::{Clock as _, IdSource as _, SystemClock, SystemIds};
use shared::model::event::{Event, EventId};
use shared::wire::envelope::decode;
use shared::wire::headers::{CONTENT_TYPE, Headers};
use shared::wire::subject;

use crate::args::{Common, SendOptions};
use crate::output::{bus, json};

/// Runs the command.
///
/// # Errors
/// Where the event is not one, or cannot be stored.
pub async fn execute(common: &Common, options: SendOptions) -> Result<()> {
    let event = if options.content == "-" {
        from_stdin()?
    } else {
        from_options(options)?
    };
    let out = Outgoing::new(subject::event(&event), &event).msg_id(event.id.as_str());
    let published = bus(common).await?.publish(out).await?;
    if common.json {
        return json(&serde_json::json!({
            "id": event.id, "sequence": published.sequence, "duplicate": published.duplicate
        }));
    }
    let note = if published.duplicate {
        " (it was there already)"
    } else {
        ""
    };
    println!("{} is stored at {}{note}", event.id, published.sequence);
    println!("nexus trace '{}' --wait 10", event.id);
    Ok(())
}

fn from_stdin() -> Result<Event> {
    let mut text = Vec::new();
    std::io::stdin().read_to_end(&mut text).context("read standard input")?;
    let headers: Headers = [(CONTENT_TYPE, "application/json")].into_iter().collect();
    decode(&headers, &text).context("standard input is not an event")
}

fn from_options(options: SendOptions) -> Result<Event> {
    let id = options.id.unwrap_or_else(|| format!("cli:{}", SystemIds.ulid()));
    let id = EventId::parse(id)?;
    let mut event = Event::new(id, &options.channel, &options.peer, SystemClock.now());
    event.from.id.clone_from(&options.peer);
    event.content = options.content;
    Ok(event)
}
