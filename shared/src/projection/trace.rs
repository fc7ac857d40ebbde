//! Causal chain of an event, from the records: event → hooks → dispatches → turns → tool calls, approvals, messages to
//! agents, firings of intents, deliveries → sent events, and their chains in turn.
//!
//! Every link is an id: the dispatch's in the invocation, turn id = delivery id, sent event `out:{delivery}/{part}`,
//! and `nexus_caused` for the events that a turn caused itself. The walk is bounded: an event and a turn are visited
//! once, at most [`MAX_VISITED`] of them, and no deeper than events may lead to each other.

mod turn;

use std::collections::HashSet;

use rusqlite::{Connection, OptionalExtension, Row};

use super::api::{EventRow, EventTrace, MAX_MAY_BE_HELD, MAX_TRACE_STEPS, TraceStage, TraceStep};
use super::given_up::GivenUp;
use super::query;
use crate::model::event::{EventDirection, MAX_HOPS};
use crate::model::ledger::DropReason;
use crate::model::time::UnixMillis;
use crate::wire::held::{HeldKind, HeldMessage, HeldUntil, held_key};

/// Maximum number of events and turns that one walk visits. A longer chain is cut, and never called complete.
const MAX_VISITED: usize = 20_000;
/// Deepest event, counted from the traced one: beyond [`MAX_HOPS`] no event leads to a turn, but its parts are sent.
const MAX_DEPTH: u8 = MAX_HOPS + 2;

/// Returns every step that the event `id` led to; `given_up` contains the dead letters.
pub(super) fn trace_event(connection: &Connection, id: &str, given_up: GivenUp) -> Result<EventTrace, rusqlite::Error> {
    let Some(event) = query::find_event(connection, id)? else {
        return Ok(EventTrace::default());
    };

    let mut walk = TraceWalk {
        connection,
        given_up,
        steps: Vec::new(),
        visited: HashSet::new(),
        complete: true,
        cut: false,
        may_be_held: Vec::new(),
    };

    walk.walk_event(&event, 0)?;
    Ok(EventTrace {
        event: Some(event),
        steps: walk.steps,
        complete: walk.complete,
        cut: walk.cut,
        may_be_held: walk.may_be_held,
    })
}

struct TraceWalk<'c> {
    connection: &'c Connection,
    given_up: GivenUp,
    steps: Vec<TraceStep>,
    visited: HashSet<String>,
    complete: bool,
    cut: bool,
    may_be_held: Vec<String>,
}

/// State of a message that may be held, as far as it is known.
enum HeldRow {
    /// Not asked for yet, or an operator has yet to decide.
    Open(&'static str),
    /// An operator has decided.
    Decided(HeldUntil),
    /// It is not held.
    No,
}

impl TraceWalk<'_> {
    /// Returns whether the walk visits the event or turn `id`. It does not if it was visited before, or if a limit is
    /// reached; the chain is then cut and not complete.
    fn enter_node(&mut self, id: &str, depth: u8) -> bool {
        if self.visited.contains(id) {
            return false;
        }
        if depth > MAX_DEPTH || self.visited.len() >= MAX_VISITED {
            self.cut = true;
            self.complete = false;
            return false;
        }
        self.visited.insert(id.to_owned())
    }

    fn walk_event(&mut self, event: &EventRow, depth: u8) -> Result<(), rusqlite::Error> {
        if !self.enter_node(event.id.as_str(), depth) {
            return Ok(());
        }

        // The first event may be one that was sent, too; it is then the subject of the question, not a result.
        let stage = if depth > 0 && event.direction == EventDirection::Sent {
            TraceStage::Sent
        } else {
            TraceStage::Event
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

        self.walk_hooks(event, depth)?;

        for dispatch in self.read_dispatches(event.id.as_str())? {
            self.walk_dispatch(&dispatch, depth)?;
        }

        self.walk_cards(event.id.as_str(), depth)
    }

    /// Adds the hooks' outcomes. An event without a record of them was given up or is still being evaluated; an event
    /// with deferred hooks is still being evaluated.
    fn walk_hooks(&mut self, event: &EventRow, depth: u8) -> Result<(), rusqlite::Error> {
        let event_id = event.id.as_str();
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
            match self.given_up.event_reason(event.sequence).map(str::to_owned) {
                Some(why) => self.step(depth, TraceStage::DeadLetter, event_id, event.published_at, None, why),
                None => self.complete = false,
            }
            return Ok(());
        };

        // A record without hooks still shows that the event was evaluated.
        let hooks = self.read_outcomes(event_id)?;
        if hooks.is_empty() {
            let detail = format!("no hook fired, {passed} passed (evaluated by {by})");
            let took = millis_between(started, finished);
            self.step(
                depth,
                TraceStage::Hook,
                event_id,
                UnixMillis(started),
                Some(took),
                detail,
            );
        }

        for hook in hooks {
            let at = UnixMillis(started);
            let detail = hook.detail();
            if hook.outcome == "deferred" && self.given_up.event_reason(event.sequence).is_none() {
                self.complete = false;
            }
            self.step(depth, TraceStage::Hook, &hook.id, at, Some(hook.latency_ms), detail);
        }

        Ok(())
    }

    fn read_outcomes(&self, event_id: &str) -> Result<Vec<HookOutcomeRow>, rusqlite::Error> {
        let mut statement = self.connection.prepare_cached(
            "SELECT hook_id, outcome, coalesce(dispatch_id, reason, error), latency_ms FROM hook_invocations
             WHERE event_id = ?1 ORDER BY hook_id",
        )?;
        let rows = statement.query_map([event_id], |row| {
            Ok(HookOutcomeRow {
                id: row.get(0)?,
                outcome: row.get(1)?,
                what: row.get(2)?,
                latency_ms: row.get(3)?,
            })
        })?;

        rows.collect()
    }

    /// Returns the dispatches that the invocations name, with their rows from `DISPATCHES`; only the latter if the
    /// record of the invocations is not there yet.
    fn read_dispatches(&self, event_id: &str) -> Result<Vec<DispatchRow>, rusqlite::Error> {
        let mut statement = self.connection.prepare_cached(
            "SELECT coalesce(d.id, i.dispatch_id), d.hook_id, d.session_id, d.queue_mode, d.published_at
               FROM hook_invocations i LEFT JOIN nexus_dispatches d ON d.event_id = i.event_id AND d.id = i.dispatch_id
               WHERE i.event_id = ?1 AND i.dispatch_id IS NOT NULL
             UNION
             SELECT id, hook_id, session_id, queue_mode, published_at FROM nexus_dispatches WHERE event_id = ?1
             ORDER BY 5, 1",
        )?;

        let rows = statement.query_map([event_id], DispatchRow::read)?;
        rows.collect()
    }

    fn walk_dispatch(&mut self, dispatch: &DispatchRow, depth: u8) -> Result<(), rusqlite::Error> {
        let Some(stored) = &dispatch.stored else {
            // Its stream may have lost it, and then it may be held.
            return self.held_dispatch(&dispatch.id, None, depth);
        };
        let detail = format!("{} to session {} ({})", stored.hook, stored.session, stored.queue_mode);
        self.step(
            depth,
            TraceStage::Dispatch,
            &dispatch.id,
            UnixMillis(stored.published_at),
            None,
            detail,
        );

        // The step is missing if the trace was cut before it.
        if let Some(step) = self.steps.last_mut().filter(|step| step.id == dispatch.id) {
            step.session = Some(stored.session.clone());
        }

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
            Some((Some(turn), _, _)) => self.walk_turn(&turn, depth)?,
            Some((None, Some(dropped), at)) if dropped == DropReason::Held.name() => {
                self.held_dispatch(&dispatch.id, Some(UnixMillis(at)), depth)?;
            }
            Some((None, dropped, at)) => {
                let detail = format!("no turn: {}", dropped.unwrap_or_default());
                self.step(depth, TraceStage::Turn, &dispatch.id, UnixMillis(at), None, detail);
            }
        }

        Ok(())
    }

    /// Looks up the hold on the message that `kind` and `id` name.
    fn hold(&mut self, kind: HeldKind, id: &str) -> HeldRow {
        let Ok(id) = id.parse() else { return HeldRow::No };
        let key = held_key(kind, id);
        match self.given_up.held(&key) {
            None => {
                if self.may_be_held.len() < MAX_MAY_BE_HELD {
                    self.may_be_held.push(key);
                }
                HeldRow::Open("held")
            }
            Some(Some(HeldUntil::Decided)) => HeldRow::Open("held until an operator decides (`nexus recover`)"),
            Some(Some(wanted @ (HeldUntil::Redo | HeldUntil::Skip))) => HeldRow::Decided(wanted),
            Some(None) => HeldRow::No,
        }
    }

    /// A dispatch that was not run because it is held, as the ledger says `since` then, or that its stream does not have.
    fn held_dispatch(&mut self, id: &str, since: Option<UnixMillis>, depth: u8) -> Result<(), rusqlite::Error> {
        let detail = match self.hold(HeldKind::Dispatch, id) {
            HeldRow::Open(why) => {
                self.complete = false;
                why
            }
            HeldRow::Decided(HeldUntil::Redo) => {
                // The one that is published instead is told of as any other, once it is there.
                self.complete &= self.is_redone(id)?;
                "held; processed again as another dispatch (`recover redo`)"
            }
            HeldRow::Decided(HeldUntil::Skip | HeldUntil::Decided) => "held; marked as processed (`recover skip`)",
            HeldRow::No => {
                self.complete &= since.is_some();
                DropReason::Held.name()
            }
        };

        if let Some(since) = since {
            self.step(depth, TraceStage::Turn, id, since, None, format!("no turn: {detail}"));
        }
        Ok(())
    }

    /// Whether the dispatch is there that is published because an operator wants `id` done once more.
    fn is_redone(&self, id: &str) -> Result<bool, rusqlite::Error> {
        let Ok(id) = id.parse() else { return Ok(true) };
        let redone = HeldMessage::redone_id(id).to_string();
        let mut found = self
            .connection
            .prepare_cached("SELECT 1 FROM nexus_dispatches WHERE id = ?1")?;
        found.exists([redone])
    }

    fn step(
        &mut self,
        depth: u8,
        stage: TraceStage,
        id: &str,
        at_ms: UnixMillis,
        took_ms: Option<f64>,
        detail: String,
    ) {
        if self.steps.len() >= MAX_TRACE_STEPS {
            self.cut = true;
            return;
        }

        self.steps.push(TraceStep {
            at_ms,
            stage,
            id: id.to_owned(),
            detail,
            took_ms,
            depth,
            session: None,
        });
    }
}

struct HookOutcomeRow {
    id: String,
    outcome: String,
    what: Option<String>,
    latency_ms: f64,
}

impl HookOutcomeRow {
    fn detail(&self) -> String {
        match &self.what {
            Some(what) => format!("{}: {what}", self.outcome),
            None => self.outcome.clone(),
        }
    }
}

struct DispatchRow {
    id: String,
    /// Row of its message; `None` if that was not seen yet.
    stored: Option<StoredDispatch>,
}

struct StoredDispatch {
    hook: String,
    session: String,
    queue_mode: String,
    published_at: i64,
}

impl DispatchRow {
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

fn millis_between(started: i64, finished: i64) -> f64 {
    finished.saturating_sub(started) as f64
}
