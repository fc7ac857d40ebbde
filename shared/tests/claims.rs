//! Claims against the real server: who gets which, and where they may be.

use std::time::Duration;

use serde_json::Value;
use shared::bus::{Bus, FetchMode, OutgoingMessage, PublishError, claim};
use shared::clock::pause;
use shared::model::session::SessionRef;
use shared::testing::world;
use shared::wire::headers::{Headers, TraceCarrier};
use shared::wire::partition::session_part;
use shared::wire::subject;
use shared::wire::topology::{claims_consumer, streams};

const DEADLINE: Duration = Duration::from_secs(60);

fn session(name: &str) -> SessionRef {
    SessionRef {
        persona: "default".to_owned(),
        session: name.to_owned(),
    }
}

/// `count` sessions of one part.
fn sessions_of_one_part(count: usize) -> Vec<SessionRef> {
    let part = session_part(&session("s0"));
    let all = (0..).map(|number| session(&format!("s{number}")));
    all.filter(|session| session_part(session) == part)
        .take(count)
        .collect()
}

/// Waits until the server holds `count` requests for the claims of `part`.
async fn waiting_requests(bus: &Bus, part: u16, count: u64) {
    let subject = format!("$JS.API.CONSUMER.INFO.{}.{}", streams::CLAIMS, claims_consumer(part));
    let held = async {
        loop {
            let info = bus
                .request_bytes(&subject, &Headers::new(), bytes::Bytes::new(), DEADLINE)
                .await;
            let info: Value = serde_json::from_slice(&info.expect("known").payload).expect("JSON");
            if info["num_waiting"] == count {
                return;
            }
            pause(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, held)
        .await
        .expect("the requests are held");
}

#[tokio::test]
async fn a_helper_gets_what_no_reader_of_the_part_waits_for() {
    let (_server, bus) = world().await;
    let sessions = sessions_of_one_part(3);
    let part = session_part(&sessions[0]);
    let (mut own, mut helper) = (claim::fetcher(&bus, part), claim::fetcher(&bus, part));
    let publish = async |session: &SessionRef| {
        let claimed = claim::publish(&bus, session, &TraceCarrier::default()).await;
        claimed.expect("claimed");
    };

    let mut now = claim::fetcher(&bus, part);
    now.request_messages(5, FetchMode::Now).await.expect("asked");
    let nothing = tokio::time::timeout(DEADLINE, now.next())
        .await
        .expect("answered at once");
    assert!(nothing.is_none(), "nothing is there: {nothing:?}");

    // The helper has waited longer, and comes second all the same.
    helper.request_messages(1, FetchMode::Help).await.expect("asked");
    own.request_messages(1, FetchMode::Wait).await.expect("asked");
    waiting_requests(&bus, part, 2).await;
    publish(&sessions[0]).await;
    let taken = tokio::time::timeout(DEADLINE, own.next()).await.expect("in time");
    assert_eq!(taken.expect("a claim").subject, subject::claim(&sessions[0]));

    publish(&sessions[1]).await;
    let mut helped = tokio::time::timeout(DEADLINE, helper.next()).await.expect("in time");
    while helped.is_none() {
        // The machine was so slow that the request had ended.
        helper.request_messages(1, FetchMode::Help).await.expect("asked");
        helped = tokio::time::timeout(DEADLINE, helper.next()).await.expect("in time");
    }
    assert_eq!(helped.expect("a claim").subject, subject::claim(&sessions[1]));

    publish(&sessions[2]).await;
    let mut there = None;
    while there.is_none() {
        // The server acknowledges a message before its consumers know of it.
        now.request_messages(5, FetchMode::Now).await.expect("asked");
        there = tokio::time::timeout(DEADLINE, now.next()).await.expect("in time");
    }
    assert_eq!(there.expect("a claim").subject, subject::claim(&sessions[2]));
    let no_more = tokio::time::timeout(DEADLINE, now.next())
        .await
        .expect("answered at once");
    assert!(no_more.is_none(), "{no_more:?}");
}

#[tokio::test]
async fn a_part_that_does_not_exist_is_no_subject() {
    let (_server, bus) = world().await;
    for subject in [
        "nexus.claim.16.default.main",
        "nexus.dispatch.16.default.main",
        "nexus.claim.default.main",
    ] {
        let out = OutgoingMessage::raw(subject.to_owned(), Headers::new(), bytes::Bytes::from_static(b"x"));
        let refused = bus.publish_once(&out, DEADLINE).await.expect_err("no stream has it");
        assert!(matches!(refused, PublishError::NoStream { .. }), "{subject}: {refused}");
    }
}
