//! `nexus top`: rates and backlogs of the moment, on a screen that refreshes itself, or in lines if there is no
//! terminal.
//!
//! All figures are requested from the server: positions of streams, sessions with claims, and the status of a few of
//! those sessions. No stream is followed, so that watching costs the watched system little.

pub mod model;
pub mod view;

use std::io::IsTerminal as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use ratatui::crossterm::event::{Event, KeyCode, KeyModifiers, poll, read};
use serde::Deserialize;
use serde_json::json;
use shared::bus::Bus;
use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::invocation::EventInvocations;
use shared::model::ledger::LedgerCursor;
use shared::model::session::SessionRef;
use shared::model::time::UnixMillis;
use shared::wire::headers::Headers;
use shared::wire::subject;
use shared::wire::topology::streams;

use crate::args::{Common, TopOptions};
use crate::connect::connect_bus;
use crate::output::{escape_controls, is_for_people, json_line, print, reader_zone};
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

/// Takes one look at the bus, with at most `most` sessions.
///
/// # Errors
/// Fails if the server cannot be reached.
pub async fn look(bus: &Bus, most: usize) -> Result<Look> {
    let mut found = Vec::new();
    for (name, waits) in STREAMS {
        let state = bus.stream_state(name).await?;
        found.push(StreamLook {
            name,
            last: state.last,
            messages: state.messages,
            waits,
        });
    }

    let claims = bus.list_subjects(streams::CLAIMS, "nexus.claim.>").await?;
    let mut sessions = Vec::new();
    for claim in claims.keys().take(most) {
        sessions.extend(session(bus, claim).await);
    }

    let last = |name| {
        found
            .iter()
            .find(|stream| stream.name == name)
            .map_or(0, |stream| stream.last)
    };

    let evaluated = match last(streams::INVOCATIONS) {
        0 => 0,
        newest => match bus.at_sequence(streams::INVOCATIONS, newest).await? {
            Some(stored) => stored.decode::<EventInvocations>().map_or(0, |record| record.event_seq),
            None => 0,
        },
    };

    Ok(Look {
        at: SystemClock.now(),
        behind: last(streams::EVENTS).saturating_sub(evaluated),
        streams: found,
        busy: claims.len(),
        sessions,
    })
}

/// The part of a broker's answer about a session that is used here.
#[derive(Debug, Deserialize)]
struct Shown {
    running: Option<Running>,
    cursor: LedgerCursor,
}

#[derive(Debug, Deserialize)]
struct Running {
    began_at: UnixMillis,
    model_calls: u32,
    awaits: Option<String>,
}

/// Returns the session whose claim is at `claim`. Its turn is missing if no broker reports it.
async fn session(bus: &Bus, claim: &str) -> Option<SessionLook> {
    let (persona, session) = subject::parse_session(claim)?;
    let name = SessionRef {
        persona: subject::untoken(persona)?,
        session: subject::untoken(session)?,
    };

    let question = json!({ "persona": name.persona, "session": name.session });
    let asked = bus.request::<_, Shown>("nexus.svc.session.show", Headers::new(), &question, ANSWER);
    let (running, cursor) = match asked.await {
        Ok(shown) => (shown.running, shown.cursor),
        // The session has never run, or no broker answers.
        Err(_) => (None, LedgerCursor::default()),
    };

    let from = cursor.floor + 1;
    let dispatches = bus
        .read_history(streams::DISPATCHES, &subject::dispatch(&name), from, MAX_COUNTED)
        .await;
    let queued = dispatches
        .ok()?
        .iter()
        .filter(|stored| !cursor.contains(stored.sequence))
        .count();

    Some(SessionLook {
        session: name.to_string(),
        model_calls: running.as_ref().map(|running| running.model_calls),
        began_at: running.as_ref().map(|running| running.began_at),
        awaits: running.and_then(|running| running.awaits),
        queued,
    })
}

#[cfg(test)]
mod tests {
    use shared::bus::{OutgoingMessage, claim};
    use shared::model::event::{Event, EventId};
    use shared::wire::headers::TraceCarrier;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_look_finds_what_waits_without_anybody_there() {
        let (_server, bus) = shared::testing::world().await;
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
