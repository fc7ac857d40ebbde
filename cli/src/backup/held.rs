//! Replies that may have been delivered before a restore: `nexus restore --list`, `--send`, `--drop`.

use std::collections::{BTreeMap, HashSet};

use anyhow::{Context as _, Result};
use serde_json::json;
use shared::bus::server_clock::TOLERATED_MS;
use shared::bus::{Bus, Kv, KvEntry};
use shared::clock::{Clock as _, SystemClock};
use shared::model::position::StreamPlace;
use shared::model::receipt::{Receipt, ReceiptStep};
use shared::model::reply::Reply;
use shared::model::restore::{HOLD_KEY, HoldDecision, RestoreHold};
use shared::model::time::UnixMillis;
use shared::wire::subject;
use shared::wire::topology::{buckets, streams};
use ulid::Ulid;

use super::manifest::Manifest;
use crate::args::{Common, RestoreOptions};
use crate::connect::connect_bus;
use crate::exit::{Exit, failure};
use crate::output::{Column, Table, View};

/// Number of receipts that are read at once.
const PAGE: usize = 500;
/// Largest assumed difference between the clocks of brokers and of deliverers, in milliseconds.
const SKEW_MS: i64 = 60_000;

/// Puts the hold of a restored backup in force; the services start with it. A backup that was made with `--quiesce` is
/// complete: it records everything that was done, so nothing is left to be decided.
pub(super) async fn begin(bus: &Bus, manifest: &Manifest) -> Result<()> {
    let holds: Kv<RestoreHold> = bus.kv(buckets::RESTORE);
    let decision = if manifest.quiesced {
        HoldDecision::Send
    } else {
        HoldDecision::Waiting
    };

    let hold = RestoreHold {
        backup: manifest.id.clone(),
        until: manifest.ended_at,
        at: Some(SystemClock.now()),
        decision,
    };

    let written = holds.put(HOLD_KEY, &hold).await;
    written.context("failed to hold the deliveries that may have been sent before")?;

    Ok(())
}

/// Returns the number of deliveries that wait for the operator on `bus`, or `None` if no restore is undecided.
pub(crate) async fn waiting(bus: &Bus) -> Result<Option<usize>> {
    let holds: Kv<RestoreHold> = bus.kv(buckets::RESTORE);
    match holds.get(HOLD_KEY).await? {
        Some(KvEntry { value, .. }) if value.decision == HoldDecision::Waiting => {
            Ok(Some(held(bus, &value).await?.len()))
        }
        Some(_) | None => Ok(None),
    }
}

/// Returns the replies that wait because of `hold`: in `PARKED`, and in `DELIVERIES` on their way to it.
async fn held(bus: &Bus, hold: &RestoreHold) -> Result<Vec<Reply>> {
    let mut replies: Vec<Reply> = Vec::new();
    for stream in [streams::PARKED, streams::DELIVERIES] {
        let state = bus.stream_state(stream).await?;
        if state.messages == 0 {
            continue;
        }

        let mut sequence = state.first;
        while let Some(stored) = bus.next_on_subject(stream, ">", sequence).await? {
            sequence = stored.sequence + 1;
            let Ok(reply) = stored.decode::<Reply>() else { continue };
            if hold.concerns(made_at(&reply)) && replies.iter().all(|other| other.id != reply.id) {
                replies.push(reply);
            }
        }
    }

    let made = made(bus, &replies).await?;
    replies.retain(|reply| !made.contains(&reply.id));

    Ok(replies)
}

/// Returns the time at which the turn of `reply` was made.
fn made_at(reply: &Reply) -> UnixMillis {
    UnixMillis(i64::try_from(reply.id.timestamp_ms()).unwrap_or(i64::MAX))
}

/// Returns the ids of those `replies` that a receipt records as made. A broker that goes on publishes such a reply
/// again, and the reply is not sent, whichever way the operator decides.
async fn made(bus: &Bus, replies: &[Reply]) -> Result<HashSet<Ulid>> {
    let mut since: BTreeMap<String, UnixMillis> = BTreeMap::new();
    for reply in replies {
        let oldest = since
            .entry(subject::receipt(&reply.delivery_context))
            .or_insert(UnixMillis(i64::MAX));
        *oldest = made_at(reply).plus(-SKEW_MS).min(*oldest);
    }

    let mut made = HashSet::new();
    for (subject, since) in since {
        let mut page = bus.history_since(streams::RECEIPTS, &subject, since, PAGE).await?;
        while let Some(last) = page.last() {
            let receipts = page.iter().filter_map(|stored| stored.decode::<Receipt>().ok());
            let delivered = receipts.filter(|receipt| matches!(receipt.step, ReceiptStep::Delivered { .. }));
            made.extend(delivered.map(|receipt| receipt.delivery));
            page = bus
                .read_history(streams::RECEIPTS, &subject, last.sequence + 1, PAGE)
                .await?;
        }
    }

    Ok(made)
}

pub(super) async fn execute(common: &Common, options: &RestoreOptions) -> Result<()> {
    let bus = connect_bus(common).await?;
    let holds: Kv<RestoreHold> = bus.kv(buckets::RESTORE);
    let Some(found) = holds
        .get(HOLD_KEY)
        .await
        .context("failed to read the state of the restore")?
    else {
        let text = "no deliveries are held since a restore";
        return Err(failure(Exit::NotFound, text));
    };

    let mut hold = found.value;
    let is_decided = hold.decision != HoldDecision::Waiting;
    let waiting = if is_decided {
        Vec::new()
    } else {
        held(&bus, &hold).await?
    };

    if options.list {
        return list(common, &waiting);
    }

    if is_decided {
        let text = format!(
            "the deliveries of the restore of backup {} were decided before",
            hold.backup
        );
        return Err(failure(Exit::Refused, text));
    }

    hold.decision = if options.drop {
        HoldDecision::Drop {
            through: everything_in_deliveries(&bus).await?,
        }
    } else {
        HoldDecision::Send
    };

    let written = holds.update(HOLD_KEY, &hold, found.revision).await;
    written.context("failed to write the decision")?;

    let what = if options.drop { "dropped" } else { "sent" };
    let result = json!({ "decision": what, "deliveries": waiting.len() });
    View::of(&result)?
        .ids(waiting.iter().map(|reply| reply.id.to_string()))
        .line(format!("{} deliveries are {what}; no more are held", waiting.len()))
        .show(common)
}

/// Returns the current end of `DELIVERIES`. The time is the server's and, if anything, too late: nothing is stored in a
/// queue that is put back before its server has started again.
async fn everything_in_deliveries(bus: &Bus) -> Result<StreamPlace> {
    let state = bus.stream_state(streams::DELIVERIES).await?;
    let server = bus.server_clock(&SystemClock).await?;
    let latest = SystemClock
        .now()
        .plus(server.ahead_ms + server.uncertain_ms + TOLERATED_MS);
    Ok(StreamPlace {
        sequence: state.last,
        stored_at_ns: latest.0.saturating_mul(1_000_000),
    })
}

fn list(common: &Common, waiting: &[Reply]) -> Result<()> {
    let rows: Vec<serde_json::Value> = waiting
        .iter()
        .map(|reply| {
            json!({
                "delivery": reply.id, "event": reply.causation.event, "session": reply.session,
                "target": reply.delivery_context, "content": reply.content,
            })
        })
        .collect();

    let columns = [
        Column::id("DELIVERY"),
        Column::id("EVENT"),
        Column::text("TO"),
        Column::text("TEXT"),
    ];
    let table = Table::new(&columns).with(waiting, |reply| {
        let target = &reply.delivery_context;
        let to = format!("{}/{}", target.channel, target.peer_id.as_deref().unwrap_or_default());
        [
            reply.id.to_string().into(),
            reply.causation.event.as_str().into(),
            to.into(),
            (&reply.content).into(),
        ]
    });

    View::list(&rows, table)?
        .line(format!(
            "{} deliveries are held; they may have been sent before the restore",
            waiting.len()
        ))
        .show(common)
}
