//! Conversion of a sent part to an outbound Event. *Pure.* Source: seed 003 §3; `docs/design/channels.md` §7.
//!
//! The event depends only on the reply, the part and the receipt's time, so it is the same when made again after a
//! crash.

use serde_json::{Map, Value, json};
use shared::model::approval::{ApprovalCard, CARD};
use shared::model::event::{
    Event, EventDirection, EventId, EventParticipant, EventSender, MAX_HOPS, ParseEventIdError, ParticipantRole,
    PlatformIds,
};
use shared::model::origin::EventOrigin;
use shared::model::pairing::PairingNotice;
use shared::model::reply::Reply;
use ulid::Ulid;

use crate::plan::MessagePart;
use crate::resume::SentPart;

/// Adapter name in the ids of sent events.
pub const SENT_ADAPTER: &str = "out";

/// Key in the metadata of a sent event: the platform may show the part twice.
pub const UNCONFIRMED: &str = "unconfirmed";

/// Returns the event id of part `index` of `reply`: `out:{delivery}/{part}`.
///
/// # Errors
/// Never fails for an id made of a ULID and a number; the id's type requires the check.
pub fn sent_event_id(reply: &Reply, index: u32) -> Result<EventId, ParseEventIdError> {
    sent_event_id_of(reply.id, index)
}

/// Returns the event id of part `index` of `delivery`.
///
/// # Errors
/// Returns the errors of [`sent_event_id`].
pub fn sent_event_id_of(delivery: Ulid, index: u32) -> Result<EventId, ParseEventIdError> {
    EventId::parse(format!("{SENT_ADAPTER}:{delivery}/{index}"))
}

/// Returns the event of `part` of `reply`, which was sent as `sent` says. `has_files` says that files are parts of their
/// own: each part's event has its own then, and otherwise the first one has all.
///
/// `hops` is one more than the causing event's, at most [`MAX_HOPS`]: an event with this many makes no more
/// dispatches.
///
/// # Errors
/// Returns the errors of [`sent_event_id`].
pub fn sent_event(
    reply: &Reply,
    part: &MessagePart,
    sent: &SentPart,
    has_files: bool,
) -> Result<Event, ParseEventIdError> {
    let target = &reply.delivery_context;
    let peer = target.peer_id.as_deref().unwrap_or_default();
    let mut event = Event::new(sent_event_id(reply, part.index)?, &target.channel, peer, sent.at);
    event.origin = EventOrigin::System;
    event.account_id.clone_from(&target.account_id);
    event.direction = EventDirection::Sent;
    event.from = EventSender {
        id: reply.session.persona.clone(),
        ..EventSender::default()
    };

    event.participants = vec![EventParticipant {
        id: peer.to_owned(),
        role: ParticipantRole::Recipient,
        display_name: None,
    }];
    event.thread_id.clone_from(&target.thread_id);
    event.reply_to = Some(
        target
            .reply_to_id
            .clone()
            .unwrap_or_else(|| reply.causation.event.to_string()),
    );

    event.content = sent_text(reply, part);

    let attached = reply.attachments.iter();
    event.attachments = match &part.file {
        Some(file) => attached
            .filter(|attached| file.is_of(attached))
            .take(1)
            .cloned()
            .collect(),
        None if part.index == 0 && !has_files => attached.cloned().collect(),
        None => Vec::new(),
    };
    if let Some(file) = &part.file {
        event.content_types = vec![file.media_type.clone()];
    }

    event.metadata = reply_metadata(reply);
    let platform = PlatformIds {
        ids: sent.platform_ids.clone(),
        part: part.index,
    };
    platform.write_to(&mut event);
    if sent.is_unconfirmed {
        event.metadata.insert(UNCONFIRMED.to_owned(), Value::Bool(true));
    }

    if let Some(card) = ApprovalCard::from_interactive(reply.interactive.as_ref()) {
        let told = json!({"id": card.approval, "arguments_hash": card.arguments_hash});
        event.metadata.insert(CARD.to_owned(), told);
    }

    // A reply that leads to an event counts as a hop, so that two agents cannot answer each other for ever.
    event.hops = reply.causation.hops.saturating_add(1).min(MAX_HOPS);
    Ok(event)
}

/// Returns the text of `part` of `reply` as its event has it.
pub(crate) fn sent_text(reply: &Reply, part: &MessagePart) -> String {
    // A platform's markup is for the platform.
    let text = part.plain_text();
    // Hooks, searches and agents read the event, and none of them may learn a code, or the link of an approval.
    let card = ApprovalCard::from_interactive(reply.interactive.as_ref());
    match (&card, PairingNotice::from_interactive(reply.interactive.as_ref())) {
        (Some(card), _) => card.redact_text(text),
        (None, Some(notice)) => notice.redact_text(text),
        (None, None) => text.to_owned(),
    }
}

fn reply_metadata(reply: &Reply) -> Map<String, Value> {
    [
        ("delivery", reply.id.to_string()),
        ("turn", reply.turn.to_string()),
        ("session", reply.session.session.clone()),
        ("persona", reply.session.persona.clone()),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), Value::String(value)))
    .collect()
}

#[cfg(test)]
mod tests {
    use shared::model::time::UnixMillis;

    use super::*;
    use crate::examples::reply;

    fn sent_as(index: u32) -> SentPart {
        SentPart {
            index,
            at: UnixMillis(5),
            platform_ids: vec!["m1".to_owned(), "m2".to_owned()],
            is_unconfirmed: false,
        }
    }

    fn sent(reply: &Reply) -> Event {
        let part = MessagePart {
            index: 1,
            content: "second".to_owned(),
            ..MessagePart::default()
        };
        sent_event(reply, &part, &sent_as(1), false).expect("an event")
    }

    #[test]
    fn says_who_sent_what_to_whom_and_why() {
        let reply = reply("whole");
        let event = sent(&reply);
        assert_eq!(event.id.as_str(), format!("out:{}/1", reply.id));
        assert_eq!(event.direction, EventDirection::Sent);
        assert_eq!(event.conversation(), ("nats", "demo", "ann"));
        assert_eq!(event.from.id, "echo");
        assert_eq!(event.content, "second");
        assert_eq!(event.reply_to.as_deref(), Some("webchat:42"));
        assert_eq!(event.metadata["session"], "main");
        assert_eq!(event.metadata["platform"], json!({"ids": ["m1", "m2"], "part": 1}));
        assert_eq!(event.hops, 1);
    }

    #[test]
    fn answers_the_causing_event_where_no_other_is_named() {
        let mut reply = reply("whole");
        reply.delivery_context.reply_to_id = None;
        assert_eq!(sent(&reply).reply_to.as_deref(), Some("webchat:42"));
    }

    #[test]
    fn hops_stop_at_the_bound() {
        let mut reply = reply("whole");
        for (before, after) in [(6, 7), (7, 8), (8, 8), (u8::MAX, 8)] {
            reply.causation.hops = before;
            assert_eq!(sent(&reply).hops, after);
        }
    }

    #[test]
    fn the_code_and_the_link_of_a_card_are_for_its_reader_alone() {
        let mut reply = reply("whole");
        let link = "https://nexus.example/approvals/a1?sig=00";
        reply.interactive = Some(json!({
            "kind": "approval", "approval": "a1", "code": "K7Q2-M9PX", "arguments_hash": "9f", "link": link,
        }));
        let part = MessagePart {
            index: 0,
            content: format!("pay 60000\nDecide: {link}\nReply: approve K7Q2-M9PX or deny K7Q2-M9PX"),
            ..MessagePart::default()
        };

        let event = sent_event(&reply, &part, &sent_as(0), false).expect("an event");
        assert!(event.content.contains("pay 60000"), "{}", event.content);
        assert!(
            !event.content.contains("K7Q2") && !event.content.contains("sig="),
            "{}",
            event.content
        );
        assert_eq!(event.metadata["approval"], json!({"id": "a1", "arguments_hash": "9f"}));
    }

    #[test]
    fn the_code_of_a_pairing_is_for_its_reader_alone() {
        let mut reply = reply("whole");
        reply.interactive = Some(json!({"kind": "pairing", "code": "K7Q2-M9PX"}));
        let part = MessagePart {
            content: "<b>K7Q2-M9PX</b>".to_owned(),
            plain: Some("tell this code: K7Q2-M9PX".to_owned()),
            ..MessagePart::default()
        };
        let event = sent_event(&reply, &part, &sent_as(0), false).expect("an event");
        assert!(
            event.content.starts_with("tell this code") && !event.content.contains("K7Q2"),
            "{}",
            event.content
        );
        assert!(!serde_json::to_string(&event).expect("JSON").contains("K7Q2"));
    }

    #[test]
    fn the_event_of_a_part_with_markup_has_its_plain_text() {
        let part = MessagePart {
            content: "<b>1 &lt; 2</b>".to_owned(),
            plain: Some("1 < 2".to_owned()),
            ..MessagePart::default()
        };
        let event = sent_event(&reply("**1 < 2**"), &part, &sent_as(0), false).expect("an event");
        assert_eq!(event.content, "1 < 2");
    }

    #[test]
    fn a_part_that_may_be_there_twice_is_marked() {
        let part = MessagePart::default();
        let doubtful = SentPart {
            is_unconfirmed: true,
            ..sent_as(0)
        };
        let event = sent_event(&reply("x"), &part, &doubtful, false).expect("an event");
        assert_eq!(event.metadata["unconfirmed"], json!(true));
        assert!(!sent(&reply("x")).metadata.contains_key("unconfirmed"));
    }

    #[test]
    fn made_again_it_is_the_same() {
        let reply = reply("whole");
        assert_eq!(sent(&reply), sent(&reply));
    }
}
