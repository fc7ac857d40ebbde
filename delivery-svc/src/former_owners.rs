//! Requests to a former owner for the outcome of a call that it started.
//!
//! A receipt records the start of a call and the replica that made it. If no receipt has its outcome, that replica is
//! asked. A replica that died has no subscription, which the server reports; after some seconds its call is made
//! again. A stopped replica has a subscription and does not respond; the new owner waits, because the platform's
//! response may be in the replica's socket. A replica that is stopped for ever cannot be distinguished from one whose
//! host is gone, so the wait is bounded.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use shared::bus::partition::PartitionLease;
use shared::bus::{Bus, RequestError};
use shared::clock::{SharedClock, pause};
use shared::wire::headers::Headers;
use shared::wire::subject::token;

use crate::attempt::CallOutcome;
use crate::calls::{CallId, CallStage, ProcessCalls};

/// Maximum wait for a response, after which the replica counts as mute.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Minimum time without a subscription after which a replica counts as gone: a stopped replica closes its connection
/// and opens another one when it continues.
const GONE_AFTER: Duration = Duration::from_secs(3);
/// Wait before a replica is asked again.
const AGAIN: Duration = Duration::from_millis(250);

/// The response to a request.
#[derive(Debug, Serialize, Deserialize)]
struct InquiryReply {
    /// Progress of the call; absent = this process has not made it.
    stage: Option<CallStage>,
}

/// Returns the subject on which the replica `instance` is asked.
fn subject_of(instance: &str) -> String {
    format!("nexus.svc.delivery-call.{}", token(instance))
}

/// Responds over `bus` for the calls of this process, which is `instance`, for ever, even while it drains.
pub async fn serve_inquiries(bus: &Bus, instance: &str, calls: &ProcessCalls) {
    let subject = subject_of(instance);
    loop {
        match bus.core_subscribe(&subject).await {
            Ok(mut questions) => {
                while let Some(question) = questions.next().await {
                    let asked = serde_json::from_slice::<CallId>(&question.payload);
                    let (Some(reply), Ok(id)) = (question.reply, asked) else {
                        continue;
                    };
                    let told = InquiryReply {
                        stage: calls.stage_of(id),
                    };
                    let answer = serde_json::to_vec(&told).unwrap_or_default();
                    bus.core_publish(&reply, &Headers::new(), answer.into()).await;
                }
            }
            Err(error) => tracing::warn!(error, "failed to subscribe to call inquiries"),
        }

        pause(AGAIN).await;
    }
}

/// Asks former owners.
#[derive(Debug)]
pub(crate) struct FormerOwners<'a> {
    pub(crate) bus: &'a Bus,
    pub(crate) clock: &'a SharedClock,
    pub(crate) lease: &'a PartitionLease,
    /// Maximum wait for a replica that does not respond.
    pub(crate) patience: Duration,
}

impl FormerOwners<'_> {
    /// Returns the outcome of the call `id` that replica `instance` started. Returns `None` if the replica has not
    /// made it, is gone, or was mute for too long, so that the outcome will never be known.
    pub(crate) async fn ask_outcome(&self, instance: &str, id: CallId) -> Option<CallOutcome> {
        let subject = subject_of(instance);
        let mut was_mute = false;
        let mut absent = Duration::ZERO;

        let mut left = self.patience;
        while self.lease.is_live() {
            let asked_at = self.clock.monotonic();
            match self.bus.request(&subject, Headers::new(), &id, ANSWER_WITHIN).await {
                Ok(InquiryReply { stage: None }) => return None,
                Ok(InquiryReply {
                    stage: Some(CallStage::Ended { call }),
                }) => return Some(call),
                // The call's own timeout bounds this wait.
                Ok(InquiryReply {
                    stage: Some(CallStage::UnderWay),
                }) => {}
                Err(RequestError::NoResponder { .. }) if !was_mute => {
                    if absent >= GONE_AFTER {
                        return None;
                    }
                    absent += AGAIN;
                }
                // The server may have closed the connection of a stopped replica.
                Err(
                    RequestError::NoResponder { .. }
                    | RequestError::Timeout { .. }
                    | RequestError::Service { .. }
                    | RequestError::Answer { .. },
                ) => {
                    if !was_mute {
                        was_mute = true;
                        metrics::counter!("nexus_delivery_mute_owners_total").increment(1);
                        tracing::warn!(
                            instance, delivery_id = %id.delivery, patience_s = self.patience.as_secs(),
                            "waiting for the replica that started a call"
                        );
                    }

                    // Time for which this process was stopped as well does not count as waiting.
                    let waited = self.clock.monotonic().saturating_duration_since(asked_at);
                    left = left.saturating_sub(waited.min(ANSWER_WITHIN) + AGAIN);

                    if left.is_zero() {
                        return None;
                    }
                }
            }

            pause(AGAIN).await;
        }

        None
    }
}
