//! Which sessions there are, and letting a quarantined one run again, as services.

use broker_svc::admin;
use serde_json::{Value, json};
use shared::bus::RequestError;
use shared::model::position::StreamPlace;
use shared::model::time::UnixMillis;
use shared::testing::eventually;
use shared::wire::headers::Headers;
use shared::wire::session_mark::{ClaimTries, SessionMark};
use shared::wire::subject;
use shared::wire::topology::buckets;

use crate::bench::{Bench, DEADLINE, session};

async fn ask(bench: &Bench, what: &str, question: Value) -> Result<Value, u16> {
    let subject = format!("nexus.svc.session.{what}");
    let asked = bench.bus.request(&subject, Headers::new(), &question, DEADLINE);
    asked.await.map_err(|error| match error {
        RequestError::Service { code, .. } => code,
        other @ (RequestError::NoResponder { .. } | RequestError::Timeout { .. } | RequestError::Answer { .. }) => {
            panic!("{other}")
        }
    })
}

fn names(listed: &Value) -> Vec<&str> {
    let sessions = listed["sessions"].as_array().expect("sessions").iter();
    sessions.filter_map(|one| one["session"]["session"].as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_listed_in_pages() {
    let bench = Bench::start().await;
    let running = bench.run("b1", "").await;
    let service = admin::serve(&running.broker).await.expect("a service");
    running.broker.bus.flush().await.expect("it is known");

    for name in ["a", "b *", "c"] {
        bench.send(&session(name), 1).await;
    }

    eventually("all have answered", async || bench.replies().await.len() == 3).await;
    let all = ask(&bench, "list", json!({})).await.expect("a list");
    assert_eq!((names(&all).len(), &all["total"]), (3, &json!(3)));

    let first = ask(&bench, "list", json!({"persona": "default", "limit": 2}))
        .await
        .expect("a page");
    let last = first["sessions"][1]["session"].clone();
    let second = ask(&bench, "list", json!({"after": last})).await.expect("a page");

    assert_eq!([names(&first), names(&second)].concat(), names(&all));

    let nobody = ask(&bench, "list", json!({"persona": "nobody"})).await.expect("a list");
    assert_eq!((names(&nobody).len(), &nobody["total"]), (0, &json!(0)));

    service.stop().await;
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_released_session_has_no_mark_and_a_claim() {
    let bench = Bench::start().await;
    let broker = bench.broker("b1", "").await;
    let service = admin::serve(&broker).await.expect("a service");
    broker.bus.flush().await.expect("it is known");
    let parked = session("main *");
    let named = json!({"persona": "default", "session": "main *"});
    let key = &subject::session_key(&parked);

    let marks = bench.bus.kv::<SessionMark>(buckets::SESSION_OVERRIDES);
    assert_eq!(ask(&bench, "release", named.clone()).await, Err(404));

    let claim = StreamPlace {
        sequence: 1,
        stored_at_ns: 1,
    };
    let mut mark = SessionMark {
        session: parked.clone(),
        quarantined: None,
        tries: Some(ClaimTries { claim, begun: 1 }),
        since: UnixMillis(1),
    };

    marks.put(key, &mark).await.expect("on trial");
    assert_eq!(
        ask(&bench, "release", named.clone()).await,
        Err(404),
        "on trial is not quarantined"
    );
    assert_eq!(
        ask(&bench, "show", named.clone()).await,
        Err(404),
        "it never wrote anything"
    );

    mark.quarantined = Some("claim came again and again".to_owned());
    marks.put(key, &mark).await.expect("quarantined");
    let shown = ask(&bench, "show", named.clone()).await.expect("it is parked");

    assert_eq!(
        shown["quarantined"],
        json!({"why": "claim came again and again", "since": 1})
    );

    let released = ask(&bench, "release", named.clone()).await.expect("released");
    assert_eq!(released["why"], "claim came again and again");
    assert_eq!(marks.get(key).await.expect("a bucket"), None);
    assert_eq!(bench.claims().await, 1);
    assert_eq!(ask(&bench, "release", named.clone()).await, Err(404), "it runs already");
    assert_eq!(
        ask(&bench, "show", named).await,
        Err(404),
        "and has still written nothing"
    );

    service.stop().await;
}
