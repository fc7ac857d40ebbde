//! The timers of approvals: message schedules, set before the session is released, and what happens when they ring.
//!
//! One may ring early (a turn that was taken up again asked a moment later), twice, or after everything is over: KV
//! decides. Source: `docs/design/sessions.md` §8 (expiry and escalation are message schedules).

use std::sync::Arc;
use std::time::Duration;

use shared::bus::{Incoming, Outgoing, PublishError, PullOptions};
use shared::model::approval::{ApprovalTimer, ApprovalTimerPurpose};
use shared::model::time::UnixMillis;
use shared::wire::subject;
use shared::wire::topology::{APPROVAL_TIMERS, streams};

use super::desk::{Desk, KeepApprovalError};
use crate::broker::{Broker, SERVICE};

/// How long a fired message is kept for whoever is to handle it, seconds.
const FIRED_TTL_S: u64 = 7 * 24 * 3_600;
/// Fired timers asked for at once.
const BATCH: usize = 64;
/// Wait before a timer whose handling failed is given out again.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest wait that one timer is sent back with.
const LONGEST_NAK: Duration = Duration::from_secs(60);
/// How long a timer that rings before its question is stored waits for it, milliseconds: whoever asks sets it first, and
/// may die in between.
const QUESTION_MS: i64 = 60_000;

/// The message that rings for `timer` at `due`.
fn message(timer: &ApprovalTimer, due: UnixMillis) -> Outgoing {
    let letter = match timer.purpose {
        ApprovalTimerPurpose::Expire => "x",
        ApprovalTimerPurpose::Escalate => "e",
    };
    let name = format!("{}-{letter}", timer.approval);
    let at = jiff::Timestamp::from_millisecond(due.0.max(0)).unwrap_or_default();

    Outgoing::new(subject::approval_timer(&name), timer)
        .header("Nats-Schedule", format!("@at {at:.3}"))
        .header("Nats-Schedule-Target", subject::approval_fire(&name))
        .header("Nats-Schedule-TTL", format!("{FIRED_TTL_S}s"))
        .expect_last(0)
}

/// Sets `timer` to ring at `due`; one that is set already stays.
///
/// # Errors
/// [`PublishError`] where the server refuses it.
pub async fn set(bus: &shared::bus::Bus, timer: &ApprovalTimer, due: UnixMillis) -> Result<(), PublishError> {
    match bus.publish(message(timer, due)).await {
        Ok(_) | Err(PublishError::WrongLastSequence { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Handles what rings until the process is asked to stop.
pub async fn serve(broker: Arc<Broker>) {
    let stop = broker.shutdown.clone();
    let options = PullOptions { batch: BATCH };
    let mut rung = broker.bus.pull(streams::SCHEDULES, APPROVAL_TIMERS, options);
    loop {
        let incoming = tokio::select! {
            biased;
            () = stop.requested() => return,
            incoming = rung.next() => incoming,
        };
        handle(&broker, &incoming).await;
    }
}

async fn handle(broker: &Broker, incoming: &Incoming) {
    let (desk, now) = (broker.desk(), broker.clock.now());
    let timer: ApprovalTimer = match incoming.decode() {
        Ok(timer) => timer,
        Err(error) => return incoming.bury(&broker.bus, SERVICE, &error, now).await,
    };
    match rings(desk, &timer, incoming.published_at, now).await {
        Ok(None) => incoming.ack().await,
        Ok(Some(wait)) => incoming.nak(Some(wait)).await,
        Err(error) => {
            tracing::warn!(approval = timer.approval, %error, "timer of an approval is handled again");
            incoming.nak(Some(AGAIN)).await;
        }
    }
}

/// What follows from `timer`, which rang at `rang`; where that was too early, when it is to ring again.
async fn rings(
    desk: &Desk,
    timer: &ApprovalTimer,
    rang: UnixMillis,
    now: UnixMillis,
) -> Result<Option<Duration>, KeepApprovalError> {
    let Some(standing) = desk.get(&timer.approval).await? else {
        return Ok((now < rang.plus(QUESTION_MS)).then_some(AGAIN));
    };

    match timer.purpose {
        ApprovalTimerPurpose::Escalate => desk.escalate(&timer.approval).await?,
        ApprovalTimerPurpose::Expire => {
            let early = u64::try_from(standing.request.expires_at.since(now)).unwrap_or(0);
            if early > 0 {
                return Ok(Some(Duration::from_millis(early).min(LONGEST_NAK)));
            }
            desk.lapse(&timer.approval).await?;
        }
    }

    Ok(None)
}
