//! Cost of routing bindings per event, measured on the table that hook-svc uses.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use hook_svc::routing::bindings::BindingTable;
use serde::Serialize;
use shared::clock::{Clock as _, SystemClock};
use shared::model::event::{Event, EventId, EventPeer};
use shared::model::time::UnixMillis;

/// Number of bindings in the table, besides one that fits all other events.
const BINDINGS: usize = 10_000;
/// Number of events that are looked up in turn; each fits one binding.
const EVENTS: usize = 1_024;

/// Figures of one table of bindings.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Figure {
    bindings: usize,
    us_per_event: f64,
}

/// Looks up events in one table for `span`.
pub(super) fn run(span: Duration) -> Result<Figure> {
    let table = BindingTable::parse(&file()?).map_err(|faults| anyhow!("{faults:?}"))?;
    let events = (0..EVENTS).map(event).collect::<Result<Vec<_>>>()?;
    let began = SystemClock.monotonic();

    let mut asked = 0_u64;
    loop {
        for event in &events {
            table.decide_route(event).context("no binding fits an event")?;
        }

        asked += EVENTS as u64;
        let took = SystemClock.monotonic().duration_since(began);
        if took >= span {
            return Ok(Figure {
                bindings: BINDINGS,
                us_per_event: took.as_secs_f64() * 1e6 / asked as f64,
            });
        }
    }
}

fn file() -> Result<String> {
    let mut text = String::from("bindings:\n  - { persona: default }\n");
    for number in 0..BINDINGS {
        let guild = number % 100;
        writeln!(
            text,
            "  - {{ persona: p{number}, match: {{ channel: discord, guild: g{guild}, peer: {{ id: \"room{number}\" }} }} }}"
        )?;
    }
    Ok(text)
}

/// Returns an event that the binding `number * 7` decides.
fn event(number: usize) -> Result<Event> {
    let room = number * 7;
    let id = EventId::parse(format!("discord:{number}")).context("failed to create an event id")?;
    let mut event = Event::new(id, "discord", &format!("room{room}"), UnixMillis(1_769_000_000_000));
    event.peer = EventPeer {
        guild_id: Some(format!("g{}", room % 100)),
        ..event.peer
    };
    Ok(event)
}

impl Figure {
    /// Returns the figure as a sentence.
    pub(super) fn sentence(self) -> String {
        format!("{} bindings: {:.1} µs an event", self.bindings, self.us_per_event)
    }
}
