//! Replies that may have been delivered before a restore: `nexus restore --list`, `--send`, `--drop`.

use anyhow::{Context as _, Result};
use serde_json::json;
use shared::bus::server_clock::TOLERATED_MS;
use shared::bus::{Bus, Kv};
use shared::clock::{Clock as _, SystemClock};
use shared::model::position::StreamPlace;
use shared::model::reply::Reply;
use shared::model::restore::{HOLD_KEY, HoldDecision, RestoreHold};
use shared::wire::rights::BusRole;
use shared::wire::topology::{buckets, streams};

use super::manifest::Manifest;
use crate::args::{Common, RestoreOptions};
use crate::connect::connect_as;
use crate::exit::{Exit, failure};
use crate::output::{Column, Table, View};

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

pub(super) async fn execute(common: &Common, options: &RestoreOptions) -> Result<()> {
    let bus = connect_as(common, BusRole::Admin).await?;
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
        bus.restored_replies(&hold).await?
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
