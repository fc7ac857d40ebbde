//! Who may call the gateway by which name, and what it says of senders that nobody proved.

use serde_json::json;
use shared::model::identity::SELF_ASSERTED;

use crate::world::World;

#[tokio::test]
async fn another_sites_name_for_this_machine_is_turned_away() {
    let world = World::start("hosts = [\"chat.example.com\"]").await;
    let event = json!({ "id": "crm:1", "timestamp": 5, "channel": "crm" }).to_string();
    let post = async |host: &str| {
        let headers = [("content-type", "application/json"), ("host", host)];
        world.post("/v1/events", &headers, event.clone()).await
    };
    let refused = post("evil.example:8080").await;
    assert_eq!((refused.status, refused.code()), (421, "foreign_host"), "{refused:?}");
    for host in ["localhost:8080", "chat.example.com"] {
        assert_eq!(post(host).await.status, 200, "{host}");
    }
    world.stop().await;
}

#[tokio::test]
async fn a_post_without_a_token_says_so_of_its_events() {
    // The SHA-256 of `one`.
    let hash = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";
    let world = World::start(&format!("http.open = true\nhttp.tokens = [\"{hash}\"]")).await;
    for (id, authorization) in [("crm:1", "Bearer one"), ("crm:2", "Bearer two")] {
        let event = json!({ "id": id, "timestamp": 5, "channel": "crm", "from": { "id": "me" } });
        let headers = [("content-type", "application/json"), ("authorization", authorization)];
        assert_eq!(world.post("/v1/events", &headers, event.to_string()).await.status, 200);
    }
    for event in world.events(2).await {
        let asserted = event.metadata.get(SELF_ASSERTED);
        assert_eq!(asserted.is_some(), event.id.as_str() == "crm:2", "{event:?}");
    }
    world.stop().await;
}
