//! Handles the timers of approvals that fire.
//!
//! A timer may fire early (a turn that was resumed asked a moment later), twice, or after everything is over: KV
//! decides.

use std::sync::Arc;
use std::time::Duration;

use shared::bus::{Bus, IncomingMessage, PullOptions};
use shared::clock::SharedClock;
use shared::model::approval::{ApprovalTimer, ApprovalTimerPurpose};
use shared::model::time::UnixMillis;
use shared::process::lifecycle::ShutdownSignal;
use shared::wire::topology::{APPROVAL_TIMERS, streams};

use super::store::{ApprovalStore, KeepApprovalError};
use crate::config::SERVICE;

/// Number of fired timers that are requested at once.
const BATCH: usize = 64;
/// Wait before a timer whose handling failed is delivered again.
const AGAIN: Duration = Duration::from_secs(1);
/// Maximum delay with which one timer is sent back.
const LONGEST_NAK: Duration = Duration::from_secs(60);
/// Time that a timer waits for its question to be stored, milliseconds: the broker that asks sets the timer first,
/// and may die in between.
const QUESTION_MS: i64 = 60_000;

/// Consumer of fired timers, with the store that they act on.
#[derive(Debug, Clone)]
pub struct TimerHandler {
    /// The bus that the timers fire on.
    pub bus: Bus,
    /// Clock that decides whether a timer is due.
    pub clock: SharedClock,
    /// The store of approvals.
    pub store: Arc<ApprovalStore>,
}

impl TimerHandler {
    /// Handles timers as they fire, until `shutdown` is requested.
    pub async fn serve(self, shutdown: ShutdownSignal) {
        let options = PullOptions { batch: BATCH };
        let mut fired = self.bus.pull(streams::SCHEDULES, APPROVAL_TIMERS, options);
        loop {
            let incoming = tokio::select! {
                biased;
                () = shutdown.requested() => return,
                incoming = fired.next() => incoming,
            };
            self.handle(&incoming).await;
        }
    }

    async fn handle(&self, incoming: &IncomingMessage) {
        let now = self.clock.now();
        let timer: ApprovalTimer = match incoming.decode() {
            Ok(timer) => timer,
            Err(error) => return incoming.dead_letter(&self.bus, SERVICE, &error, now).await,
        };
        match apply(&self.store, &timer, incoming.published_at, now).await {
            Ok(None) => incoming.ack().await,
            Ok(Some(wait)) => incoming.nak(Some(wait)).await,
            Err(error) => {
                tracing::warn!(approval = timer.approval, %error, "failed to handle an approval timer; retrying");
                incoming.nak(Some(AGAIN)).await;
            }
        }
    }
}

/// Applies `timer`, which fired at `rang`. Returns the delay before its next delivery if it fired too early.
async fn apply(
    desk: &ApprovalStore,
    timer: &ApprovalTimer,
    rang: UnixMillis,
    now: UnixMillis,
) -> Result<Option<Duration>, KeepApprovalError> {
    // The timer is stored before its question, so the question may still come.
    let Some(standing) = desk.get(&timer.approval).await? else {
        return Ok((now < rang.plus(QUESTION_MS)).then_some(AGAIN));
    };

    match timer.purpose {
        ApprovalTimerPurpose::Escalate => desk.escalate_approval(&timer.approval).await?,
        ApprovalTimerPurpose::Expire => {
            let early = u64::try_from(standing.request.expires_at.since(now)).unwrap_or(0);
            // Clocks differ: a timer that fires early waits for its time.
            if early > 0 {
                return Ok(Some(Duration::from_millis(early).min(LONGEST_NAK)));
            }
            desk.expire_if_due(&timer.approval).await?;
        }
    }

    Ok(None)
}
