//! Participants of events, the persons they belong to, and the details of events.

use super::Case;
use super::samples::{at, event, event_id, stored};
use crate::model::event::{
    Attachment, AttachmentState, Event, EventDirection, EventId, EventMention, EventParticipant, MentionForm,
    ParticipantRole, PlatformIds, RefusedAttachment,
};
use crate::model::identity::Identities;
use crate::model::origin::EventOrigin;
use crate::model::time::UnixMillis;
use crate::projection::{AppliedRecord, FeedSource, Projection};

fn identities(yaml: &str) -> Identities {
    serde_yaml_ng::from_str(yaml).unwrap()
}

const FAMILY: &str = "
owner: casey
persons:
  - {id: casey, name: Casey, addresses: {imessage: ['+1 555 000'], telegram: ['7']}}
  - {id: mom, name: Mom, relationship: family, addresses: {imessage: ['+15551'], '*': ['mom@home.org']}}
";

/// Returns a text from `from` on `channel`, `n` minutes after the first.
fn text(sequence: u64, channel: &str, from: &str, minutes: u64) -> AppliedRecord {
    let mut event = event(sequence);
    event.timestamp = at(minutes * 60_000);
    event.channel = channel.to_owned();
    event.from.id = from.to_owned();
    event.origin = EventOrigin::account(channel, "default");
    stored(sequence, event)
}

const WHO: &str =
    "SELECT group_concat(who, '; ') FROM (SELECT ep.event_id || ' ' || p.canonical_name || ' ' || ep.role AS who
    FROM event_participants ep JOIN person_contact_links pcl ON pcl.contact_id = ep.contact_id
    JOIN persons p ON p.id = pcl.person_id ORDER BY ep.event_id)";

#[tokio::test]
async fn identities_link_contacts_whichever_comes_first() {
    let events = vec![
        text(1, "imessage", "+15551", 0),
        text(2, "email", "mom@home.org", 1),
        text(3, "telegram", "7", 2),
        text(4, "telegram", "8", 3),
    ];

    let before = Case::new();
    before
        .projection
        .set_identities(identities(FAMILY), at(9))
        .await
        .unwrap();
    before.projection.apply(events.clone()).await.unwrap();
    let after = Case::with(events).await;
    after
        .projection
        .set_identities(identities(FAMILY), at(9))
        .await
        .unwrap();

    assert_eq!(before.dump(), after.dump());

    // The mail belongs to no person: a From header proves no address.
    let who = "webhook:demo/1 Mom sender; webhook:demo/3 Casey sender";
    assert_eq!(before.value::<String>(WHO), who);

    let me = "SELECT display_name || is_me || coalesce(relationship_type, '') FROM persons WHERE is_me";
    assert_eq!(before.value::<String>(me), "Casey1");

    let named =
        "SELECT display_name || ' ' || normalized FROM contacts c JOIN contact_identifiers i ON i.contact_id = c.id
        WHERE c.source = 'identities'";
    assert_eq!(
        before.value::<String>(named),
        "Casey +1555000",
        "known, though nothing came from there"
    );
}

#[tokio::test]
async fn who_merely_says_so_is_another_contact_whichever_comes_first() {
    let by = |sequence: u64, origin: &str| {
        let AppliedRecord::Event { event, .. } = text(sequence, "telegram", "7", sequence) else {
            panic!("an event")
        };
        let mut event = Event::clone(&event);
        event.origin = EventOrigin::parse(origin).unwrap();
        event.from.display_name = Some(format!("by {origin}"));
        stored(sequence, event)
    };

    let events = vec![
        by(1, "open"),
        by(2, "verified:telegram/default"),
        by(3, "token:crm"),
        by(4, "open"),
    ];

    let before = Case::new();
    before
        .projection
        .set_identities(identities(FAMILY), at(9))
        .await
        .unwrap();
    before.projection.apply(events.clone()).await.unwrap();
    let after = Case::with(events).await;
    after
        .projection
        .set_identities(identities(FAMILY), at(9))
        .await
        .unwrap();

    assert_eq!(before.dump(), after.dump());
    assert_eq!(before.value::<String>(WHO), "webhook:demo/2 Casey sender");

    let name = "SELECT display_name FROM contacts WHERE id = 'telegram:7'";
    assert_eq!(before.value::<String>(name), "by verified:telegram/default");
}

#[tokio::test]
async fn changed_identities_relink_what_was_met() {
    let case = Case::with(vec![text(1, "imessage", "+15551", 0)]).await;
    case.projection.set_identities(identities(FAMILY), at(1)).await.unwrap();
    let renamed = FAMILY
        .replace("id: mom, name: Mom", "id: mother, name: Mother")
        .replace("telegram: ['7']", "");
    case.projection
        .set_identities(identities(&renamed), at(2))
        .await
        .unwrap();

    assert_eq!(case.value::<String>(WHO), "webhook:demo/1 Mother sender");

    let kept =
        "SELECT group_concat(id || ' ' || (updated_at - 1700000000000), '; ') FROM (SELECT * FROM persons ORDER BY id)";
    assert_eq!(case.value::<String>(kept), "casey 1; mother 2");
    assert_eq!(
        case.value::<i64>("SELECT count(*) FROM contacts WHERE id = 'telegram:7'"),
        0
    );

    case.projection
        .set_identities(Identities::default(), at(3))
        .await
        .unwrap();
    let left = "SELECT (SELECT count(*) FROM persons) + (SELECT count(*) FROM person_contact_links)";
    assert_eq!(case.value::<i64>(left), 0);
    assert_eq!(
        case.value::<i64>("SELECT count(*) FROM contacts"),
        1,
        "whoever was met stays met"
    );
}

#[tokio::test]
async fn a_contact_is_seen_in_steps_that_a_restart_does_not_show() {
    let seconds = |sequence: u64, seconds: u64| {
        let mut event = event(sequence);
        event.timestamp = at(seconds * 1_000);
        stored(sequence, event)
    };
    let all = [
        seconds(1, 0),
        seconds(2, 30),
        seconds(3, 61),
        seconds(4, 100),
        seconds(5, 122),
    ];

    let whole = Case::with(all.to_vec()).await;
    let cut = Case::with(all[..2].to_vec()).await;
    cut.projection.close().await;
    let again = Projection::open(cut.projection.path()).unwrap();
    again.apply(all[2..].to_vec()).await.unwrap();

    assert_eq!(whole.dump(), cut.dump());

    let seen = "SELECT (last_seen_at - created_at) || '' FROM contact_identifiers";
    assert_eq!(whole.value::<String>(seen), "122000");
}

#[tokio::test]
async fn what_goes_with_an_event_is_written_and_rewritten() {
    let mut first = event(1);
    first.thread_id = Some("t-1".to_owned());
    first.tags = vec!["work".to_owned(), "urgent".to_owned(), "work".to_owned()];

    first.attachments = vec![Attachment {
        filename: Some("a.png".to_owned()),
        size_bytes: Some(7),
        media_type: "image".to_owned(),
        state: AttachmentState::Refused(RefusedAttachment::TooLarge),
        duration_ms: Some(5),
        transcript: Some("words".to_owned()),
        ..Attachment::default()
    }];

    let bob = EventParticipant {
        id: "bob".to_owned(),
        role: ParticipantRole::Cc,
        display_name: Some("Bob".to_owned()),
    };
    first.participants = vec![bob.clone(), bob];
    first.metadata.insert("is_read".to_owned(), false.into());

    let mut read = first.clone();
    read.direction = EventDirection::Updated;
    read.content = "new words".to_owned();
    read.tags = vec!["done".to_owned()];
    read.metadata.insert("is_read".to_owned(), true.into());
    read.metadata.insert("starred".to_owned(), true.into());
    let case = Case::with(vec![stored(1, first), stored(2, read)]).await;

    let states = "SELECT read_state || flagged || coalesce(archived, '-') || coalesce(status, '-') FROM event_state";
    assert_eq!(case.value::<String>(states), "read1--");
    assert_eq!(case.value::<String>("SELECT group_concat(tag) FROM event_tags"), "done");
    assert_eq!(
        case.value::<String>("SELECT id || filename FROM attachments"),
        "webhook:demo/1#0a.png"
    );
    let kept = "SELECT state || ' ' || refused || ' ' || duration_ms || ' ' || transcript FROM attachments";
    assert_eq!(case.value::<String>(kept), "refused too_large 5 words");
    assert_eq!(
        case.value::<String>("SELECT id || channel || is_group FROM threads"),
        "t-1webhook0"
    );

    let roles = "SELECT group_concat(contact_id || ' ' || role) FROM event_participants";
    assert_eq!(case.value::<String>(roles), "webhook:alice sender,webhook:bob cc");

    let found = |word: &str| format!("SELECT count(*) FROM events_fts WHERE events_fts MATCH '{word}'");
    assert_eq!(
        (case.value::<i64>(&found("hello")), case.value::<i64>(&found("words"))),
        (0, 1)
    );
    assert_eq!(
        case.value::<String>("SELECT content FROM events_fts WHERE events_fts MATCH 'words'"),
        "new words"
    );

    let checked = "INSERT INTO events_fts(events_fts, rank) VALUES('integrity-check', 1)";
    rusqlite::Connection::open(case.projection.path())
        .unwrap()
        .execute(checked, [])
        .expect("the index of words holds what the events hold");

    let mut gone = event(1);
    gone.direction = EventDirection::Deleted;
    let mut late = event(1);
    late.direction = EventDirection::Updated;
    late.content = "words again".to_owned();
    case.projection
        .apply(vec![stored(3, gone), stored(4, late)])
        .await
        .unwrap();

    assert_eq!(case.value::<i64>(&found("words")), 0, "what was deleted is not found");
    assert_eq!(case.value::<String>("SELECT status FROM event_state"), "deleted");
}

#[tokio::test]
async fn turns_of_other_harnesses_fill_the_agent_tables() {
    let turn = |role: &str, n: u64, metadata: serde_json::Value| {
        let id = EventId::parse(format!("aix:turn:t1:{role}")).unwrap();
        let mut event = Event::new(id, "aix", "s-1", at(n));
        event.content = format!("{role} speaks");
        event.metadata = metadata.as_object().unwrap().clone();
        stored(n, event)
    };

    let call = serde_json::json!([{"id": "c1", "name": "bash", "args": {"command": "ls"}, "outcome": "ok"}]);
    let case = Case::with(vec![
        turn("user", 1, serde_json::json!({"harness": "codex", "session_id": "s-1"})),
        turn("assistant", 2, serde_json::json!({"harness": "codex", "session_id": "s-1", "model": "m", "tokens_in": 5, "tool_calls": call})),
    ])
    .await;

    let session = "SELECT id || ' ' || source || ' ' || model || ' ' || tokens_in FROM agent_sessions";
    assert_eq!(case.value::<String>(session), "aix:codex:s-1 codex m 5");

    let turns = "SELECT id || ' ' || status || ' ' || event_id || ' ' || (finished_at - started_at) FROM agent_turns";
    assert_eq!(case.value::<String>(turns), "aix:t1 completed aix:turn:t1:user 1");
    assert_eq!(case.value::<i64>("SELECT count(*) FROM agent_messages"), 2);
    assert_eq!(
        case.value::<String>("SELECT name || args_json FROM agent_tool_calls"),
        "bash{\"command\":\"ls\"}"
    );
}

#[tokio::test]
async fn watermarks_tell_the_newest_of_each_adapter() {
    let case = Case::with((1..=20).map(|n| stored(n, event(n))).collect()).await;
    assert_eq!(
        case.value::<String>("SELECT adapter || ' ' || account || ' ' || position FROM sync_watermarks"),
        "webhook default demo/20"
    );
    assert_eq!(case.projection.position(FeedSource::Events), 20);
    assert_eq!(case.projection.first_sequence(&event_id(3)).unwrap(), Some(3));
}

/// Returns `event` as the platform's messages `ids`.
fn with_platform_ids(mut event: Event, ids: &[&str], part: u32) -> Event {
    let platform = PlatformIds {
        ids: ids.iter().map(|id| (*id).to_owned()).collect(),
        part,
    };
    platform.write_to(&mut event);
    event
}

#[tokio::test]
async fn a_platforms_id_leads_to_the_event_that_named_it_first() {
    let mut stranger = with_platform_ids(event(3), &["13"], 0);
    stranger.origin = EventOrigin::Open;
    let mut first = with_platform_ids(event(1), &["11", "12"], 2);
    let mut second = with_platform_ids(event(2), &["12"], 0);
    second.peer = first.peer.clone();
    let mut own = with_platform_ids(event(4), &["11"], 1);
    own.peer = first.peer.clone();
    let token = EventOrigin::Token {
        name: "shop".to_owned(),
    };
    first.origin = token.clone();
    second.origin = token;
    let records = vec![stored(1, first), stored(2, second), stored(3, stranger)];
    let case = Case::with(records).await;

    let rows = "SELECT group_concat(platform_id || ' ' || event_id || ' ' || part) FROM platform_ids";
    assert_eq!(case.value::<String>(rows), "11 webhook:demo/1 2,12 webhook:demo/1 2");
}

#[tokio::test]
async fn an_own_message_is_found_in_the_chat_that_its_platform_names() {
    let with_id = |number, peer: &str, id: &str, origin| {
        let mut event = with_platform_ids(event(number), &[id], 0);
        event.peer.id = peer.to_owned();
        event.origin = origin;
        event
    };
    let token = EventOrigin::Token {
        name: "shop".to_owned(),
    };
    let records = vec![
        stored(1, with_id(1, "U5", "D1/17.5", EventOrigin::System)),
        stored(2, with_id(2, "C1", "C1/18.5", EventOrigin::System)),
        stored(3, with_id(3, "U6", "D2/19.5", token)),
    ];
    let case = Case::with(records).await;

    let rows = "SELECT group_concat(line) FROM
                  (SELECT chat || ' ' || platform_id || ' ' || event_id AS line FROM platform_ids ORDER BY chat)";
    let expected = [
        "C1 C1/18.5 webhook:demo/2",
        "D1 D1/17.5 webhook:demo/1",
        "U5 D1/17.5 webhook:demo/1",
        "U6 D2/19.5 webhook:demo/3",
    ];
    assert_eq!(
        case.value::<String>(rows),
        expected.join(","),
        "others name only their own chat"
    );
}

#[tokio::test]
async fn an_own_message_is_found_by_its_platforms_id_after_it_was_edited_and_deleted() {
    let version = |direction: EventDirection, edited_at: Option<i64>, content: &str| {
        let mut version = with_platform_ids(event(1), &["D1/17.5"], 1);
        version.peer.id = "U5".to_owned();
        version.origin = EventOrigin::System;
        version.direction = direction;
        version.edited_at = edited_at.map(UnixMillis);
        content.clone_into(&mut version.content);
        version
    };
    let records = [
        stored(1, version(EventDirection::Sent, None, "one")),
        stored(2, version(EventDirection::Updated, Some(70), "two")),
        stored(3, version(EventDirection::Deleted, Some(80), "")),
    ];

    let found = "SELECT group_concat(line) FROM
                   (SELECT chat || ' ' || event_id || ' ' || part AS line FROM platform_ids ORDER BY chat)";
    for (count, content) in [(1, "one"), (2, "two"), (3, "")] {
        let case = Case::with(records[..count].to_vec()).await;
        assert_eq!(
            case.value::<String>(found),
            "D1 webhook:demo/1 1,U5 webhook:demo/1 1",
            "{count}"
        );
        assert_eq!(case.value::<String>("SELECT content FROM events"), content, "{count}");
    }
}

#[tokio::test]
async fn what_an_event_is_about_and_when_it_was_edited_can_be_asked_for() {
    let mut press = event(1);
    press.target = Some("out:x/0".to_owned());
    press.mention = Some(EventMention {
        me: true,
        how: MentionForm::Reply,
    });
    let mut edited = event(1);
    edited.direction = EventDirection::Updated;
    edited.edited_at = Some(UnixMillis(77));
    edited.mention = Some(EventMention {
        me: true,
        how: MentionForm::Native,
    });
    let edited = with_platform_ids(edited, &["15"], 0);
    let case = Case::with(vec![stored(1, press), stored(2, edited)]).await;

    let row = "SELECT id || ' ' || mention || ' ' || edited_at FROM events WHERE target = 'out:x/0'";
    assert_eq!(case.value::<String>(row), "webhook:demo/1 native 77");
    let named = "SELECT event_id FROM platform_ids WHERE platform_id = '15'";
    assert_eq!(case.value::<String>(named), "webhook:demo/1");
}

#[tokio::test]
async fn a_late_version_undoes_no_edit_and_no_deletion() {
    let version = |number: u64, direction: EventDirection, edited_at: Option<i64>, content: &str| {
        let mut version = event(number);
        version.direction = direction;
        version.edited_at = edited_at.map(UnixMillis);
        content.clone_into(&mut version.content);
        version
    };
    let (received, updated, deleted) = (
        EventDirection::Received,
        EventDirection::Updated,
        EventDirection::Deleted,
    );
    let records = [
        version(1, received, None, "firstly"),
        version(1, updated, Some(7), "secondly"),
        version(1, updated, None, "firstly"),
        version(1, updated, Some(6), "firstly"),
        version(2, received, None, "there"),
        version(2, deleted, None, ""),
        version(2, updated, None, "there"),
        version(2, updated, Some(9), "there"),
        version(3, received, None, "before"),
        version(3, updated, None, "a file came"),
        version(3, updated, Some(5), "after"),
        version(3, updated, Some(5), "after, and a file"),
    ];
    let records = (1..).zip(records).map(|(sequence, version)| stored(sequence, version));
    let case = Case::with(records.collect()).await;

    let rows = "SELECT group_concat(content, '|') FROM (SELECT content FROM events ORDER BY sequence)";
    assert_eq!(case.value::<String>(rows), "secondly||after, and a file");
    let found = "SELECT count(*) FROM events_fts WHERE events_fts MATCH 'firstly OR there OR before'";
    assert_eq!(case.value::<i64>(found), 0);
    let found = "SELECT count(*) FROM events_fts WHERE events_fts MATCH 'secondly OR after'";
    assert_eq!(case.value::<i64>(found), 2);
}
