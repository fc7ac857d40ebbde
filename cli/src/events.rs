//! `nexus events`: events from the read model.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use shared::bus::Bus;
use shared::clock::{Clock as _, SystemClock};
use shared::model::event::EventId;
use shared::model::time::UnixMillis;
use shared::projection::api::{FindReply, FindRequest, SearchReply, SearchRequest};
use shared::wire::headers::Headers;

use crate::args::{Common, EventsAction, SearchOptions};
use crate::output::{brief, bus, json, plain, table};
use crate::say;

/// Longest time that one answer may take.
const ANSWER: Duration = Duration::from_secs(30);

/// Number of characters of a text that a table shows.
const SHOWN: usize = 80;

/// Runs the command.
///
/// # Errors
/// Fails if no replica answers, or if the event is not known.
pub async fn execute(common: &Common, action: EventsAction) -> Result<()> {
    let bus = bus(common).await?;
    match action {
        EventsAction::Search(options) => search(common, &bus, options).await,
        EventsAction::Show { event_id } => show(&bus, EventId::parse(event_id)?).await,
    }
}

async fn search(common: &Common, bus: &Bus, options: SearchOptions) -> Result<()> {
    let now = SystemClock.now();
    let at = |text: Option<String>| text.map(|text| instant(&text, now)).transpose();
    let request = SearchRequest {
        query: options.query,
        channels: (!options.channel.is_empty()).then_some(options.channel),
        since: at(options.since)?,
        until: at(options.until)?,
        limit: options.limit,
    };

    let reply: SearchReply = ask(bus, "nexus.svc.events.search", &request).await?;
    if common.json {
        return json(&reply);
    }

    let mut rows = table(&["SCORE", "EVENT", "FROM", "TEXT"]);
    for hit in &reply.hits {
        let score = format!("{:.3}", hit.score);
        rows.add_row([
            score.as_str(),
            plain(hit.event_id.as_str()).as_str(),
            plain(&hit.from_id).as_str(),
            brief(&hit.excerpt, SHOWN).as_str(),
        ]);
    }

    say!("{rows}");

    if !reply.by_meaning {
        say!("(by words alone: no embedding model is in use; see docs/read-model.md)");
    }

    Ok(())
}

async fn show(bus: &Bus, id: EventId) -> Result<()> {
    let request = FindRequest {
        id: Some(id.clone()),
        ..FindRequest::default()
    };
    let reply: FindReply = ask(bus, "nexus.svc.events.find", &request).await?;
    match reply.events.first() {
        Some(event) => json(event),
        None => bail!("no event {id} is known (yet); see `nexus events search` and `nexus tail`"),
    }
}

async fn ask<T: serde::de::DeserializeOwned>(bus: &Bus, service: &str, question: &impl serde::Serialize) -> Result<T> {
    bus.request(service, Headers::new(), question, ANSWER)
        .await
        .context("the read model is served by hook-svc: does one run?")
}

/// Parses a time: `90s`, `15m`, `2h`, `7d` before `now`, or Unix milliseconds.
fn instant(text: &str, now: UnixMillis) -> Result<UnixMillis> {
    if let Ok(millis) = text.parse() {
        return Ok(UnixMillis(millis));
    }

    let units = [('s', 1_000), ('m', 60_000), ('h', 3_600_000), ('d', 86_400_000)];
    let ago = units.iter().find_map(|(unit, millis)| {
        let count: i64 = text.strip_suffix(*unit)?.parse().ok()?;
        count.checked_mul(*millis)
    });
    match ago {
        Some(ago) if ago >= 0 => Ok(UnixMillis(now.0.saturating_sub(ago))),
        Some(_) | None => bail!("`{text}`: expected a span like 90s, 15m, 2h or 7d, or Unix milliseconds"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_spans_before_now_or_milliseconds() {
        let now = UnixMillis(1_000_000_000);
        for (text, expected) in [
            ("0s", 1_000_000_000),
            ("2m", 999_880_000),
            ("1d", 913_600_000),
            ("12345", 12_345),
        ] {
            assert_eq!(instant(text, now).expect(text), UnixMillis(expected));
        }

        for text in ["", "d", "-1d", "2 weeks", "9999999999999999999d"] {
            assert!(instant(text, now).is_err(), "{text}");
        }
    }
}
