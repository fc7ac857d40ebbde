//! Conversion of a change of an earlier message to an Event. *Pure.*
//!
//! As with sent parts, the event depends only on the reply, the message and the receipt's time, so it is the same when
//! made again after a crash.

use serde_json::json;
use shared::model::event::{Event, EventDirection, ParseEventIdError, PlatformIds};
use shared::model::reply::{Reply, ReplyAction};

use crate::changed_message::ChangedMessage;
use crate::outbound::sent_event;
use crate::plan::MessagePart;
use crate::resume::SentPart;

/// Key in the metadata of an edited or deleted message's event: the delivery that changed it.
pub const CHANGED_BY: &str = "changed_by";

/// Returns the event of the change of `message` that `reply` made, as `sent` says: of an edit or a deletion the event of
/// the message, which is now another; of a reaction an event of its own.
///
/// # Errors
/// Returns [`ParseEventIdError`] if the reply's ids make no event id.
pub fn change_event(
    reply: &Reply,
    action: &ReplyAction,
    part: &MessagePart,
    message: &ChangedMessage,
    sent: &SentPart,
) -> Result<Event, ParseEventIdError> {
    // The ids are those of the message, and not of its change.
    let without_ids = SentPart {
        platform_ids: Vec::new(),
        ..sent.clone()
    };
    let mut event = sent_event(reply, part, &without_ids, false)?;
    match (action, message.sent) {
        (ReplyAction::Edit { .. } | ReplyAction::Delete { .. }, Some((delivery, index))) => {
            event.source_id = format!("{delivery}/{index}");
            event.id = message.event.clone();
            event.direction = EventDirection::Updated;
            event.edited_at = Some(sent.at);
            event.metadata.insert("delivery".to_owned(), json!(delivery));
            event.metadata.insert(CHANGED_BY.to_owned(), json!(reply.id));
            let platform = PlatformIds {
                ids: vec![message.platform_id.clone()],
                part: index,
            };
            platform.write_to(&mut event);
        }
        (ReplyAction::Edit { .. } | ReplyAction::Delete { .. }, None) | (ReplyAction::React { .. }, _) => {
            event.target = Some(message.event.to_string());
        }
    }

    match action {
        ReplyAction::Edit { .. } => {}
        ReplyAction::Delete { .. } => {
            event.direction = EventDirection::Deleted;
            event.content = String::new();
        }
        ReplyAction::React { emoji, removed, .. } => {
            event.content_types = vec!["reaction".to_owned()];
            event.content = if *removed { String::new() } else { emoji.clone() };
            let given = json!({"emoji": emoji, "added": !removed});
            event.metadata.insert("reaction".to_owned(), given);
        }
    }
    Ok(event)
}

#[cfg(test)]
mod tests {
    use shared::model::event::EventId;
    use shared::model::time::UnixMillis;
    use ulid::Ulid;

    use super::*;
    use crate::examples::reply;

    const FORMER: Ulid = Ulid::from_parts(1_700_000_000_000, 3);

    fn message(sent: Option<(Ulid, u32)>, id: &str) -> ChangedMessage {
        ChangedMessage {
            event: EventId::parse(id).expect("an id"),
            sent,
            platform_id: "77/5".to_owned(),
        }
    }

    fn event_of(action: &ReplyAction, message: &ChangedMessage) -> Event {
        let mut reply = reply("new words");
        reply.action = Some(action.clone());
        let part = MessagePart {
            content: "<b>new words</b>".to_owned(),
            plain: Some("new words".to_owned()),
            ..MessagePart::default()
        };
        let sent = SentPart {
            index: 0,
            at: UnixMillis(9_000),
            platform_ids: vec!["77/5".to_owned()],
            is_unconfirmed: false,
        };
        change_event(&reply, action, &part, message, &sent).expect("an event")
    }

    #[test]
    fn an_edit_is_the_event_of_the_message_with_other_words_and_a_deletion_has_none() {
        let id = format!("out:{FORMER}/1");
        let message = message(Some((FORMER, 1)), &id);
        let edit = event_of(&ReplyAction::Edit { target: id.clone() }, &message);
        assert_eq!((edit.id.as_str(), edit.content.as_str()), (id.as_str(), "new words"));
        assert_eq!(
            (edit.direction, edit.edited_at),
            (EventDirection::Updated, Some(UnixMillis(9_000)))
        );
        assert_eq!(edit.metadata["platform"], json!({"ids": ["77/5"], "part": 1}));
        assert_eq!(edit.metadata["delivery"], json!(FORMER));
        assert_eq!(edit.metadata[CHANGED_BY], json!(reply("x").id));

        let deleted = event_of(&ReplyAction::Delete { target: id.clone() }, &message);
        assert_eq!((deleted.id.as_str(), deleted.content.as_str()), (id.as_str(), ""));
        assert_eq!(deleted.direction, EventDirection::Deleted);
    }

    #[test]
    fn a_reaction_is_an_event_of_its_own_that_takes_no_message_for_its_own() {
        let target = "telegram:bot/77/5".to_owned();
        let reaction = |removed| ReplyAction::React {
            target: target.clone(),
            emoji: "👍".to_owned(),
            removed,
        };
        let added = event_of(&reaction(false), &message(None, &target));
        assert_eq!(added.id.as_str(), format!("out:{}/0", reply("x").id));
        assert_eq!(
            (added.target.as_deref(), added.content.as_str()),
            (Some(target.as_str()), "👍")
        );
        assert_eq!(added.direction, EventDirection::Sent);
        assert_eq!(added.content_types, ["reaction"]);
        assert!(!added.metadata.contains_key("platform"));
        assert_eq!(added.metadata["reaction"], json!({"emoji": "👍", "added": true}));

        assert_eq!(event_of(&reaction(true), &message(None, &target)).content, "");
    }
}
