//! Events, with every field set and with the least.

use super::*;

pub(crate) fn attachment() -> Attachment {
    Attachment {
        id: some("f1"),
        duration_ms: Some(1_500),
        transcript: some("hello"),
        state: AttachmentState::Refused(RefusedAttachment::TooLarge),
        max_bytes: None,
        handle: some("https://files.example/f1"),
        expires_at: Some(AT.plus(60_000)),
        filename: some("a.png"),
        mime_type: some("image/png"),
        size_bytes: Some(5),
        media_type: "image".to_owned(),
        storage_uri: some("nats://attachments/a"),
        content_hash: some("00ff"),
    }
}

pub(crate) fn event() -> Event {
    Event {
        id: id(),
        timestamp: AT,
        received_at: AT.plus(7),
        channel: "telegram".to_owned(),
        source_adapter: "telegram".to_owned(),
        source_id: "main/-100/42".to_owned(),
        account_id: some("main"),
        direction: EventDirection::Observed,
        from: EventSender {
            id: "u1".to_owned(),
            display_name: some("Ada"),
            roles: vec!["admin".to_owned()],
        },
        participants: vec![EventParticipant {
            id: "u2".to_owned(),
            role: ParticipantRole::Cc,
            display_name: some("Bob"),
        }],
        peer: EventPeer {
            kind: PeerKind::Group,
            id: "-100".to_owned(),
            parent_id: some("p"),
            guild_id: some("g"),
            team_id: some("t"),
        },
        thread_id: some("7"),
        reply_to: some("telegram:main/-100/41"),
        target: some("telegram:main/-100/40"),
        edited_at: Some(AT.plus(3)),
        mention: Some(EventMention {
            me: true,
            how: MentionForm::Native,
        }),
        quote: Some(EventQuote {
            id: "telegram:main/-100/39".to_owned(),
            text: "as I said".to_owned(),
            from: Some(EventSender {
                id: "u3".to_owned(),
                display_name: some("Eve"),
                roles: Vec::new(),
            }),
        }),
        content: "grüße, 世界".to_owned(),
        content_types: vec!["text".to_owned(), "image".to_owned()],
        attachments: vec![attachment()],
        metadata: object(json!({ "deep": { "list": [null, "a"] }, "is_group": true, "n": -1, "x": 1.5 })),
        tags: vec!["vip".to_owned()],
        hops: 2,
        origin: EventOrigin::account("telegram", "main"),
        speaks_for: vec!["casey".to_owned()],
        unknown: UnknownFields::default(),
    }
}

/// An event whose file is larger than was allowed.
pub(crate) fn large_file_event() -> Event {
    let mut file = Attachment {
        media_type: "video".to_owned(),
        ..Attachment::default()
    };
    file.refuse_too_large(20_971_520);
    Event {
        attachments: vec![file],
        ..least_event()
    }
}

pub(crate) fn least_event() -> Event {
    Event::new(
        EventId::parse("webchat:default/v/1").expect("an id"),
        "webchat",
        "v",
        AT,
    )
}
