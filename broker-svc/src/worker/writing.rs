//! Beats of a turn that runs, by which its platform shows that the agent writes.
//!
//! Beats begin with the turn and end with it, before its reply leaves; if the broker dies, they end at once. Nothing is
//! stored, and no turn waits for them. A turn without a waiting sender is silent: a timer's, which mostly has nothing
//! to say, and a reaction's.

use std::time::Duration;

use shared::bus::Bus;
use shared::clock::pause;
use shared::model::dispatch::{DeliveryContext, DispatchCause};
use shared::model::live::WritingBeat;
use shared::platform::accounts::is_platform;
use shared::wire::envelope::PayloadFormat;
use shared::wire::headers::{CONTENT_TYPE, Headers};
use shared::wire::subject;
use tokio::task::JoinHandle;
use ulid::Ulid;

use crate::agent::live::is_silent;

/// Interval of beats: less than any platform shows one call.
const BEAT_EVERY: Duration = Duration::from_secs(3);

/// The beats of one turn; dropping it ends them.
#[derive(Debug)]
pub(super) struct WritingBeats(Option<JoinHandle<()>>);

impl WritingBeats {
    /// Begins the beats of `turn`, which was caused by `cause` and answers in `target`.
    pub(super) fn begin(bus: &Bus, turn: Ulid, cause: &DispatchCause, target: &DeliveryContext) -> Self {
        if !is_platform(&target.channel) || is_silent(&cause.event) {
            return Self(None);
        }
        let beat = WritingBeat {
            turn,
            target: target.clone(),
            preview: None,
        };
        Self(Some(tokio::spawn(send_beats(bus.clone(), beat))))
    }
}

impl Drop for WritingBeats {
    fn drop(&mut self) {
        if let Some(beats) = self.0.take() {
            beats.abort();
        }
    }
}

async fn send_beats(bus: Bus, beat: WritingBeat) {
    let headers: Headers = [(CONTENT_TYPE, PayloadFormat::Json.content_type())]
        .into_iter()
        .collect();
    let payload = bytes::Bytes::from(serde_json::to_vec(&beat).unwrap_or_default());
    let subject = subject::live(&beat.target);
    loop {
        bus.core_publish(&subject, &headers, payload.clone()).await;
        pause(BEAT_EVERY).await;
    }
}
