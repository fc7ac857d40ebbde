//! Beats of a turn that runs, by which its platform shows that the agent writes.
//!
//! Beats begin with the turn and end with it, before its reply leaves; if the broker dies, they end at once. The end of a
//! turn without a reply is announced by a last beat, once the ledger has it, and again by a new owner that has read the
//! ledger: the former one may have died in between. No beat is stored, and no turn waits for beats. A turn without a waiting
//! sender is silent: a timer's, which mostly has nothing to say, a reaction's, and one whose session sends nothing.

use std::time::Duration;

use bytes::Bytes;
use shared::bus::Bus;
use shared::clock::pause;
use shared::model::dispatch::Dispatch;
use shared::model::live::WritingBeat;
use shared::wire::envelope::PayloadFormat;
use shared::wire::headers::{CONTENT_TYPE, Headers};
use shared::wire::subject;
use shared::wire::topology::streams::DISPATCHES;
use tokio::task::JoinHandle;
use ulid::Ulid;

use super::Worker;
use crate::agent::live::is_shown;
use crate::agent::port::{TurnFiles, TurnOrigin};

/// Interval of beats: less than any platform shows one call.
const BEAT_EVERY: Duration = Duration::from_secs(3);

/// The beats of one turn; dropping it ends them.
#[derive(Debug)]
pub(super) struct WritingBeats(Option<JoinHandle<()>>);

impl WritingBeats {
    /// Begins the beats of `turn`, which has this origin.
    pub(super) fn begin(bus: &Bus, turn: Ulid, origin: &TurnOrigin) -> Self {
        let beat = beat_of(turn, origin);
        Self(beat.map(|beat| tokio::spawn(send_beats(bus.clone(), beat))))
    }
}

/// The last beat of a turn that is over without a reply.
#[derive(Debug)]
pub(super) struct LastBeat(WritingBeat);

impl LastBeat {
    /// Returns the last beat of `turn`, which has this origin; `None` if it had no beats.
    pub(super) fn of_turn(turn: Ulid, origin: &TurnOrigin) -> Option<Self> {
        let beat = beat_of(turn, origin)?;
        Some(Self(WritingBeat { is_over: true, ..beat }))
    }

    /// Sends it.
    pub(super) async fn send(self, bus: &Bus) {
        let Self(beat) = self;
        bus.core_publish(&subject::live(&beat.target), &beat_headers(), encode(&beat))
            .await;
    }
}

impl Worker<'_> {
    /// Sends the last beat of the session's newest turn again, if that is over without a reply. A listener that has heard it
    /// learns nothing new. A beat is worth no error: if the turn's dispatch cannot be read, none is sent.
    pub(super) async fn repeat_last_beat(&self) {
        let (fold, bus) = (self.owner.fold(), &self.broker.bus);
        let Some(ended) = &fold.unanswered else { return };
        let stored = bus.at_sequence(DISPATCHES, ended.sequence).await.ok().flatten();
        let dispatch = stored.and_then(|stored| stored.decode::<Dispatch>().ok());
        // A stream that was restored may have another message there.
        let Some(dispatch) = dispatch.filter(|dispatch| dispatch.id == ended.dispatch) else {
            return;
        };

        let origin = TurnOrigin {
            delivery: dispatch.delivery_context,
            causation: dispatch.causation,
            works_for: Vec::new(),
            files: TurnFiles::default(),
            send: fold.send,
        };
        if let Some(beat) = LastBeat::of_turn(ended.turn, &origin) {
            beat.send(bus).await;
        }
    }
}

/// Returns a beat of `turn`, which has this origin; `None` if no sender waits for its answer on a platform.
fn beat_of(turn: Ulid, origin: &TurnOrigin) -> Option<WritingBeat> {
    is_shown(origin).then(|| WritingBeat {
        turn,
        target: origin.delivery.clone(),
        preview: None,
        is_over: false,
    })
}

impl Drop for WritingBeats {
    fn drop(&mut self) {
        if let Some(beats) = self.0.take() {
            beats.abort();
        }
    }
}

async fn send_beats(bus: Bus, beat: WritingBeat) {
    let (headers, payload) = (beat_headers(), encode(&beat));
    let subject = subject::live(&beat.target);
    loop {
        bus.core_publish(&subject, &headers, payload.clone()).await;
        pause(BEAT_EVERY).await;
    }
}

fn beat_headers() -> Headers {
    [(CONTENT_TYPE, PayloadFormat::Json.content_type())]
        .into_iter()
        .collect()
}

fn encode(beat: &WritingBeat) -> Bytes {
    Bytes::from(serde_json::to_vec(beat).unwrap_or_default())
}
