//! Web chat: whether somebody was looking.

use shared::model::dispatch::DeliveryContext;
use shared::model::receipt::ReceiptStep;
use shared::wire::headers::Headers;

use crate::world::{Setup, World, reply};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_receipt_says_whether_a_page_was_open() {
    let world = World::start().await;
    let mut page = world
        .bus
        .core_subscribe("nexus.webchat.default.open")
        .await
        .expect("subscribed");

    world.bus.flush().await.expect("flushed");
    let bus = world.bus.clone();
    let shown = tokio::spawn(async move {
        let message = page.next().await.expect("a part");
        let to = message.reply.expect("an answer is awaited");
        bus.core_publish(&to, &Headers::new(), "{}".into()).await;
        serde_json::from_slice::<serde_json::Value>(&message.payload).expect("JSON")
    });

    let replica = world.replica("a", Setup::default());
    let (mut open, closed) = (reply(1, "webchat", "open"), reply(2, "webchat", "closed"));
    open.delivery_context.thread_id = Some("7f".to_owned());
    world.publish(&open).await;
    world.publish(&closed).await;
    world.settled().await;

    let part = shown.await.expect("it was shown");
    assert_eq!(part["event_id"], format!("out:{}/0", open.id));
    assert_eq!(
        (part["content"].as_str(), part["reply_to"].as_str()),
        (Some("echo: 1"), Some("test:open/1"))
    );
    assert_eq!(part["thread"], "7f", "the page shows it in its conversation");
    assert_eq!(live(&world, &open.delivery_context).await, Some(true));
    assert_eq!(live(&world, &closed.delivery_context).await, Some(false));
    assert_eq!(world.sent_events().await.len(), 2, "a closed page loses nothing");

    replica.stop().await;
}

async fn live(world: &World, to: &DeliveryContext) -> Option<bool> {
    let step = world.receipts(to).await.pop()?.step;
    let ReceiptStep::Delivered { live, .. } = step else {
        panic!("{step:?}")
    };
    live
}
