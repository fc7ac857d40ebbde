//! The listener for beats of running turns: it shows on their platforms that the account writes.
//!
//! Beats are not stored. Every replica hears each, and the owner of the destination's partition acts: it alone knows
//! when the reply is sent. A call is made aside: no beat waits for a platform, and no message for a beat.

use std::sync::Arc;
use std::time::Duration;

use shared::clock::pause;
use shared::model::dispatch::DeliveryContext;
use shared::model::event::DEFAULT_ACCOUNT;
use shared::model::live::{LIVE_SUBJECTS, WritingBeat};
use shared::model::time::UnixMillis;
use tokio::sync::Semaphore;
use ulid::Ulid;

use crate::acknowledgements::{show_over, show_taken};
use crate::attempt::{CallOutcome, Refusal};
use crate::channel::TypingPlace;
use crate::destination::partition_of;
use crate::effects::DelivererContext;
use crate::previews::follow_preview;
use crate::repair_pause::REPAIR_PAUSE;
use crate::typing::BeatPlace;

/// Maximum number of calls at once; beats beyond it show nothing.
const MAX_CALLS: usize = 64;

/// Time for which a platform shows one call, from which on it is taken back at the end of a turn without a reply.
const TAKEN_BACK_FROM: Duration = Duration::from_secs(30);

/// Listens for beats, for ever.
pub async fn show_typing(outfit: Arc<DelivererContext>) {
    let slots = Arc::new(Semaphore::new(MAX_CALLS));
    loop {
        match outfit.bus.core_subscribe(LIVE_SUBJECTS).await {
            Ok(mut beats) => {
                while let Some(message) = beats.next().await {
                    if let Ok(beat) = serde_json::from_slice::<WritingBeat>(&message.payload) {
                        show_beat(&outfit, &slots, beat);
                    }
                }
            }
            Err(error) => tracing::warn!(error, "failed to subscribe to beats of turns"),
        }

        pause(REPAIR_PAUSE).await;
    }
}

/// Shows what `beat` says: the beginning of an answer, the end of a turn, or that it goes on.
fn show_beat(outfit: &Arc<DelivererContext>, slots: &Arc<Semaphore>, beat: WritingBeat) {
    match &beat.preview {
        Some(preview) => follow_preview(outfit, &beat, preview),
        None if beat.is_over => {
            show_over(outfit, &beat);
            end_writing(outfit, &beat.target, beat.turn);
        }
        None => {
            show_taken(outfit, &beat);
            follow_beat(outfit, slots, beat);
        }
    }
}

/// Calls the platform of `beat`, unless it shows it already, or another replica owns the destination.
fn follow_beat(outfit: &Arc<DelivererContext>, slots: &Arc<Semaphore>, beat: WritingBeat) {
    outfit.previews.note_alive(beat.turn, outfit.clock.monotonic());
    let target = &beat.target;
    let account = target.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT);
    let channel = outfit.channels.get(&target.channel);
    let Some(lasts) = channel.and_then(|channel| channel.traits(account).typing_lasts) else {
        return;
    };
    // Where nothing is shown, no message waits for a call that is not made.
    let is_shown = channel.is_some_and(|channel| channel.shows_typing(&typing_place(target, outfit.clock.now())));
    if !is_shown || !outfit.typing.owns(partition_of(target)) {
        return;
    }
    let Ok(slot) = Arc::clone(slots).try_acquire_owned() else {
        return;
    };

    let place = beat_place(target);
    let now = outfit.clock.monotonic();
    if !outfit.typing.note_beat(&place, beat.turn, lasts, now) {
        return;
    }
    // A sign of life is worth no call that a message needs.
    let pace = channel.and_then(|channel| channel.pace(target));
    if !outfit.gates.admit_spare(target, pace) {
        outfit.typing.note_unshown(&place, beat.turn);
        return;
    }

    let outfit = Arc::clone(outfit);
    tokio::spawn(async move {
        let _slot = slot;
        let target = &beat.target;
        let Some(channel) = outfit.channels.get(&target.channel) else {
            return;
        };
        let place = typing_place(target, outfit.clock.now());
        let outcome = channel.typing(&place).await;
        note_typing(&outfit, target, beat.turn, &outcome);
        metrics::counter!("nexus_delivery_typing_total").increment(1);
        // The reply may have been faster than the call.
        let is_shown = matches!(outcome, CallOutcome::Accepted { .. });
        if is_shown && outfit.typing.was_sent(beat.turn) {
            channel.end_typing(&place).await;
        }
    });
}

/// Takes back the sign in `target` that `turn` writes, because no message follows that would end it. Makes at most one call
/// for a turn, and only if the account and the chat have room for it.
pub(crate) fn end_writing(outfit: &Arc<DelivererContext>, target: &DeliveryContext, turn: Ulid) {
    let account = target.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT);
    let channel = outfit.channels.get(&target.channel);
    let lasts = channel.and_then(|channel| channel.traits(account).typing_lasts);
    let place = beat_place(target);
    let is_long = lasts.is_some_and(|lasts| lasts >= TAKEN_BACK_FROM);
    if is_long && outfit.typing.shows(&place, turn) {
        let pace = channel.and_then(|channel| channel.pace(target));
        // The last beat may come again, and finds the sign still shown.
        if !outfit.gates.admit_spare(target, pace) {
            return;
        }
    }
    if !outfit.typing.note_over(&place, turn) || !is_long {
        return;
    }

    let (outfit, target) = (Arc::clone(outfit), target.clone());
    tokio::spawn(async move {
        if let Some(channel) = outfit.channels.get(&target.channel) {
            channel.end_typing(&typing_place(&target, outfit.clock.now())).await;
        }
    });
}

/// Returns the place that answers in `target` are for, at `now`.
fn typing_place(target: &DeliveryContext, now: UnixMillis) -> TypingPlace<'_> {
    TypingPlace {
        account: target.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT),
        peer: target.peer_id.as_deref().unwrap_or_default(),
        thread: target.thread_id.as_deref(),
        now,
    }
}

/// Returns the place of beats that answer in `target`.
fn beat_place(target: &DeliveryContext) -> BeatPlace {
    let account = target.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT);
    let peer = target.peer_id.as_deref().unwrap_or_default();
    let thread = target.thread_id.as_deref().unwrap_or_default();
    let account = format!("{}/{account}", target.channel);
    let conversation = format!("{account}/{peer}/{thread}");
    BeatPlace { account, conversation }
}

/// Notes the `outcome` of a call that shows in `target` that `turn` writes. Its limits hold no message back.
fn note_typing(outfit: &DelivererContext, target: &DeliveryContext, turn: Ulid, outcome: &CallOutcome) {
    // Nothing is shown, and the next beat may show it.
    let is_passing = matches!(
        outcome,
        CallOutcome::Limited { .. }
            | CallOutcome::Unreachable { .. }
            | CallOutcome::Refused {
                refusal: Refusal::Passing { .. },
                ..
            }
    );
    if is_passing {
        outfit.typing.note_unshown(&beat_place(target), turn);
    }

    match outcome {
        CallOutcome::Reauth { .. } => outfit.gates.note_outcome(target, outcome),
        CallOutcome::Limited { after, .. }
        | CallOutcome::Refused {
            refusal: Refusal::Passing { after: Some(after) },
            ..
        } => {
            let now = outfit.clock.monotonic();
            outfit.typing.note_limit(&beat_place(target).account, *after, now);
        }
        CallOutcome::Accepted { .. }
        | CallOutcome::Refused { .. }
        | CallOutcome::WindowClosed { .. }
        | CallOutcome::TooLarge { .. }
        | CallOutcome::Unformattable { .. }
        | CallOutcome::Unreachable { .. }
        | CallOutcome::Withheld => {}
    }
}
