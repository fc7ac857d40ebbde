//! Steps of a turn and of its consequences.

use rusqlite::{OptionalExtension, Row};
use serde_json::Value;

use super::super::api::{EventRow, TraceStage};
use super::super::query;
use super::{HeldRow, TraceWalk, millis_between};
use crate::model::time::UnixMillis;
use crate::wire::held::{HeldKind, HeldUntil};

/// Name of the tool that sends a message to another agent; its result names the event.
const SENDS: &str = "send_message_to_agent";

/// Outcome shown for a delivery that was held and does not leave.
const SKIPPED: &str = "held; marked as processed (`recover skip`)";

impl TraceWalk<'_> {
    pub(super) fn walk_turn(&mut self, turn: &str, depth: u8) -> Result<(), rusqlite::Error> {
        // Several dispatches may have been merged into one turn, which is shown once.
        if !self.enter_node(turn, depth) {
            return Ok(());
        }

        let mut statement = self.connection.prepare_cached(
            "SELECT session_id, status, outcome, coalesce(started_at, finished_at, 0), finished_at, replied
             FROM agent_turns WHERE id = ?1",
        )?;
        // The ledger names the turn, and the read model may not have reached its record.
        let Some(row) = statement.query_row([turn], TurnRow::read).optional()? else {
            self.complete = false;
            return Ok(());
        };

        let outcome = row.outcome.map(|outcome| format!(": {outcome}")).unwrap_or_default();
        let took = row.finished_at.map(|finished| millis_between(row.started_at, finished));
        let detail = format!("{} in session {}{outcome}", row.status, row.session);
        self.step(depth, TraceStage::Turn, turn, UnixMillis(row.started_at), took, detail);

        // An unfinished turn may still cause more.
        let is_over = row.finished_at.is_some();
        self.complete &= is_over;
        self.walk_approvals(turn, depth)?;
        self.walk_tools(turn, depth)?;
        self.owed_intents(turn, depth)?;
        self.walk_caused(turn, depth)?;

        if is_over && row.replied {
            let over_at = UnixMillis(row.finished_at.unwrap_or(row.started_at));
            self.walk_delivery(turn, over_at, depth)?;
        }

        Ok(())
    }

    /// Adds the approvals that were requested in the turn. An approval without a decision is in progress.
    fn walk_approvals(&mut self, turn: &str, depth: u8) -> Result<(), rusqlite::Error> {
        let mut statement = self.connection.prepare_cached(
            "SELECT id, coalesce(tool, ''), status, coalesce(asked_at, decided_at, 0), decided_at FROM nexus_approvals
             WHERE turn_id = ?1 ORDER BY 4, 1",
        )?;
        let rows: Vec<ApprovalRow> = statement
            .query_map([turn], ApprovalRow::read)?
            .collect::<Result<_, _>>()?;
        for row in rows {
            self.complete &= row.status != "pending";
            let took = row.decided_at.map(|decided| millis_between(row.asked_at, decided));
            let detail = format!("{}: {}", row.tool, row.status);
            self.step(
                depth,
                TraceStage::Approval,
                &row.id,
                UnixMillis(row.asked_at),
                took,
                detail,
            );
        }

        Ok(())
    }

    /// Adds the turn's tool calls. A call that is not over is in progress as long as its turn is. A message to an
    /// agent that the read model has not seen yet is in progress.
    fn walk_tools(&mut self, turn: &str, depth: u8) -> Result<(), rusqlite::Error> {
        let mut statement = self.connection.prepare_cached(
            "SELECT id, coalesce(name, ''), outcome, coalesce(started_at, finished_at, 0), finished_at
             FROM agent_tool_calls WHERE turn_id = ?1 AND (started_at IS NOT NULL OR finished_at IS NOT NULL)
             ORDER BY 4, 1",
        )?;
        let rows: Vec<ToolRow> = statement.query_map([turn], ToolRow::read)?.collect::<Result<_, _>>()?;
        for row in rows {
            let outcome: Value = row
                .outcome
                .as_deref()
                .and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or_default();

            if let Some(sent) = (row.name == SENDS).then(|| sent_by(&outcome)).flatten()
                && query::find_event(self.connection, sent)?.is_none()
            {
                self.complete = false;
            }

            let took = row.finished_at.map(|finished| millis_between(row.started_at, finished));
            let detail = format!("{}: {}", row.name, outcome_text(&outcome, row.finished_at.is_some()));
            // Ids of calls are unique only within their turn.
            let id = format!("{turn}/{}", row.id);
            self.step(depth, TraceStage::Tool, &id, UnixMillis(row.started_at), took, detail);
        }

        Ok(())
    }

    /// Adds the intents of the turn that the scheduler has not answered: it is asked again until it does.
    fn owed_intents(&mut self, turn: &str, depth: u8) -> Result<(), rusqlite::Error> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT id, kind, since FROM nexus_owed_intents WHERE turn_id = ?1 ORDER BY id")?;
        let rows: Vec<(String, String, i64)> = statement
            .query_map([turn], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
            .collect::<Result<_, _>>()?;
        for (id, kind, since) in rows {
            self.complete = false;
            let detail = format!("{kind}: not answered by the scheduler yet");
            self.step(depth, TraceStage::Intent, &id, UnixMillis(since), None, detail);
        }

        Ok(())
    }

    /// Adds the messages to agents and firings of intents, each with its own chain.
    fn walk_caused(&mut self, turn: &str, depth: u8) -> Result<(), rusqlite::Error> {
        let mut statement = self.connection.prepare_cached(
            "SELECT e.id FROM nexus_caused c JOIN events e ON e.id = c.event_id WHERE c.turn_id = ?1 ORDER BY e.sequence",
        )?;
        let ids: Vec<String> = statement
            .query_map([turn], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        for id in ids {
            if let Some(event) = query::find_event(self.connection, &id)? {
                self.walk_event(&event, depth + 1)?;
            }
        }

        Ok(())
    }

    /// Adds the deliveries that the event caused beside the replies of its turns: cards of approvals, escalations,
    /// notes about them.
    pub(super) fn walk_cards(&mut self, event_id: &str, depth: u8) -> Result<(), rusqlite::Error> {
        let mut statement = self
            .connection
            .prepare_cached("SELECT id, started_at FROM deliveries WHERE event_id = ?1 ORDER BY started_at, id")?;
        let rows: Vec<(String, i64)> = statement
            .query_map([event_id], |row| Ok((row.get(0)?, row.get(1)?)))?
            .collect::<Result<_, _>>()?;
        for (id, started_at) in rows {
            self.walk_delivery(&id, UnixMillis(started_at), depth)?;
        }

        Ok(())
    }

    /// Adds the delivery of the reply `id`, which was committed at `at`; only once.
    fn walk_delivery(&mut self, id: &str, at: UnixMillis, depth: u8) -> Result<(), rusqlite::Error> {
        if !self.enter_node(&format!("delivery {id}"), depth) {
            return Ok(());
        }

        let mut statement = self.connection.prepare_cached(
            "SELECT channel, status, started_at, updated_at, attempts, parts, reason FROM deliveries WHERE id = ?1",
        )?;
        let Some(row) = statement.query_row([id], DeliveryRow::read).optional()? else {
            match self.given_up.reply_reason(id).map(str::to_owned) {
                Some(why) => self.step(depth, TraceStage::DeadLetter, id, at, None, why),
                None => {
                    let detail = self.held_delivery(id);
                    if let Some(detail) = detail {
                        self.step(depth, TraceStage::Delivery, id, at, None, detail.to_owned());
                    }
                }
            }
            return Ok(());
        };

        let reason = row.reason.map(|reason| format!(": {reason}")).unwrap_or_default();
        let detail = format!("{} on {}, attempts {}{reason}", row.status, row.channel, row.attempts);
        let has_ended = matches!(row.status.as_str(), "delivered" | "gave_up" | "denied_by_policy");
        let held = if has_ended { None } else { self.held_delivery(id) };
        let over = has_ended || held == Some(SKIPPED);
        let detail = held.map_or(detail.clone(), |held| format!("{detail}; {held}"));
        let took = over.then(|| millis_between(row.started_at, row.updated_at));
        self.step(
            depth,
            TraceStage::Delivery,
            id,
            UnixMillis(row.started_at),
            took,
            detail,
        );

        let sent = self.read_sent(id)?;
        // A delivered part that is not an event yet is in progress.
        if !over || (has_ended && sent.len() < row.parts.unwrap_or(0) as usize) {
            self.complete = false;
        }

        for event in sent {
            self.walk_event(&event, depth + 1)?;
        }

        Ok(())
    }

    /// Returns the reason why the delivery `id`, which has not ended, is held; `None` if it is not, as far as is known.
    /// It is in progress unless an operator decided that it was done.
    fn held_delivery(&mut self, id: &str) -> Option<&'static str> {
        let held = match self.hold(HeldKind::Delivery, id) {
            HeldRow::Decided(HeldUntil::Skip) => return Some(SKIPPED),
            // Until KV `held` was read, it is in progress as any other.
            HeldRow::Open(why) => self.given_up.is_held_known().then_some(why),
            HeldRow::Decided(HeldUntil::Redo | HeldUntil::Decided) | HeldRow::No => None,
        };
        self.complete = false;

        held
    }

    /// Returns the events `out:{delivery}/{part}` (`0` is the character after `/`).
    fn read_sent(&self, delivery: &str) -> Result<Vec<EventRow>, rusqlite::Error> {
        let mut ids = self
            .connection
            .prepare_cached("SELECT id FROM events WHERE id > ?1 AND id < ?2 ORDER BY sequence LIMIT 1000")?;
        let ids: Vec<String> = ids
            .query_map([format!("out:{delivery}/"), format!("out:{delivery}0")], |row| {
                row.get(0)
            })?
            .collect::<Result<_, _>>()?;

        ids.iter()
            .filter_map(|id| query::find_event(self.connection, id).transpose())
            .collect()
    }
}

/// Returns the id of the event that a message to an agent became, from the call's `outcome`.
fn sent_by(outcome: &Value) -> Option<&str> {
    outcome.get("result")?.get("sent")?.as_str()
}

/// Returns the outcome of a call in one word, or its error if there is one.
fn outcome_text(outcome: &Value, is_over: bool) -> String {
    let kind = outcome.get("kind").and_then(Value::as_str);
    let why = outcome
        .get("error")
        .or_else(|| outcome.get("reason"))
        .and_then(Value::as_str);
    match (kind, why) {
        (_, Some(why)) => why.chars().take(200).collect(),
        (Some(kind), None) => kind.to_owned(),
        (None, None) if is_over => "done".to_owned(),
        (None, None) => "in progress".to_owned(),
    }
}

struct ApprovalRow {
    id: String,
    tool: String,
    status: String,
    asked_at: i64,
    decided_at: Option<i64>,
}

impl ApprovalRow {
    fn read(row: &Row<'_>) -> Result<Self, rusqlite::Error> {
        Ok(Self {
            id: row.get(0)?,
            tool: row.get(1)?,
            status: row.get(2)?,
            asked_at: row.get(3)?,
            decided_at: row.get(4)?,
        })
    }
}

struct ToolRow {
    id: String,
    name: String,
    outcome: Option<String>,
    started_at: i64,
    finished_at: Option<i64>,
}

impl ToolRow {
    fn read(row: &Row<'_>) -> Result<Self, rusqlite::Error> {
        Ok(Self {
            id: row.get(0)?,
            name: row.get(1)?,
            outcome: row.get(2)?,
            started_at: row.get(3)?,
            finished_at: row.get(4)?,
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
