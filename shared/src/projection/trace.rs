//! The causal chain of an event, from what the ledgers say: event → hooks → dispatches → turns →
//! deliveries → sent events, and their chains in turn.
//!
//! Nothing is stored for it: every link is an id that follows from the one before (dispatch id in the
//! invocation, turn id = delivery id, sent event `out:{delivery}/{part}`).

use std::collections::HashSet;

use rusqlite::{Connection, OptionalExtension, Row};

use super::api::{EventRow, MAX_TRACE_STEPS, Stage, Trace, TraceStep};
use super::query;
use crate::model::event::{Direction, MAX_HOPS};
use crate::model::time::UnixMillis;

/// Everything that the event `id` led to.
pub(super) fn trace(connection: &Connection, id: &str) -> Result<Trace, rusqlite::Error> {
    let Some(event) = query::event(connection, id)? else {
        return Ok(Trace::default());
    };
    let mut walk = Walk {
        connection,
        steps: Vec::new(),
        visited: HashSet::new(),
        complete: true,
    };
    walk.event(&event, 0)?;
    Ok(Trace {
        event: Some(event),
        steps: walk.steps,
        complete: walk.complete,
    })
}

struct Walk<'c> {
    connection: &'c Connection,
    steps: Vec<TraceStep>,
    visited: HashSet<String>,
    complete: bool,
}

impl Walk<'_> {
    fn event(&mut self, event: &EventRow, depth: u8) -> Result<(), rusqlite::Error> {
        if depth > MAX_HOPS || !self.visited.insert(event.id.to_string()) {
            return Ok(());
        }
        let stage = if depth > 0 && event.direction == Direction::Sent {
            Stage::Sent
        } else {
            Stage::Event
        };
        let place = format!("{}/{}/{}", event.channel, event.account, event.peer_id);
        self.step(
            depth,
            stage,
            event.id.as_str(),
            event.published_at,
            None,
            format!("{place} (sequence {})", event.sequence),
        );
        self.hooks(event.id.as_str(), depth)?;
        for dispatch in self.dispatches(event.id.as_str())? {
            self.dispatch(&dispatch, depth)?;
        }
        Ok(())
    }

    /// The hooks' outcomes; an event without a record of them is still being evaluated.
    fn hooks(&mut self, event_id: &str, depth: u8) -> Result<(), rusqlite::Error> {
        let mut evaluation = self.connection.prepare_cached(
            "SELECT evaluated_by, started_at, finished_at, passed FROM nexus_evaluations WHERE event_id = ?1",
        )?;
        let Some((by, started, finished, passed)) = evaluation
            .query_row([event_id], |row| {
                Ok((
                    row.get::<_, String>(0)?,
                    row.get(1)?,
                    row.get(2)?,
                    row.get::<_, u32>(3)?,
                ))
            })
            .optional()?
        else {
            self.complete = false;
            return Ok(());
        };
        let hooks = self.outcomes(event_id)?;
        if hooks.is_empty() {
            let detail = format!("no hook fired, {passed} passed (evaluated by {by})");
            let took = millis_between(started, finished);
            self.step(depth, Stage::Hook, event_id, UnixMillis(started), Some(took), detail);
        }
        for hook in hooks {
            let at = UnixMillis(started);
            let detail = hook.detail();
            self.step(depth, Stage::Hook, &hook.id, at, Some(hook.latency_ms), detail);
        }
        Ok(())
    }

    fn outcomes(&self, event_id: &str) -> Result<Vec<Outcome>, rusqlite::Error> {
        let mut statement = self.connection.prepare_cached(
            "SELECT hook_id, outcome, coalesce(dispatch_id, reason, error), latency_ms FROM hook_invocations
             WHERE event_id = ?1 ORDER BY hook_id",
        )?;
        let rows = statement.query_map([event_id], |row| {
            Ok(Outcome {
                id: row.get(0)?,
                outcome: row.get(1)?,
                what: row.get(2)?,
                latency_ms: row.get(3)?,
            })
        })?;
        rows.collect()
    }

    /// Dispatches that the invocations name, with what `DISPATCHES` knows of them; the latter alone where
    /// the record of the invocations is not there yet.
    fn dispatches(&self, event_id: &str) -> Result<Vec<Dispatch>, rusqlite::Error> {
        let mut statement = self.connection.prepare_cached(
            "SELECT coalesce(d.id, i.dispatch_id), d.hook_id, d.session_id, d.queue_mode, d.published_at
               FROM hook_invocations i LEFT JOIN nexus_dispatches d ON d.event_id = i.event_id AND d.id = i.dispatch_id
               WHERE i.event_id = ?1 AND i.dispatch_id IS NOT NULL
             UNION
             SELECT id, hook_id, session_id, queue_mode, published_at FROM nexus_dispatches WHERE event_id = ?1
             ORDER BY 5, 1",
        )?;
        let rows = statement.query_map([event_id], Dispatch::read)?;
        rows.collect()
    }

    fn dispatch(&mut self, dispatch: &Dispatch, depth: u8) -> Result<(), rusqlite::Error> {
        let Some(stored) = &dispatch.stored else {
            self.complete = false;
            return Ok(());
        };
        let detail = format!("{} to session {} ({})", stored.hook, stored.session, stored.queue_mode);
        self.step(
            depth,
            Stage::Dispatch,
            &dispatch.id,
            UnixMillis(stored.published_at),
            None,
            detail,
        );
        let mut end = self
            .connection
            .prepare_cached("SELECT turn_id, dropped, at FROM nexus_dispatch_ends WHERE dispatch_id = ?1")?;
        let end = end
            .query_row([&dispatch.id], |row| {
                Ok((
                    row.get::<_, Option<String>>(0)?,
                    row.get::<_, Option<String>>(1)?,
                    row.get(2)?,
                ))
            })
            .optional()?;
        match end {
            None => self.complete = false,
            Some((Some(turn), _, _)) => self.turn(&turn, depth)?,
            Some((None, dropped, at)) => {
                let detail = format!("no turn: {}", dropped.unwrap_or_default());
                self.step(depth, Stage::Turn, &dispatch.id, UnixMillis(at), None, detail);
            }
        }
        Ok(())
    }

    fn turn(&mut self, turn: &str, depth: u8) -> Result<(), rusqlite::Error> {
        // Several dispatches may have become one turn, which is told once.
        if !self.visited.insert(turn.to_owned()) {
            return Ok(());
        }
        let mut statement = self.connection.prepare_cached(
            "SELECT session_id, status, outcome, coalesce(started_at, finished_at, 0), finished_at, replied
             FROM agent_turns WHERE id = ?1",
        )?;
        let Some(row) = statement.query_row([turn], TurnRow::read).optional()? else {
            self.complete = false;
            return Ok(());
        };
        let outcome = row.outcome.map(|outcome| format!(": {outcome}")).unwrap_or_default();
        let took = row.finished_at.map(|finished| millis_between(row.started_at, finished));
        let detail = format!("{} in session {}{outcome}", row.status, row.session);
        self.step(depth, Stage::Turn, turn, UnixMillis(row.started_at), took, detail);
        if row.finished_at.is_none() {
            self.complete = false;
        } else if row.replied {
            self.delivery(turn, depth)?;
        }
        Ok(())
    }

    fn delivery(&mut self, id: &str, depth: u8) -> Result<(), rusqlite::Error> {
        let mut statement = self.connection.prepare_cached(
            "SELECT channel, status, started_at, updated_at, attempts, parts, reason FROM deliveries WHERE id = ?1",
        )?;
        let Some(row) = statement.query_row([id], DeliveryRow::read).optional()? else {
            self.complete = false;
            return Ok(());
        };
        let reason = row.reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        let detail = format!("{} on {}, attempts {}{reason}", row.status, row.channel, row.attempts);
        let over = matches!(row.status.as_str(), "delivered" | "gave_up" | "denied_by_policy");
        let took = over.then(|| millis_between(row.started_at, row.updated_at));
        self.step(depth, Stage::Delivery, id, UnixMillis(row.started_at), took, detail);
        let sent = self.sent(id)?;
        if !over || sent.len() < row.parts.unwrap_or(0) as usize {
            self.complete = false;
        }
        for event in sent {
            self.event(&event, depth + 1)?;
        }
        Ok(())
    }

    /// Events `out:{delivery}/{part}` (`0` is the character after `/`).
    fn sent(&self, delivery: &str) -> Result<Vec<EventRow>, rusqlite::Error> {
        let mut ids = self
            .connection
            .prepare_cached("SELECT id FROM events WHERE id > ?1 AND id < ?2 ORDER BY sequence LIMIT 100")?;
        let ids: Vec<String> = ids
            .query_map([format!("out:{delivery}/"), format!("out:{delivery}0")], |row| {
                row.get(0)
            })?
            .collect::<Result<_, _>>()?;
        ids.iter()
            .filter_map(|id| query::event(self.connection, id).transpose())
            .collect()
    }

    fn step(&mut self, depth: u8, stage: Stage, id: &str, at_ms: UnixMillis, took_ms: Option<f64>, detail: String) {
        if self.steps.len() >= MAX_TRACE_STEPS {
            self.complete = false;
            return;
        }
        self.steps.push(TraceStep {
            at_ms,
            stage,
            id: id.to_owned(),
            detail,
            took_ms,
            depth,
        });
    }
}

struct Outcome {
    id: String,
    outcome: String,
    what: Option<String>,
    latency_ms: f64,
}

impl Outcome {
    fn detail(&self) -> String {
        match &self.what {
            Some(what) => format!("{}: {what}", self.outcome),
            None => self.outcome.clone(),
        }
    }
}

struct Dispatch {
    id: String,
    /// None = its message was not seen yet.
    stored: Option<StoredDispatch>,
}

struct StoredDispatch {
    hook: String,
    session: String,
    queue_mode: String,
    published_at: i64,
}

impl Dispatch {
    fn read(row: &Row<'_>) -> Result<Self, rusqlite::Error> {
        let stored = match row.get::<_, Option<String>>(1)? {
            None => None,
            Some(hook) => Some(StoredDispatch {
                hook,
                session: row.get(2)?,
                queue_mode: row.get(3)?,
                published_at: row.get(4)?,
            }),
        };
        Ok(Self {
            id: row.get(0)?,
            stored,
        })
    }
}

struct TurnRow {
    session: String,
    status: String,
    outcome: Option<String>,
    started_at: i64,
    finished_at: Option<i64>,
    replied: bool,
}

impl TurnRow {
    fn read(row: &Row<'_>) -> Result<Self, rusqlite::Error> {
        Ok(Self {
            session: row.get(0)?,
            status: row.get(1)?,
            outcome: row.get(2)?,
            started_at: row.get(3)?,
            finished_at: row.get(4)?,
            replied: row.get(5)?,
        })
    }
}

struct DeliveryRow {
    channel: String,
    status: String,
    started_at: i64,
    updated_at: i64,
    attempts: u32,
    parts: Option<u32>,
    reason: Option<String>,
}

impl DeliveryRow {
    fn read(row: &Row<'_>) -> Result<Self, rusqlite::Error> {
        Ok(Self {
            channel: row.get(0)?,
            status: row.get(1)?,
            started_at: row.get(2)?,
            updated_at: row.get(3)?,
            attempts: row.get(4)?,
            parts: row.get(5)?,
            reason: row.get(6)?,
        })
    }
}

fn millis_between(started: i64, finished: i64) -> f64 {
    finished.saturating_sub(started) as f64
}
