//! `nexus events`: events from the read model.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use serde::de::DeserializeOwned;
use shared::bus::Bus;
use shared::clock::{Clock as _, SystemClock};
use shared::model::event::EventId;
use shared::projection::api::{FindReply, FindRequest, SearchReply, SearchRequest};

use crate::args::{Common, EventsAction, SearchOptions};
use crate::complain;
use crate::connect::connect_bus;
use crate::exit::{Exit, ExitContext as _, failure};
use crate::output::{Column, Table, View};
use crate::service::ask_service;
use crate::when::parse_when;

/// Longest time that one answer may take.
const ANSWER: Duration = Duration::from_secs(30);

/// Runs the command.
///
/// # Errors
/// Fails if no replica answers, or if the event is not known.
pub async fn execute(common: &Common, action: EventsAction) -> Result<()> {
    match action {
        EventsAction::Search(options) => search(common, options).await,
        EventsAction::Show { event_id } => show(common, parse_event_id(event_id)?).await,
    }
}

/// Parses the id of an event, as the command line names it.
///
/// # Errors
/// Fails with exit code 2 if `text` cannot be an id.
pub fn parse_event_id(text: String) -> Result<EventId> {
    EventId::parse(text).exit(Exit::Usage)
}

async fn search(common: &Common, options: SearchOptions) -> Result<()> {
    let now = SystemClock.now();
    let at = |option, text: Option<String>| text.map(|text| parse_when(option, &text, now)).transpose();
    let request = SearchRequest {
        query: options.query,
        channels: (!options.channel.is_empty()).then_some(options.channel),
        since: at("--since", options.since)?,
        until: at("--until", options.until)?,
        limit: options.limit,
    };

    let bus = connect_bus(common).await?;
    let reply: SearchReply = ask_read_model(&bus, "nexus.svc.events.search", &request).await?;
    let columns = [
        Column::number("SCORE"),
        Column::id("EVENT"),
        Column::text("FROM"),
        Column::text("TEXT"),
    ];
    let table = Table::new(&columns).with(&reply.hits, |hit| {
        [
            format!("{:.3}", hit.score).into(),
            hit.event_id.as_str().into(),
            (&hit.from_id).into(),
            (&hit.excerpt).into(),
        ]
    });

    if !reply.by_meaning {
        complain!("searched by words only: no embedding model is in use (docs/read-model.md)");
    }

    View::list(&reply.hits, table)?.show(common)
}

async fn show(common: &Common, id: EventId) -> Result<()> {
    let bus = connect_bus(common).await?;
    let request = FindRequest {
        id: Some(id.clone()),
        ..FindRequest::default()
    };
    let reply: FindReply = ask_read_model(&bus, "nexus.svc.events.find", &request).await?;
    let Some(event) = reply.events.first() else {
        return Err(unknown_event(&id));
    };

    let peer_kind = serde_json::to_value(event.peer_kind)?;
    let view = View::one(event.id.as_str(), event)?.fields([
        ("event", event.id.as_str().into()),
        ("at", event.timestamp.into()),
        ("stored", event.published_at.into()),
        ("revised", event.revised_at.into()),
        ("sequence", event.sequence.into()),
        ("direction", event.direction.name().into()),
        (
            "channel",
            format!("{}, account {}", event.channel, event.account).into(),
        ),
        (
            "peer",
            format!("{} ({})", event.peer_id, peer_kind.as_str().unwrap_or_default()).into(),
        ),
        ("from", (&event.from_id).into()),
        ("thread", event.thread_id.as_ref().into()),
        ("reply to", event.reply_to.as_ref().into()),
        ("types", event.content_types.join(", ").into()),
        ("content", (&event.content).into()),
    ]);

    view.show(common)
}

/// Returns the error about an event that the read model does not have.
pub fn unknown_event(id: &EventId) -> anyhow::Error {
    failure(
        Exit::NotFound,
        format!("no event {id} is known (yet); see `nexus events search` and `nexus tail`"),
    )
}

/// Asks hook-svc, which serves the read model.
///
/// # Errors
/// As [`ask_service`].
async fn ask_read_model<T: DeserializeOwned>(bus: &Bus, subject: &str, question: &impl Serialize) -> Result<T> {
    ask_service(bus, "hook-svc", subject, question, ANSWER).await
}
