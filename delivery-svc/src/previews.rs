//! Previews: an answer that is being made, in one message that is edited until it is whole.
//!
//! The partition's owner alone shows them. A receipt says that the message is about to be sent, and another one which it is,
//! so that a replica that follows makes the same message whole, and never sends a second one; what was shown in between is
//! lost without harm. The reply ends a preview before its first call: no later edit of a beginning overwrites the whole
//! text. Source: `docs/design/channels.md` §2.5.

mod message;
mod receipts;

use std::sync::Arc;
use std::time::{Duration, Instant};

use shared::bus::ReadStreamError;
use shared::bus::partition::PartitionLease;
use shared::clock::pause;
use shared::model::dispatch::{DeliveryContext, derived_ulid};
use shared::model::event::DEFAULT_ACCOUNT;
use shared::model::live::{AnswerPreview, WritingBeat};
use shared::model::reply::Reply;
use shared::model::time::UnixMillis;
use shared::wire::unknown::UnknownFields;
use ulid::Ulid;

use self::receipts::{FoundPreview, find_preview};
use crate::destination::partition_of;
use crate::effects::DelivererContext;
use crate::job::DeliveryJob;
use crate::shown_previews::TurnPreview;

/// Least interval between two edits of a message.
const MIN_EVERY: Duration = Duration::from_secs(1);
/// Time between two looks at what is to be shown.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Ends the preview of the turn whose reply is `job`, and returns the platform's id of its message, if there is one. No
/// call for it is made any more when this returns.
///
/// # Errors
/// Returns [`ReadStreamError`] if the receipts cannot be read.
pub async fn end_preview(
    outfit: &DelivererContext,
    job: &DeliveryJob,
    lease: &PartitionLease,
) -> Result<Option<String>, ReadStreamError> {
    let reply = &job.reply;
    let shows = outfit.traits_of(reply).previews;
    if !shows || reply.id != reply.turn || reply.action.is_some() {
        return Ok(None);
    }

    let now = outfit.clock.monotonic();
    let _new = outfit.previews.note_text(reply.turn, "", now);
    let Some(preview) = outfit.previews.get(reply.turn) else {
        // More turns than are remembered: this one was not shown by this process.
        return found_message(outfit, reply, lease).await;
    };
    let mut message = preview.message.lock().await;
    if let Some(ended) = message.end() {
        return Ok(ended);
    }
    let found = found_message(outfit, reply, lease).await?;
    message.close_with(found.clone());
    Ok(found)
}

/// Returns the message that the receipts have for the preview of `reply`. One whose sending had no answer is searched for.
async fn found_message(
    outfit: &DelivererContext,
    reply: &Reply,
    lease: &PartitionLease,
) -> Result<Option<String>, ReadStreamError> {
    match find_preview(&outfit.bus, &reply.delivery_context, reply.turn).await?.0 {
        FoundPreview::None | FoundPreview::Ended => Ok(None),
        FoundPreview::Shown(id) => Ok(Some(id)),
        FoundPreview::Opening(since) => {
            let shown = preview_reply(reply.turn, &reply.delivery_context, &preview_of(reply));
            Ok(message::search(outfit, &shown, lease, since).await)
        }
    }
}

fn preview_of(reply: &Reply) -> AnswerPreview {
    AnswerPreview {
        session: reply.session.clone(),
        causation: reply.causation.clone(),
        text: String::new(),
    }
}

/// Returns the reply that shows `preview` of `turn` in `target`. It has an id of its own: the platform must not take the
/// whole answer for its repetition.
fn preview_reply(turn: Ulid, target: &DeliveryContext, preview: &AnswerPreview) -> Reply {
    let at = UnixMillis(i64::try_from(turn.timestamp_ms()).unwrap_or(i64::MAX));
    Reply {
        id: derived_ulid(at, &["preview", &turn.to_string()]),
        turn,
        session: preview.session.clone(),
        delivery_context: target.clone(),
        content: format!("{} …", preview.text.trim_end()),
        attachments: Vec::new(),
        interactive: None,
        causation: preview.causation.clone(),
        action: None,
        send: None,
        failed: false,
        unknown: UnknownFields::default(),
    }
}

/// Follows `beat`, which has a `preview`: shows it, if the account does that and this replica owns the destination.
pub fn follow_preview(outfit: &Arc<DelivererContext>, beat: &WritingBeat, preview: &AnswerPreview) {
    let target = &beat.target;
    let account = target.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT);
    let channel = outfit.channels.get(&target.channel);
    let shows = channel.is_some_and(|channel| channel.traits(account).previews);
    // After a restore an operator decides what leaves.
    if !shows || outfit.restored.is_some() || outfit.typing.was_sent(beat.turn) {
        return;
    }
    let Some(lease) = outfit.typing.lease_of(partition_of(target)) else {
        return;
    };
    let reply = preview_reply(beat.turn, target, preview);
    if outfit.policy.denying_rule(&reply).is_some() {
        return;
    }

    let now = outfit.clock.monotonic();
    if let Some(new) = outfit.previews.note_text(beat.turn, &preview.text, now) {
        tokio::spawn(show(Arc::clone(outfit), new, reply, lease));
    }
}

/// Shows what the turn of `reply` wants to be shown, until it is over.
async fn show(outfit: Arc<DelivererContext>, preview: Arc<TurnPreview>, reply: Reply, lease: PartitionLease) {
    let target = &reply.delivery_context;
    let Some(channel) = outfit.channels.get(&target.channel) else {
        return;
    };
    let pace = channel.pace(target);
    let every = pace.map_or(MIN_EVERY, |pace| pace.pace.chat.interval.max(MIN_EVERY));
    let mut next: Option<Instant> = None;

    loop {
        let now = outfit.clock.monotonic();
        let (text, alive_at) = {
            let wanted = preview.lock_wanted();
            (wanted.text.clone(), wanted.alive_at)
        };
        let is_due = next.is_none_or(|next| now >= next);

        {
            let mut message = preview.message.lock().await;
            if message.is_closed() {
                return;
            }
            if !lease.is_live() {
                // The next owner goes by the receipts.
                message.close_with(None);
                outfit.previews.forget(reply.turn);
                return;
            }
            if now.saturating_duration_since(alive_at) >= outfit.previews.abandoned_after {
                message.take_back(&outfit, &reply, &lease).await;
                // Beats that come nevertheless find its end in the receipts.
                outfit.previews.forget(reply.turn);
                return;
            }

            let is_new = !text.is_empty() && !message.shows(&text);
            // What is shown is worth no call that a message needs.
            if is_due && is_new && outfit.gates.admit_spare(target, pace) {
                let preview = AnswerPreview {
                    text: text.clone(),
                    ..preview_of(&reply)
                };
                let shown = preview_reply(reply.turn, target, &preview);
                let wait = message.show_text(&outfit, &shown, &text, &lease).await;
                next = Some(outfit.clock.monotonic() + every.max(wait));
            }
        }

        pause(LOOK_EVERY).await;
    }
}
