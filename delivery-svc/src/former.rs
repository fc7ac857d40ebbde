//! Asking a former owner how a call ended that it began.
//!
//! A receipt says that a call was begun, and by which replica; where none says how it ended, that replica is asked. One that
//! died has no subscription, and the server says so: after some seconds its call is made again. One that is stopped has a subscription
//! and does not answer: it is waited for, as the answer of the platform may lie in its socket. Nobody can tell a replica that
//! is stopped for ever from one whose host is gone, so the wait has a bound.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use shared::bus::partition::Lease;
use shared::bus::{Bus, RequestError};
use shared::clock::{SharedClock, pause};
use shared::wire::headers::Headers;
use shared::wire::subject::token;

use crate::attempt::Call;
use crate::calls::{CallId, Calls, Stage};

/// How long an answer may take; beyond it the replica is mute for the moment.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// For how long a replica must have no subscription before it counts as gone: one that was stopped closes its connection and opens
/// another when it goes on.
const GONE_AFTER: Duration = Duration::from_secs(3);
/// Wait before a replica is asked again.
const AGAIN: Duration = Duration::from_millis(250);

/// What is answered.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    /// How far the call is; none = this process has not made it.
    stage: Option<Stage>,
}

/// Where replica `instance` is asked.
fn subject_of(instance: &str) -> String {
    format!("nexus.svc.delivery-call.{}", token(instance))
}

/// Answers over `bus` for the calls of this process, which is `instance`, for ever: also while it drains.
pub async fn tell(bus: &Bus, instance: &str, calls: &Calls) {
    let subject = subject_of(instance);
    loop {
        match bus.core_subscribe(&subject).await {
            Ok(mut questions) => {
                while let Some(question) = questions.next().await {
                    let asked = serde_json::from_slice::<CallId>(&question.payload);
                    if let (Some(reply), Ok(id)) = (question.reply, asked) {
                        let told = Told { stage: calls.stage(id) };
                        let answer = serde_json::to_vec(&told).unwrap_or_default();
                        bus.core_publish(&reply, &Headers::new(), answer.into()).await;
                    }
                }
            }
            Err(error) => tracing::warn!(error, "not listening for questions about calls"),
        }

        pause(AGAIN).await;
    }
}

/// Asks former owners.
#[derive(Debug)]
pub(crate) struct Former<'a> {
    pub(crate) bus: &'a Bus,
    pub(crate) clock: &'a SharedClock,
    pub(crate) lease: &'a Lease,
    /// How long a replica is waited for that does not answer.
    pub(crate) patience: Duration,
}

impl Former<'_> {
    /// How the call `id` ended that replica `instance` began. None = it has not made it, is gone, or was mute for too long:
    /// nobody will ever say.
    pub(crate) async fn outcome(&self, instance: &str, id: CallId) -> Option<Call> {
        let subject = subject_of(instance);
        let mut was_mute = false;
        let mut absent = Duration::ZERO;

        let mut left = self.patience;
        while self.lease.is_live() {
            let asked_at = self.clock.monotonic();
            match self.bus.request(&subject, Headers::new(), &id, ANSWER_WITHIN).await {
                Ok(Told { stage: None }) => return None,
                Ok(Told {
                    stage: Some(Stage::Ended { call }),
                }) => return Some(call),
                // Bounded by the call's own time-out.
                Ok(Told {
                    stage: Some(Stage::UnderWay),
                }) => {}
                Err(RequestError::NoResponder { .. }) if !was_mute => {
                    if absent >= GONE_AFTER {
                        return None;
                    }
                    absent += AGAIN;
                }
                // The server may have closed the connection of one that is stopped.
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
                            instance, delivery = %id.delivery, patience_s = self.patience.as_secs(),
                            "a replica that began a call does not answer and is waited for"
                        );
                    }

                    // A gap in which this process stood still as well is no time that it waited.
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
