//! An agent that takes all that it can get: it is refused, and the services go on.

use serde_json::json;
use shared::bus::ServiceSpec;
use shared::testing::eventually;
use shared::wire::headers::Headers;
use shared::wire::rights::{AccountLimits, BusAccount, BusRole};
use tests::wire_client::WireClient;

use super::bench::{SERVER_PAYLOAD, WalledServer, user_of};
use crate::story::PATIENCE;

const LIMITS: AccountLimits = match BusAccount::Agents.limits() {
    Some(limits) => limits,
    None => panic!("agents have limits"),
};

async fn client(walled: &WalledServer, role: BusRole) -> Result<WireClient, String> {
    WireClient::connect(&walled.server.url(), &walled.credentials(user_of(role))).await
}

/// A service and who asks it connect, and one answers the other.
async fn services_go_on(walled: &WalledServer) {
    let broker = walled.bus(BusRole::Broker).await;
    let spec = ServiceSpec::new("session", "for tests").endpoint("show", |_: serde_json::Value| async {
        Ok::<_, (usize, String)>(json!({}))
    });
    let service = broker.serve(spec).await.expect("served");
    let asked = walled.bus(BusRole::Operator).await;
    let nothing = json!({});
    let answer = asked.request::<_, serde_json::Value>("nexus.svc.session.show", Headers::new(), &nothing, PATIENCE);
    answer.await.expect("an answer");
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_takes_no_more_connections_than_its_account_has() {
    let walled = WalledServer::start().await;
    let mut agents = Vec::new();
    for number in 0..LIMITS.connections {
        let agent = client(&walled, BusRole::Agent).await;
        agents.push(agent.unwrap_or_else(|refused| panic!("{number}: {refused}")));
    }

    let refused = client(&walled, BusRole::Agent).await;
    assert!(refused.is_err_and(|why| why.contains("maximum account active connections exceeded")));
    services_go_on(&walled).await;
    assert!(
        client(&walled, BusRole::Edge).await.is_ok(),
        "edges have limits of their own"
    );

    agents.pop();
    eventually("there is room for another one", async || {
        client(&walled, BusRole::Agent).await.is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_makes_no_more_subscriptions_and_sends_no_longer_messages_than_its_account_may() {
    let walled = WalledServer::start().await;
    let mut agent = client(&walled, BusRole::Agent).await.expect("a connection");
    let subscribe = |numbers: std::ops::Range<i64>| -> String {
        let lines = numbers.map(|number| format!("SUB nexus.agent.p{number} {number}\r\n"));
        lines.collect()
    };
    let said = agent.say(&subscribe(0..LIMITS.subscriptions)).await;
    assert_eq!(said, Ok(Vec::new()));
    let said = agent
        .say(&subscribe(LIMITS.subscriptions..LIMITS.subscriptions + 1))
        .await;
    assert_eq!(said, Ok(vec!["'maximum subscriptions exceeded'".to_owned()]));

    // The size is refused before the bytes are there.
    let most = usize::try_from(LIMITS.payload_bytes).expect("a size");
    assert!(most < SERVER_PAYLOAD, "the server's own limit is another one");
    let message = |size: usize| format!("PUB nexus.svc.turn.gate {size}\r\n{}\r\n", "x".repeat(size));
    assert_eq!(agent.say(&message(most)).await, Ok(Vec::new()));
    let ended = agent.say(&format!("PUB nexus.svc.turn.gate {}\r\n", most + 1)).await;
    assert_eq!(ended, Err("'Maximum Payload Violation'".to_owned()));

    // What the services send may be longer, and they make more subscriptions.
    let mut hook = client(&walled, BusRole::Hook).await.expect("a connection");
    let longer = message(most + 1).replacen("nexus.svc.turn.gate", "nexus.dispatch.a.b.c", 1);
    assert_eq!(hook.say(&longer).await, Ok(Vec::new()));
    let lines = (0..=LIMITS.subscriptions).map(|number| format!("SUB _INBOX_hook_hook.x{number} {number}\r\n"));
    assert_eq!(hook.say(&lines.collect::<String>()).await, Ok(Vec::new()));
    services_go_on(&walled).await;
}
