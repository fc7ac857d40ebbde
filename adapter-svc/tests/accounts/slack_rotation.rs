//! An app of Slack whose token is rotated: renewed once for all replicas, or refused.

use serde_json::json;

use crate::slack::message;
use crate::web_api::{Delivery, SECRET, WebApi};
use crate::world::{START, World};

const ENDED: &str = "xoxe.xoxb-ended";
const REFRESH: &str = "xoxe-1-first";

/// The content of `channels.yaml` with a token that has ended.
fn channels(world: &World, api: &WebApi) -> String {
    api.set(ENDED, Some((200, json!({"ok": false, "error": "token_expired"}))));
    format!(
        "slack: {{accounts: {{main: {{token: '{}', refresh_token: '{}', client_id: '{}', client_secret: '{}', \
         signing_secret: '{}', base_url: '{}', direct: open}}}}}}",
        world.secret(ENDED),
        world.secret(REFRESH),
        world.secret("1.2"),
        world.secret("client-secret"),
        world.secret(SECRET),
        api.base
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_has_ended_is_renewed_once_for_all_replicas() {
    let (world, api) = (World::start().await, WebApi::start().await);
    api.renew_for(REFRESH);
    let channels = channels(&world, &api);
    let one = world.replica("adapter-svc-0", &channels).await;
    let other = world.replica("adapter-svc-1", &channels).await;

    for (number, replica) in (1..).zip([&one, &other]) {
        replica.says("slack/main token", "renewed").await;
        replica.says("slack/main", "receiving as @nexus in Acme").await;
        let posted = Delivery::event(&message(number, START, "D1", &json!({})), START);
        let (status, _) = posted.post(&format!("{}/slack/main", replica.base()), 0).await;
        assert_eq!(status, 200);
    }
    assert_eq!(api.renewals(), [REFRESH]);
    world.stored(2).await;
    one.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_renewal_stops_the_account_and_is_named() {
    let (world, api) = (World::start().await, WebApi::start().await);
    let replica = world.replica("adapter-svc-0", &channels(&world, &api)).await;
    replica.says("slack/main token", "invalid_refresh_token").await;
    replica.says("slack/main", "stopped: the token is not accepted").await;
    assert_eq!(api.renewals(), [REFRESH]);
    replica.stop().await;
}
