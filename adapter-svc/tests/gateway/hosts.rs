//! Who may call the gateway by which name, and that a name beside localhost opens nothing.

use serde_json::json;

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

        let headers = [("content-type", "application/json"), ("host", host)];
        let open = world.post_open("/v1/events", &headers, event.clone()).await;
        assert_eq!(
            (open.status, open.code()),
            (401, "unauthorized"),
            "behind a proxy as well: {host}"
        );
    }

    world.stop().await;
}
