//! `nexus.svc.session.*`: requests about sessions from operators and other services.
//!
//! A request that changes a session becomes an order on its dispatch subject, which the session's owner carries out;
//! a fork is the first record of a ledger without an owner. Source: `docs/design/sessions.md` §4.

mod fork;
mod roster;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shared::bus::{OutgoingMessage, ServiceHandle, ServiceSpec, StoredMessage, claim};
use shared::clock::{IdSource as _, SystemIds, pause};
use shared::model::dispatch::Dispatch;
use shared::model::ledger::{LedgerCursor, TurnUsage};
use shared::model::order::{OrderKind, SessionOrder};
use shared::model::reply::SendDecision;
use shared::model::session::{QueueSettings, SessionRef};
use shared::model::time::UnixMillis;
use shared::wire::headers::TraceCarrier;
use shared::wire::session_mark::AgentAway;
use shared::wire::subject;
use shared::wire::topology::streams::{DISPATCHES, LEDGER};
use ulid::Ulid;

use crate::agent::absence::read_away_note;
use crate::broker::BrokerContext;
use crate::error::RunSessionError;
use crate::ledger::state::{RunState, SessionState, is_runnable};
use crate::ledger::writer::load;

/// Maximum wait for a session to be idle, milliseconds.
const MAX_WAIT_MS: u64 = 300_000;
/// Wait between two looks at a session that is not idle.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Maximum number of a session's waiting messages that are counted.
const MAX_COUNTED: usize = 100;

/// Code of the refusal that a session waits for a broker of a later release.
const NEWER: usize = 409;

/// Code and text with which an endpoint refuses a request.
type Refusal = (usize, String);

/// Request that names a session.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    persona: String,
    session: String,
}

impl Named {
    fn into_session(self) -> SessionRef {
        SessionRef {
            persona: self.persona,
            session: self.session,
        }
    }
}

/// Request with an order for a session.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ordering {
    persona: String,
    session: String,
    /// Id of the order; a repetition with the same id is the same order.
    id: Option<Ulid>,
    #[serde(default)]
    by: String,
    #[serde(default)]
    reason: String,
    /// Settings of the session from now on, for `queue`.
    #[serde(default)]
    settings: QueueSettings,
    /// Whether the session's replies are sent from now on, for `send`; absent = as the rules say.
    send: Option<SendDecision>,
}

#[derive(Debug, Clone, Serialize)]
struct Given {
    id: Ulid,
    sequence: u64,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Waiting {
    persona: String,
    session: String,
    timeout_ms: u64,
}

#[derive(Debug, Clone, Serialize)]
struct Idle {
    idle: bool,
}

/// A turn that runs.
#[derive(Debug, Clone, Serialize)]
struct Shown {
    turn: Ulid,
    began_at: UnixMillis,
    model_calls: u32,
    dispatches: usize,
    awaits: Option<String>,
    /// Reason why its agent cannot be asked at present, and since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    away: Option<Absent>,
}

/// An agent that cannot be asked.
#[derive(Debug, Clone, Serialize)]
struct Absent {
    why: String,
    since: UnixMillis,
}

/// The mark of a quarantined session.
#[derive(Debug, Clone, Serialize)]
struct Parked {
    why: String,
    since: UnixMillis,
}

/// Response of `show`: a session.
#[derive(Debug, Clone, Serialize)]
struct View {
    session: SessionRef,
    head: Option<Ulid>,
    epoch: u64,
    running: Option<Shown>,
    idle: bool,
    /// Mark of the session if it is quarantined.
    #[serde(skip_serializing_if = "Option::is_none")]
    quarantined: Option<Parked>,
    /// Why the session waits for a broker of a later release, if it does; everything else is not known then.
    #[serde(skip_serializing_if = "Option::is_none")]
    awaits_release: Option<String>,
    /// Number of waiting messages and orders, without those of the running turn; at most [`MAX_COUNTED`] are counted.
    waiting: usize,
    last_sequence: u64,
    cursor: LedgerCursor,
    usage: TurnUsage,
    /// Name of the model that answered last.
    model: Option<String>,
    turns_in_history: usize,
    summary: Option<String>,
    active_at: UnixMillis,
    queue: QueueSettings,
    /// The session's own send policy, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    send: Option<SendDecision>,
}

/// Serves the endpoints until the handle is dropped.
///
/// # Errors
/// Returns the client's error text if the service cannot be announced.
pub async fn serve(broker: &Arc<BrokerContext>) -> Result<ServiceHandle, String> {
    let mut spec = ServiceSpec::new("session", "sessions: list, show, wait, orders, fork, release");
    let with = |broker: &Arc<BrokerContext>| Arc::clone(broker);
    let at = with(broker);
    spec = spec.endpoint("list", move |question| roster::list(Arc::clone(&at), question));
    let at = with(broker);
    spec = spec.endpoint("release", move |named: Named| {
        roster::release_session(Arc::clone(&at), named.into_session())
    });

    let at = with(broker);
    spec = spec.endpoint("show", move |named: Named| show(Arc::clone(&at), named.into_session()));
    let at = with(broker);
    spec = spec.endpoint("wait", move |waiting: Waiting| wait(Arc::clone(&at), waiting));
    let at = with(broker);
    spec = spec.endpoint("fork", move |forking| fork::fork_session(Arc::clone(&at), forking));

    for name in ["abort", "interrupt", "reset", "queue", "send"] {
        let at = with(broker);
        spec = spec.endpoint(name, move |ordering: Ordering| {
            give_order(Arc::clone(&at), name, ordering)
        });
    }

    broker.bus.serve(spec).await
}

async fn load_session_fold(broker: &BrokerContext, session: &SessionRef) -> Result<SessionState, Refusal> {
    let remembered = load(broker, session, None).await;
    let fold = remembered.map_err(|error| {
        if let RunSessionError::NewerLedger { sequence, source } = &error {
            let waits = format!("{session} waits for a broker of a later release: record {sequence}: {source}");
            return (NEWER, waits);
        }
        (500, error.to_string())
    });
    let fold = fold?.fold;
    if fold.last_sequence == 0 {
        return Err((404, format!("there is no session {session}")));
    }
    Ok(fold)
}

async fn is_idle(broker: &BrokerContext, session: &SessionRef, fold: &SessionState) -> Result<bool, Refusal> {
    let last = broker
        .bus
        .last_on_subject(DISPATCHES, &subject::dispatch(session))
        .await;
    let last = last
        .map_err(|error| (500, error.to_string()))?
        .map(|stored| stored.sequence);

    // A reply that is not noted as published is on its way.
    let standing = RunState {
        owes: false,
        ..RunState::from_fold(fold, &[])
    };

    Ok(!is_runnable(&standing, last, broker.clock.now()))
}

async fn count_waiting(broker: &BrokerContext, session: &SessionRef, fold: &SessionState) -> Result<usize, Refusal> {
    let from = fold.cursor.floor + 1;
    let subject = subject::dispatch(session);
    let stored = broker.bus.read_history(DISPATCHES, &subject, from, MAX_COUNTED).await;
    let stored = stored.map_err(|error| (500, error.to_string()))?;
    // By id: a dispatch that was lost and made again has another sequence.
    let runs = |id| {
        let mut dispatches = fold.running.iter().flat_map(|running| &running.dispatches);
        dispatches.any(|dispatch| dispatch.id == id)
    };
    let is_running = |stored: &StoredMessage| stored.decode::<Dispatch>().is_ok_and(|dispatch| runs(dispatch.id));

    let open = stored.iter().filter(|stored| !fold.cursor.contains(stored.sequence));
    Ok(open.filter(|stored| !is_running(stored)).count())
}

async fn show(broker: Arc<BrokerContext>, session: SessionRef) -> Result<View, Refusal> {
    let quarantined = roster::read_mark(&broker, &session).await?.map(|(mark, _)| mark);
    let (fold, awaits_release) = match load_session_fold(&broker, &session).await {
        // A session can be quarantined before it has written any record.
        Err((404, _)) if quarantined.is_some() => (SessionState::default(), None),
        Err((NEWER, why)) => (SessionState::default(), Some(why)),
        fold => (fold?, None),
    };

    // A session is idle only if no message waits for it either, so both need the stream.
    let (idle, waiting) = match awaits_release {
        Some(_) => (false, 0),
        None => (
            is_idle(&broker, &session, &fold).await?,
            count_waiting(&broker, &session, &fold).await?,
        ),
    };
    let away = match &fold.running {
        Some(running) => read_away_note(&broker.bus, &session, running.turn, broker.clock.now()).await,
        None => Ok(None),
    };

    let away = away.map_err(|error| (503, error))?;
    let away = away.map(|AgentAway { why, since, .. }| Absent { why, since });
    let running = fold.running.as_ref().map(|running| Shown {
        turn: running.turn,
        began_at: running.began_at,
        model_calls: running.model_calls(),
        dispatches: running.dispatches.len(),
        awaits: running.awaits.as_ref().map(|awaited| awaited.approval.clone()),
        away,
    });

    Ok(View {
        session,
        head: fold.head,
        epoch: fold.epoch,
        running,
        idle,
        quarantined,
        awaits_release,
        waiting,
        last_sequence: fold.last_sequence,
        cursor: fold.cursor,
        usage: fold.usage,
        model: fold.model,
        turns_in_history: fold.history.len(),
        summary: fold.summary,
        active_at: fold.active_at,
        queue: fold.queue,
        send: fold.send,
    })
}

async fn wait(broker: Arc<BrokerContext>, waiting: Waiting) -> Result<Idle, Refusal> {
    let session = SessionRef {
        persona: waiting.persona,
        session: waiting.session,
    };
    let patience = Duration::from_millis(waiting.timeout_ms.min(MAX_WAIT_MS));
    let until = broker.clock.monotonic() + patience;
    loop {
        let idle = match load_session_fold(&broker, &session).await {
            Ok(fold) => is_idle(&broker, &session, &fold).await?,
            // A session that never ran is idle, unless a message came for it.
            Err((404, _)) => is_idle(&broker, &session, &SessionState::default()).await?,
            Err(refusal) => return Err(refusal),
        };

        if idle || broker.clock.monotonic() >= until {
            return Ok(Idle { idle });
        }

        pause(LOOK_AGAIN).await;
    }
}

/// Returns whether `session` has any record or message.
async fn is_known(broker: &BrokerContext, session: &SessionRef) -> Result<bool, Refusal> {
    for (stream, subject) in [
        (LEDGER, subject::ledger(session)),
        (DISPATCHES, subject::dispatch(session)),
    ] {
        let last = broker.bus.last_on_subject(stream, &subject).await;
        if last.map_err(|error| (500, error.to_string()))?.is_some() {
            return Ok(true);
        }
    }

    Ok(false)
}

async fn give_order(broker: Arc<BrokerContext>, name: &'static str, ordering: Ordering) -> Result<Given, Refusal> {
    let wanted = match name {
        "abort" => OrderKind::Abort,
        "interrupt" => OrderKind::Interrupt,
        "reset" => OrderKind::Reset,
        "send" => OrderKind::Send {
            decision: ordering.send,
        },
        _ => OrderKind::Queue {
            settings: ordering.settings,
        },
    };

    let order = SessionOrder {
        id: ordering.id.unwrap_or_else(|| SystemIds.ulid()),
        target: SessionRef {
            persona: ordering.persona,
            session: ordering.session,
        },
        wanted,
        by: if ordering.by.is_empty() {
            "operator".to_owned()
        } else {
            ordering.by
        },
        reason: ordering.reason,
        at: broker.clock.now(),
    };

    // A misspelled name must not create a session. Settings may exist before the first message.
    if !matches!(order.wanted, OrderKind::Queue { .. } | OrderKind::Send { .. })
        && !is_known(&broker, &order.target).await?
    {
        return Err((404, format!("there is no session {}", order.target)));
    }

    // The id makes a repeated request harmless: the server refuses the copy.
    let out = OutgoingMessage::new(subject::dispatch(&order.target), &order).msg_id(order.id.to_string());
    let published = broker
        .bus
        .publish(out)
        .await
        .map_err(|error| (500, error.to_string()))?;

    // Without a claim no broker would look at the session before its next message or the sweeper.
    let claimed = claim::publish(&broker.bus, &order.target, &TraceCarrier::default()).await;
    claimed.map_err(|error| (500, error.to_string()))?;

    Ok(Given {
        id: order.id,
        sequence: published.sequence,
    })
}
