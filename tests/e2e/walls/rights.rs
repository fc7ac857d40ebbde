//! What each role may do, and what it cannot do by a detour.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use shared::bus::{Bus, ServiceHandle, ServiceSpec};
use shared::wire::headers::Headers;
use shared::wire::rights::{BusRole, NAME, covers};
use shared::wire::topology::topology;
use tests::wire_client::WireClient;

use super::bench::{EDGE, WalledServer, user_of};
use crate::story::PATIENCE;

/// Returns a subject under `filter`.
fn example(filter: &str) -> String {
    let filled = filter
        .replace("{{tag(channel)}}", EDGE.1)
        .replace("{{tag(persona)}}", "*")
        .replace(NAME, EDGE.0);
    let tokens = filled.split('.').map(|token| match token {
        "*" => "x",
        ">" => "y.z",
        other => other,
    });
    tokens.collect::<Vec<_>>().join(".")
}

/// Subjects of all roles, of all streams, and of the calls by which streams are changed.
fn subjects_to_publish() -> BTreeSet<String> {
    let mut all: BTreeSet<String> = BusRole::ALL
        .iter()
        .flat_map(|role| role.subjects().publish)
        .map(|filter| example(&filter))
        .collect();
    for stream in topology(1).streams {
        all.extend(stream.subjects.iter().map(|subject| example(subject)));
        for call in [
            "CREATE",
            "UPDATE",
            "DELETE",
            "PURGE",
            "MSG.DELETE",
            "RESTORE",
            "SNAPSHOT",
        ] {
            all.insert(format!("$JS.API.STREAM.{call}.{}", stream.name));
        }
    }
    all.extend(["$SRV.PING", "$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.X.CONNZ"].map(str::to_owned));
    all
}

fn subjects_to_hear() -> BTreeSet<String> {
    let heard = |role: &BusRole| {
        let name = user_of(*role);
        let subjects = role.subjects().hear.into_iter();
        subjects.map(move |filter| example(&filter.replace(NAME, name)))
    };
    let mut all: BTreeSet<String> = BusRole::ALL.iter().flat_map(heard).collect();
    all.extend(["nexus.>", "nexus.ev.>", "$KV.>", "$JS.API.>", "$SYS.>", "_INBOX.>", ">"].map(str::to_owned));
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn every_role_may_do_what_its_list_says_and_nothing_else() {
    let walled = WalledServer::start().await;
    let (published, heard) = (subjects_to_publish(), subjects_to_hear());
    assert!(
        published.len() > 200 && heard.len() > 20,
        "{} {}",
        published.len(),
        heard.len()
    );

    let mut refused = 0;
    for role in BusRole::ALL {
        let name = user_of(role);
        let rights = role.subjects();
        let mut client = WireClient::connect(&walled.server.url(), &walled.credentials(name))
            .await
            .expect("a connection");
        let with_channel = |subject: &str| {
            rights.may_publish(name, subject)
                || (role == BusRole::Edge && subject.starts_with(&format!("nexus.event.{}.{}.", EDGE.1, EDGE.0)))
        };

        for subject in &published {
            // A call of the server would answer on it, and nobody asks here.
            let may = client.publish(subject, "").await.expect("the connection stands");
            assert_eq!(may, with_channel(subject), "{role:?} publishes {subject}");
            refused += usize::from(!may);
        }
        for subject in &heard {
            let may = client.subscribe(subject).await.expect("the connection stands");
            let is_agents = role == BusRole::Agent && covers("nexus.agent.*", subject);
            let expected = is_agents || rights.may_hear(name, subject);
            assert_eq!(may, expected, "{role:?} hears {subject}");
            refused += usize::from(!may);
        }
    }
    println!("{refused} refused");
}

/// Last sequence of each stream.
async fn ends(bus: &Bus) -> BTreeMap<String, u64> {
    let mut ends = BTreeMap::new();
    for stream in topology(1).streams {
        let state = bus.stream_state(&stream.name).await.expect("a stream");
        ends.insert(stream.name, state.last);
    }
    ends
}

/// Answers every question on `nexus.svc.*.*` and `nexus.svc.turn.gate`, as a service does.
async fn serve_all(bus: &Bus, role: BusRole, name: &'static str, endpoints: &[&'static str]) -> ServiceHandle {
    let spec = endpoints
        .iter()
        .fold(ServiceSpec::new(name, "for tests"), |spec, endpoint| {
            spec.endpoint(endpoint, |_: serde_json::Value| async {
                Ok::<_, (usize, String)>(json!({}))
            })
        });
    bus.serve(spec)
        .await
        .unwrap_or_else(|error| panic!("{role:?} serves {name}: {error}"))
}

/// Returns a subject under each that users of `role` may publish, where services listen if there are any.
fn asked_by(role: BusRole) -> Vec<String> {
    let subjects = role.subjects().publish.into_iter();
    let filled = subjects.map(|filter| filter.replace(NAME, user_of(role)));
    let asked = filled.map(|filter| match filter.as_str() {
        "nexus.svc.approval.*" => "nexus.svc.approval.list".to_owned(),
        "nexus.svc.hook.*" => "nexus.svc.hook.list".to_owned(),
        "nexus.svc.session.*" => "nexus.svc.session.list".to_owned(),
        "nexus.svc.events.*" => "nexus.svc.events.find".to_owned(),
        other => example(other),
    });
    asked.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_no_service_stores_nothing_by_naming_a_stream_as_the_place_of_an_answer() {
    let walled = WalledServer::start().await.with_streams().await;
    let (broker, hook) = (walled.bus(BusRole::Broker).await, walled.bus(BusRole::Hook).await);
    let _services = [
        serve_all(&broker, BusRole::Broker, "turn", &["gate"]).await,
        serve_all(&broker, BusRole::Broker, "approval", &["list", "get", "decide"]).await,
        serve_all(&broker, BusRole::Broker, "session", &["list", "show"]).await,
        serve_all(&hook, BusRole::Hook, "hook", &["list", "get", "create"]).await,
        serve_all(&hook, BusRole::Hook, "events", &["find", "search"]).await,
    ];

    let places: Vec<String> = topology(1)
        .streams
        .iter()
        .flat_map(|stream| stream.subjects.clone())
        .map(|filter| example(&filter))
        .chain([
            "nexus.svc.approval.decide".to_owned(),
            "$JS.API.STREAM.PURGE.LEDGER".to_owned(),
        ])
        .collect();
    let before = ends(&hook).await;

    let mut tried = 0;
    for role in [
        BusRole::Edge,
        BusRole::Agent,
        BusRole::Operator,
        BusRole::Viewer,
        BusRole::System,
    ] {
        let name = user_of(role);
        let mut client = WireClient::connect(&walled.server.url(), &walled.credentials(name))
            .await
            .expect("a connection");
        let asked = asked_by(role);
        for subject in &asked {
            for place in &places {
                assert!(
                    client.publish(subject, place).await.expect("it stands"),
                    "{role:?}: {subject}"
                );
                tried += 1;
            }
        }

        // Nor by having the server tell there which way a message takes, except where it may write itself.
        let subject = asked.first().expect("it may publish something");
        for place in &places {
            let traced = client.publish_traced(subject, place).await.expect("it stands");
            let may = role.subjects().may_publish(name, place);
            assert_eq!(traced, may, "{role:?}: {subject} is told on {place}");
        }
    }

    // Whatever the services were asked before this is answered before it.
    let nothing = json!({});
    let last = broker.request::<_, serde_json::Value>("nexus.svc.hook.list", Headers::new(), &nothing, PATIENCE);
    last.await.expect("an answer");

    let mut after = ends(&hook).await;
    // What the edge may do: its own events.
    let (had, has) = (before["EVENTS"], after["EVENTS"]);
    assert_eq!(has - had, places.len() as u64, "of {tried}");
    after.insert("EVENTS".to_owned(), had);
    assert_eq!(after, before, "of {tried}");
}
