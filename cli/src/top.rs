//! `nexus top`: rates and backlogs of the moment, on a screen that refreshes itself, or in lines if there is no
//! terminal.
//!
//! All figures are requested from the services: positions of streams and sessions with claims from scheduler-svc, and the
//! status of a few of those sessions from broker-svc. No stream is followed, so that watching costs the watched system
//! little.

pub mod model;
pub mod view;

use std::io::IsTerminal as _;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use ratatui::crossterm::event::{Event, KeyCode, KeyModifiers, poll, read};
use serde::Deserialize;
use serde_json::json;
use shared::bus::{Bus, RequestError};
use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::time::UnixMillis;
use shared::wire::headers::Headers;
use shared::wire::operator::status::{BusySession, Known, StatusPart};
use shared::wire::topology::streams;

use crate::args::{Common, TopOptions};
use crate::connect::connect_bus;
use crate::output::{escape_controls, is_for_people, json_line, print, reader_zone};
use crate::system::read_status;
use model::{Board, Look, MAX_COUNTED, SessionLook, StreamLook};

/// Streams that are shown, and whether their messages wait to be processed.
const STREAMS: [(&str, bool); 8] = [
    (streams::EVENTS, false),
    (streams::INVOCATIONS, false),
    (streams::DISPATCHES, false),
    (streams::CLAIMS, true),
    (streams::LEDGER, false),
    (streams::DELIVERIES, true),
    (streams::PARKED, true),
    (streams::DLQ, true),
];
/// Longest time that a broker may take to report a session's status.
const ANSWER: Duration = Duration::from_millis(500);
/// Interval at which the keyboard is read.
const KEYS_EVERY: Duration = Duration::from_millis(50);

/// Runs the command.
///
/// # Errors
/// Fails if the server cannot be reached.
pub async fn execute(common: &Common, options: TopOptions) -> Result<()> {
    let bus = connect_bus(common).await?;
    if !is_for_people(common) || options.plain || !std::io::stdout().is_terminal() {
        return print_boards(common, &bus, options).await;
    }

    let zone = reader_zone(common);
    let mut terminal = ratatui::try_init().context("failed to set up the terminal")?;
    let mut before = None;
    let mut left = options.limit.unwrap_or(u64::MAX);

    let ended = loop {
        let now = match look(&bus, options.sessions).await {
            Ok(now) => now,
            Err(error) => break Err(error),
        };
        let board = Board::of(before.as_ref(), &now);
        before = Some(now);

        if let Err(error) = terminal.draw(|frame| view::draw(frame, &board, &zone)) {
            break Err(error.into());
        }

        left -= 1;

        if left == 0 {
            break Ok(());
        }

        match wants_to_end(Duration::from_secs(options.every)).await {
            Ok(false) => {}
            Ok(true) => break Ok(()),
            Err(error) => break Err(error),
        }
    };

    ratatui::restore();
    ended
}

/// Prints boards as lines, one after the other.
async fn print_boards(common: &Common, bus: &Bus, options: TopOptions) -> Result<()> {
    let zone = reader_zone(common);
    let mut before = None;
    for number in 0..options.limit.unwrap_or(u64::MAX) {
        if number > 0 {
            pause(Duration::from_secs(options.every)).await;
        }

        let now = look(bus, options.sessions).await?;
        let board = Board::of(before.as_ref(), &now);
        before = Some(now);

        if common.json {
            json_line(&board)?;
        } else if common.quiet {
            let sessions = board.sessions.iter();
            let ids: String = sessions
                .map(|session| escape_controls(&session.session) + "\n")
                .collect();
            print(&ids)?;
        } else {
            let lines = view::lines(&board, &zone);
            let lines: String = lines.lines().map(|line| escape_controls(line) + "\n").collect();
            print(&lines)?;
        }
    }

    Ok(())
}

/// Waits for `wait`, and returns whether `q`, Escape or Ctrl-C was pressed meanwhile.
async fn wants_to_end(wait: Duration) -> Result<bool> {
    let until = SystemClock.monotonic() + wait;
    while SystemClock.monotonic() < until {
        while poll(Duration::ZERO).context("failed to read the keyboard")? {
            let Event::Key(key) = read().context("failed to read the keyboard")? else {
                continue;
            };
            let interrupts = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            if interrupts || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                return Ok(true);
            }
        }

        pause(KEYS_EVERY).await;
    }

    Ok(false)
}

/// Takes one look at the system, with at most `most` sessions.
///
/// # Errors
/// Fails if scheduler-svc does not answer, or cannot read a stream.
pub async fn look(bus: &Bus, most: usize) -> Result<Look> {
    let status = read_status(bus, &[StatusPart::Streams], most).await?;
    let known = match status.streams {
        Some(Known::Known(known)) => known,
        Some(Known::Unknown(why)) => bail!("failed to read the streams: {why}"),
        None => bail!("scheduler-svc says nothing about the streams"),
    };

    let found = STREAMS.into_iter().filter_map(|(name, waits)| {
        let count = known.streams.iter().find(|count| count.name == name)?;
        Some(StreamLook {
            name,
            last: count.last,
            messages: count.messages,
            waits,
        })
    });
    let streams: Vec<StreamLook> = found.collect();
    let events = streams.iter().find(|stream| stream.name == streams::EVENTS);
    let behind = events.map_or(0, |events| events.last.saturating_sub(known.evaluated));

    let mut sessions = Vec::new();
    for busy in &known.sessions {
        sessions.push(look_at_session(bus, busy).await);
    }

    Ok(Look {
        at: SystemClock.now(),
        behind,
        streams,
        busy: known.busy,
        sessions,
    })
}

/// The part of a broker's answer about a session that is used here.
#[derive(Debug, Deserialize)]
struct Shown {
    running: Option<Running>,
    waiting: usize,
}

#[derive(Debug, Deserialize)]
struct Running {
    began_at: UnixMillis,
    model_calls: u32,
    dispatches: usize,
    awaits: Option<String>,
}

/// Returns what the session of `busy` does. Its turn is missing if no broker reports it.
async fn look_at_session(bus: &Bus, busy: &BusySession) -> SessionLook {
    let session = &busy.session;
    let question = json!({ "persona": session.persona, "session": session.session });
    let asked = bus.request::<_, Shown>("nexus.svc.session.show", Headers::new(), &question, ANSWER);
    let (running, queued) = match asked.await {
        Ok(shown) => {
            let of_turn = shown.running.as_ref().map_or(0, |running| running.dispatches);
            (shown.running, shown.waiting + of_turn)
        }
        // It has never run, so that everything waits.
        Err(RequestError::Service { code: 404, .. }) => (None, usize::try_from(busy.dispatches).unwrap_or(MAX_COUNTED)),
        Err(_) => (None, 0),
    };

    SessionLook {
        session: session.to_string(),
        model_calls: running.as_ref().map(|running| running.model_calls),
        began_at: running.as_ref().map(|running| running.began_at),
        awaits: running.and_then(|running| running.awaits),
        queued: queued.min(MAX_COUNTED),
    }
}

#[cfg(test)]
mod tests {
    use shared::bus::{OutgoingMessage, claim};
    use shared::model::event::{Event, EventId};
    use shared::model::session::SessionRef;
    use shared::wire::headers::TraceCarrier;
    use shared::wire::subject;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_look_finds_what_waits_without_anybody_there() {
        let (_server, bus) = shared::testing::world().await;
        let _services = crate::testing::serve_operators(&bus).await;
        let event = Event::new(EventId::parse("x:1").expect("an id"), "webchat", "v1", UnixMillis(1));
        let out = OutgoingMessage::new(subject::event(&event), &event);
        bus.publish(out).await.expect("stored");

        for name in ["a", "b", "c"] {
            let session = SessionRef {
                persona: "default".to_owned(),
                session: name.to_owned(),
            };
            claim::publish(&bus, &session, &TraceCarrier::default())
                .await
                .expect("claimed");
        }

        let look = look(&bus, 2).await.expect("a look");
        assert_eq!((look.behind, look.busy, look.sessions.len()), (1, 3, 2));
        assert_eq!(look.sessions[0].queued, 0);

        let board = Board::of(None, &look);
        let claims = board
            .streams
            .iter()
            .find(|stream| stream.stream == streams::CLAIMS)
            .expect("shown");

        assert_eq!((claims.messages, claims.waits), (3, true));
    }
}
