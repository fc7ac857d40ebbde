//! `nexus.svc.session.*`: what operators and other parts of Nexus ask of sessions.
//!
//! Whatever changes a session is an order on its dispatch subject, carried out by its owner; a fork is the first
//! record of a ledger that nobody owns yet. Source: `sessions.md` "Sessions".

mod roster;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shared::bus::{Outgoing, ServiceHandle, ServiceSpec, claim, ledger};
use shared::clock::{IdSource as _, SystemIds, pause};
use shared::model::ledger::{AppendId, Cursor, LedgerEntry, LedgerRecord, Usage};
use shared::model::order::{SessionOrder, Wanted};
use shared::model::session::{QueueSettings, SessionRef};
use shared::model::time::UnixMillis;
use shared::wire::headers::Carrier;
use shared::wire::subject;
use shared::wire::topology::streams::DISPATCHES;
use ulid::Ulid;

use crate::broker::Broker;
use crate::fold::{Fold, Standing, restored, runnable};
use crate::owner::{Stretch, load, stretch};

/// Longest wait for a session to be idle, milliseconds.
const MAX_WAIT_MS: u64 = 300_000;
/// Wait between two looks at a session that is not idle.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What an endpoint says where it cannot: code and text.
type Refusal = (usize, String);

/// A session.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    persona: String,
    session: String,
}

impl Named {
    fn session(self) -> SessionRef {
        SessionRef {
            persona: self.persona,
            session: self.session,
        }
    }
}

/// An order.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ordering {
    persona: String,
    session: String,
    /// Names the order; the same again is the same order.
    id: Option<Ulid>,
    #[serde(default)]
    by: String,
    #[serde(default)]
    reason: String,
    /// Of `queue`: what the session has from now on.
    #[serde(default)]
    settings: QueueSettings,
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

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Forking {
    persona: String,
    session: String,
    /// The new session's name.
    to: String,
    /// The last turn that it has; absent = the newest.
    turn: Option<Ulid>,
}

/// A turn that runs.
#[derive(Debug, Clone, Serialize)]
struct Shown {
    turn: Ulid,
    began_at: UnixMillis,
    model_calls: u32,
    dispatches: usize,
    awaits: Option<String>,
}

/// A session, as `show` answers it.
#[derive(Debug, Clone, Serialize)]
struct View {
    session: SessionRef,
    head: Option<Ulid>,
    epoch: u64,
    running: Option<Shown>,
    idle: bool,
    last_sequence: u64,
    cursor: Cursor,
    usage: Usage,
    /// The model that answered last.
    model: Option<String>,
    turns_in_history: usize,
    summary: Option<String>,
    active_at: UnixMillis,
    queue: QueueSettings,
}

/// Serves until the handle is dropped.
///
/// # Errors
/// The client's word where the service cannot be announced.
pub async fn serve(broker: &Arc<Broker>) -> Result<ServiceHandle, String> {
    let mut spec = ServiceSpec::new("session", "sessions: list, show, wait, orders, fork, release");
    let with = |broker: &Arc<Broker>| Arc::clone(broker);
    let at = with(broker);
    spec = spec.endpoint("list", move |question| roster::list(Arc::clone(&at), question));
    let at = with(broker);
    spec = spec.endpoint("release", move |named: Named| {
        roster::release(Arc::clone(&at), named.session())
    });
    let at = with(broker);
    spec = spec.endpoint("show", move |named: Named| show(Arc::clone(&at), named.session()));
    let at = with(broker);
    spec = spec.endpoint("wait", move |waiting: Waiting| wait(Arc::clone(&at), waiting));
    let at = with(broker);
    spec = spec.endpoint("fork", move |forking: Forking| fork(Arc::clone(&at), forking));
    for name in ["abort", "interrupt", "reset", "queue"] {
        let at = with(broker);
        spec = spec.endpoint(name, move |ordering: Ordering| give(Arc::clone(&at), name, ordering));
    }
    broker.bus.serve(spec).await
}

async fn folded(broker: &Broker, session: &SessionRef) -> Result<Fold, Refusal> {
    let remembered = load(broker, session, None).await;
    let fold = remembered.map_err(|error| (500, error.to_string()))?.fold;
    if fold.last_sequence == 0 {
        return Err((404, format!("there is no session {session}")));
    }
    Ok(fold)
}

async fn is_idle(broker: &Broker, session: &SessionRef, fold: &Fold) -> Result<bool, Refusal> {
    let last = broker
        .bus
        .last_on_subject(DISPATCHES, &subject::dispatch(session))
        .await;
    let last = last
        .map_err(|error| (500, error.to_string()))?
        .map(|stored| stored.sequence);
    // A reply that is not noted is on its way.
    let standing = Standing {
        owes: false,
        ..Standing::of(fold, &[])
    };
    Ok(!runnable(&standing, last, broker.clock.now()))
}

async fn show(broker: Arc<Broker>, session: SessionRef) -> Result<View, Refusal> {
    let fold = folded(&broker, &session).await?;
    let idle = is_idle(&broker, &session, &fold).await?;
    let running = fold.running.as_ref().map(|running| Shown {
        turn: running.turn,
        began_at: running.began_at,
        model_calls: running.model_calls(),
        dispatches: running.dispatches.len(),
        awaits: running.awaits.as_ref().map(|awaited| awaited.approval.clone()),
    });
    Ok(View {
        session,
        head: fold.head,
        epoch: fold.epoch,
        running,
        idle,
        last_sequence: fold.last_sequence,
        cursor: fold.cursor,
        usage: fold.usage,
        model: fold.model,
        turns_in_history: fold.history.len(),
        summary: fold.summary,
        active_at: fold.active_at,
        queue: fold.queue,
    })
}

async fn wait(broker: Arc<Broker>, waiting: Waiting) -> Result<Idle, Refusal> {
    let session = SessionRef {
        persona: waiting.persona,
        session: waiting.session,
    };
    let patience = Duration::from_millis(waiting.timeout_ms.min(MAX_WAIT_MS));
    let until = broker.clock.monotonic() + patience;
    loop {
        let idle = match folded(&broker, &session).await {
            Ok(fold) => is_idle(&broker, &session, &fold).await?,
            // One that never ran has nothing to wait for, unless something came for it.
            Err((404, _)) => is_idle(&broker, &session, &Fold::default()).await?,
            Err(refusal) => return Err(refusal),
        };
        if idle || broker.clock.monotonic() >= until {
            return Ok(Idle { idle });
        }
        pause(LOOK_AGAIN).await;
    }
}

async fn give(broker: Arc<Broker>, name: &'static str, ordering: Ordering) -> Result<Given, Refusal> {
    let wanted = match name {
        "abort" => Wanted::Abort,
        "interrupt" => Wanted::Interrupt,
        "reset" => Wanted::Reset,
        _ => Wanted::Queue {
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
    let out = Outgoing::new(subject::dispatch(&order.target), &order).msg_id(order.id.to_string());
    let published = broker
        .bus
        .publish(out)
        .await
        .map_err(|error| (500, error.to_string()))?;
    let claimed = claim::publish(&broker.bus, &order.target, &Carrier::default()).await;
    claimed.map_err(|error| (500, error.to_string()))?;
    Ok(Given {
        id: order.id,
        sequence: published.sequence,
    })
}

/// The session as it was after a turn becomes the beginning of another one.
async fn fork(broker: Arc<Broker>, forking: Forking) -> Result<View, Refusal> {
    let from = SessionRef {
        persona: forking.persona.clone(),
        session: forking.session,
    };
    let to = SessionRef {
        persona: forking.persona,
        session: forking.to,
    };
    let fold = as_it_was(&broker, &from, forking.turn).await?;
    let entries = forked_entries(fold, &to);
    let record = LedgerRecord {
        append: AppendId {
            broker: broker.instance.clone(),
            epoch: 0,
            counter: broker.next_append(),
        },
        at: broker.clock.now(),
        entries,
    };
    let appended = ledger::append(&broker.bus, &to, &record, 0, &Carrier::default()).await;
    appended.map_err(|error| (409, error.to_string()))?;
    show(broker, to).await
}

/// The session `from` as it was at the end of `turn`, or of its newest turn that is over.
async fn as_it_was(broker: &Broker, from: &SessionRef, turn: Option<Ulid>) -> Result<Fold, Refusal> {
    let mut through = None;
    loop {
        let stretch = stretch(broker, from, through).await;
        let stretch = stretch.map_err(|error| (500, error.to_string()))?;
        if let Some(fold) = forked(&stretch, turn) {
            return Ok(fold);
        }
        if stretch.upon.is_none() {
            return Err((404, format!("{from} has no such turn")));
        }
        through = stretch.upon;
    }
}

/// The fold of `stretch` through the end of `turn`, or through the newest turn that is over; none where that lies
/// before it. A ledger may begin with turns that it inherited: a fork's does.
fn forked(stretch: &Stretch, turn: Option<Ulid>) -> Option<Fold> {
    let begins = stretch.records.first().and_then(|(_, record)| record.entries.first());
    let mut state = match begins {
        Some(LedgerEntry::Checkpoint { fold, .. }) => restored(fold).unwrap_or_default(),
        Some(_) | None => Fold::default(),
    };
    let inherited = turn.filter(|_| stretch.upon.is_none()).or(state.head);
    let mut found = inherited
        .filter(|inherited| turn.is_none_or(|turn| turn == *inherited))
        .and_then(|through| cut(&state, through));
    for (_, record) in &stretch.records {
        state.at = record.at;
        for entry in &record.entries {
            state.apply_entry(entry);
            if let LedgerEntry::TurnCompleted { turn: ended, .. } = entry
                && turn.is_none_or(|turn| turn == *ended)
            {
                found = Some(state.clone());
            }
        }
    }
    found
}

/// `fold` with `through` as the newest turn of its history; none where it does not remember it.
fn cut(fold: &Fold, through: Ulid) -> Option<Fold> {
    let last = fold.history.iter().position(|exchange| exchange.turn == through);
    // Of its newest turn a summary may have been made.
    let kept = last
        .map(|last| last + 1)
        .or((fold.head == Some(through)).then_some(0))?;
    let mut fold = fold.clone();
    fold.history.truncate(kept);
    fold.head = Some(through);
    Some(fold)
}

/// What a fork begins with: the history of `fold`, and nothing of its queue, its replies or its place.
fn forked_entries(fold: Fold, to: &SessionRef) -> Vec<LedgerEntry> {
    let begin = Fold {
        session: Some(to.clone()),
        head: fold.head,
        history: fold.history,
        summary: fold.summary,
        active_at: fold.active_at,
        queue: fold.queue,
        ..Fold::default()
    };
    vec![
        LedgerEntry::Checkpoint {
            fold: serde_json::to_value(&begin).unwrap_or_default(),
            cursor: Cursor::default(),
            through: 0,
        },
        LedgerEntry::SessionOpened { session: to.clone() },
    ]
}

#[cfg(test)]
mod tests {
    use shared::model::identity::PermissionPresets;

    use super::*;
    use crate::personas::Limits;
    use crate::sample::{pending, session};
    use crate::turn::{Answer, Turn};

    fn record(number: u64, entries: Vec<LedgerEntry>) -> (u64, LedgerRecord) {
        let append = AppendId {
            broker: "b1".to_owned(),
            epoch: 1,
            counter: number,
        };
        let at = UnixMillis(1);
        (number, LedgerRecord { append, at, entries })
    }

    /// The records of three more turns of the session that stands at `state`.
    fn three_turns(mut state: Fold) -> Vec<(u64, LedgerRecord)> {
        let first = state.last_sequence + 1;
        let one_more = |number| {
            let one = pending(number, number, "a", 50);
            let presets = PermissionPresets::default();
            let turn = Turn::of(&session(), &state, &[one], &Limits::default(), &presets);
            let mut entries = vec![turn.started()];
            entries.extend(turn.completed(Answer::default(), Cursor::default()));
            let record = record(number, entries);
            state.apply(number, &record.1);
            record
        };
        (first..first + 3).map(one_more).collect()
    }

    /// The whole of a ledger.
    fn whole(records: Vec<(u64, LedgerRecord)>) -> Stretch {
        Stretch { records, upon: None }
    }

    /// The ledger of a fork through `turn`, which nobody has used yet.
    fn forked_ledger(stretch: &Stretch, turn: Option<Ulid>) -> Stretch {
        let to = SessionRef {
            persona: "default".to_owned(),
            session: "branch".to_owned(),
        };
        let fold = forked(stretch, turn).expect("such a turn");
        whole(vec![record(50, forked_entries(fold, &to))])
    }

    fn history(stretch: &Stretch, turn: Option<Ulid>) -> Option<Vec<Ulid>> {
        let fold = forked(stretch, turn)?;
        let turns: Vec<Ulid> = fold.history.iter().map(|exchange| exchange.turn).collect();
        assert_eq!(turns.last(), fold.head.as_ref());
        Some(turns)
    }

    #[test]
    fn a_fork_has_the_history_through_its_turn_and_nothing_else() {
        let ledger = whole(three_turns(Fold::default()));
        let turns = history(&ledger, None).expect("turns");
        assert_eq!(history(&ledger, Some(turns[1])).as_deref(), Some(&turns[..2]));
        assert_eq!(forked(&ledger, Some(Ulid::nil())), None);
        let fork = forked_ledger(&ledger, Some(turns[1]));
        let begun = crate::fold::fold(&fork.records).expect("a ledger that begins with a checkpoint");
        assert_eq!(begun.session.map(|session| session.session).as_deref(), Some("branch"));
        assert_eq!((begun.head, begun.history.len()), (Some(turns[1]), 2));
        assert!(begun.unpublished.is_empty() && begun.recent.is_empty() && begun.cursor == Cursor::default());
    }

    #[test]
    fn a_fork_is_forked_as_what_it_came_from_is() {
        let turns = history(&whole(three_turns(Fold::default())), None).expect("turns");
        let mut fork = forked_ledger(&whole(three_turns(Fold::default())), None);
        assert_eq!(history(&fork, None).as_ref(), Some(&turns), "a fresh one");
        assert_eq!(
            history(&fork, Some(turns[0])).as_deref(),
            Some(&turns[..1]),
            "from a turn that it inherited"
        );
        let begun = crate::fold::fold(&fork.records).expect("a fork");
        fork.records.extend(three_turns(begun));
        let all = history(&fork, None).expect("turns");
        assert_eq!((&all[..3], all.len()), (&turns[..], 6), "with turns of its own");
        assert_eq!(history(&fork, Some(all[4])).as_deref(), Some(&all[..5]));
        let again = forked_ledger(&fork, Some(all[4]));
        assert_eq!(history(&again, None).as_deref(), Some(&all[..5]), "a fork of a fork");
    }

    #[test]
    fn what_lies_before_a_stretch_is_looked_for_in_the_one_before() {
        let ledger = three_turns(Fold::default());
        let mut state = forked(&whole(ledger), None).expect("turns");
        state.last_sequence = 3;
        state.since_checkpoint = crate::fold::CHECKPOINT_EVERY;
        let turns: Vec<Ulid> = state.history.iter().map(|exchange| exchange.turn).collect();
        let mut newest = three_turns(state.clone());
        newest[0].1.entries.insert(0, state.checkpoint().expect("it is due"));
        let stretch = Stretch {
            records: newest,
            upon: Some(3),
        };
        assert_eq!(history(&stretch, None).map(|turns| turns.len()), Some(6));
        assert_eq!(
            history(&stretch, Some(turns[2])).as_ref(),
            Some(&turns),
            "the checkpoint itself"
        );
        assert_eq!(
            history(&stretch, Some(turns[0])),
            None,
            "it may have forgotten turns that were remembered then"
        );
    }
}
