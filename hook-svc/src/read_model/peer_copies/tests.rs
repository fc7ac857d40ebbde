//! Questions to copies, as these answer them.

use std::sync::atomic::AtomicU64;

use shared::bus::ServiceSpec;
use shared::clock::{Clock as _, SystemClock};

use super::following::PULSE;
use super::*;
use crate::read_model::peer_api::{ReachedQuestion, ReachedReply, SERVICE};

/// Number of waits, one after the other. Each begins while the follower is about to rest.
const WAITS: u64 = 1_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_is_heard_whenever_it_begins() {
    let (_server, bus) = shared::testing::world().await;
    // A copy that has everything that it is asked for.
    let at = Arc::new(AtomicU64::new(0));
    let spec = ServiceSpec::new(SERVICE, "a copy").of_instance("h-0".to_owned());
    let spec = spec.endpoint("reached", move |question: ReachedQuestion| {
        at.fetch_max(question.beyond + 1, Ordering::Relaxed);
        let position = at.load(Ordering::Relaxed);
        async move {
            Ok(ReachedReply {
                position,
                building: false,
            })
        }
    });
    let _served = bus.serve(spec).await.expect("served");

    let (_holders, told) = watch::channel(vec!["h-0".to_owned()]);
    let copies = PeerCopies::new(&bus, "h-1", told, Arc::new(SystemClock));
    let follower = copies.clone();
    let following = tokio::spawn(async move { follower.follow(|| true).await });

    let mut late = 0;
    for sequence in 1..=WAITS {
        let begun = SystemClock.monotonic();
        copies.wait_reached(sequence).await;
        let took = SystemClock.monotonic().saturating_duration_since(begun);
        // One that nobody heard of lasts until the next pulse. A busy machine may stand still for a moment.
        late += u32::from(took > PULSE / 2);
    }
    assert!(late < 3, "{late} of {WAITS} waits were late");

    following.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_later_answer_for_an_event_is_of_an_older_state_whichever_copy_gives_it() {
    let (_server, bus) = shared::testing::world().await;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let mut served = Vec::new();
    for (name, position) in [("h-0", 10), ("h-2", 12)] {
        let asked = Arc::clone(&asked);
        let spec = ServiceSpec::new(SERVICE, "a copy").of_instance(name.to_owned());
        let spec = spec.raw_endpoint("query", move |question: QueryQuestion| {
            let mut asked = asked.lock().expect("not poisoned");
            // The first copy answers once.
            let answers = asked.is_empty() || name == "h-2";
            asked.push(question.at_least);
            let reply = if answers {
                QueryReply::Page(position, position.to_string().into_bytes())
            } else {
                QueryReply::Away("it is about to stop".to_owned())
            };
            async move { Ok(Bytes::from(reply.to_bytes())) }
        });
        served.push(bus.serve(spec).await.expect("served"));
    }

    let (_holders, told) = watch::channel(vec!["h-0".to_owned(), "h-2".to_owned()]);
    let copies = PeerCopies::new(&bus, "h-1", told, Arc::new(SystemClock));
    let ask = async |sequence: u64| {
        asked.lock().expect("not poisoned").truncate(1);
        let query = serde_json::json!({"sequence": sequence, "sql": "SELECT 1"});
        let query: ModelQuery = serde_json::from_value(query).expect("a query");
        let (body, _) = copies.query(7, query).await.expect("answered");
        let at_least = asked.lock().expect("not poisoned").clone();
        (String::from_utf8(body).expect("a number"), at_least)
    };

    // On a busy machine the second copy is asked as well.
    let (first, at_least) = ask(5).await;
    assert!(at_least.iter().all(|at_least| *at_least == 5), "{at_least:?}");

    // The state of the first answer bounds the next one for the same event, and none for another event.
    let (_, at_least) = ask(5).await;
    assert!(
        at_least[1..].iter().all(|at_least| at_least.to_string() == first),
        "{at_least:?} after {first}"
    );
    let (_, at_least) = ask(6).await;
    assert!(at_least[1..].iter().all(|at_least| *at_least == 6), "{at_least:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_no_copy_can_answer_because_all_are_being_built_is_given_up_as_if_there_were_none() {
    let (_server, bus) = shared::testing::world().await;
    let spec = ServiceSpec::new(SERVICE, "a copy").of_instance("h-0".to_owned());
    let spec = spec
        .endpoint("reached", move |_: ReachedQuestion| async move {
            Ok(ReachedReply {
                position: 3,
                building: true,
            })
        })
        .raw_endpoint("query", move |_: QueryQuestion| async move {
            let reply = QueryReply::Away("the copy is at event 3, before 5".to_owned());
            Ok(Bytes::from(reply.to_bytes()))
        });
    let _served = bus.serve(spec).await.expect("served");

    let (_holders, told) = watch::channel(vec!["h-0".to_owned()]);
    let copies = PeerCopies::new(&bus, "h-1", told, Arc::new(SystemClock));
    let follower = copies.clone();
    let following = tokio::spawn(async move { follower.follow(|| true).await });
    copies.wait_answering().await;

    let query = serde_json::json!({"sequence": 5, "sql": "SELECT 1"});
    let query: ModelQuery = serde_json::from_value(query).expect("a query");
    let asked = tokio::time::timeout(FIND_COPY / 2, copies.query(7, query)).await;
    assert!(matches!(asked, Ok(Err(ModelQueryError::Unavailable(_)))), "{asked:?}");
    // Its hook has not failed: it is called again.
    assert_eq!(copies.unanswered(), 1);

    following.abort();
}
