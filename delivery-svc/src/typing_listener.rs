//! The listener for beats of running turns: it shows on their platforms that the account writes.
//!
//! Beats are not stored, and one replica gets each. A call is made aside: no beat waits for a platform.

use std::sync::Arc;

use shared::clock::pause;
use shared::model::event::DEFAULT_ACCOUNT;
use shared::model::live::{LIVE_SUBJECTS, WritingBeat};
use tokio::sync::Semaphore;

use crate::channel::TypingPlace;
use crate::effects::DelivererContext;
use crate::repair_pause::REPAIR_PAUSE;

/// Name of the group of replicas of which one gets each beat.
const GROUP: &str = "delivery-typing";

/// Maximum number of calls at once; beats beyond it show nothing.
const MAX_CALLS: usize = 64;

/// Listens for beats, for ever.
pub async fn show_typing(outfit: Arc<DelivererContext>) {
    let slots = Arc::new(Semaphore::new(MAX_CALLS));
    loop {
        match outfit.bus.core_subscribe_group(LIVE_SUBJECTS, GROUP).await {
            Ok(mut beats) => {
                while let Some(message) = beats.next().await {
                    if let Ok(beat) = serde_json::from_slice::<WritingBeat>(&message.payload) {
                        follow_beat(&outfit, &slots, beat);
                    }
                }
            }
            Err(error) => tracing::warn!(error, "failed to subscribe to beats of turns"),
        }

        pause(REPAIR_PAUSE).await;
    }
}

/// Calls the platform of `beat`, unless it shows it already.
fn follow_beat(outfit: &Arc<DelivererContext>, slots: &Arc<Semaphore>, beat: WritingBeat) {
    let target = &beat.target;
    let account = target.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT);
    let channel = outfit.channels.get(&target.channel);
    let Some(lasts) = channel.and_then(|channel| channel.traits(account).typing_lasts) else {
        return;
    };
    // A sign of life is worth no call that a message needs.
    if !outfit.gates.is_open(target) {
        return;
    }
    let Ok(slot) = Arc::clone(slots).try_acquire_owned() else {
        return;
    };

    let peer = target.peer_id.as_deref().unwrap_or_default();
    let thread = target.thread_id.as_deref().unwrap_or_default();
    let place = format!("{}/{account}/{peer}/{thread}", target.channel);
    let now = outfit.clock.monotonic();
    if !outfit.typing.note_beat(&place, beat.turn, lasts, now) {
        return;
    }

    let outfit = Arc::clone(outfit);
    tokio::spawn(async move {
        let _slot = slot;
        let target = &beat.target;
        let Some(channel) = outfit.channels.get(&target.channel) else {
            return;
        };
        let place = TypingPlace {
            account: target.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT),
            peer: target.peer_id.as_deref().unwrap_or_default(),
            thread: target.thread_id.as_deref(),
            now: outfit.clock.now(),
        };
        let outcome = channel.typing(&place).await;
        outfit.gates.note_outcome(target, &outcome);
        metrics::counter!("nexus_delivery_typing_total").increment(1);
    });
}
