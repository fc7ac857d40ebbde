//! Signed calls, and what the receiver's answers lead to.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use delivery_svc::markdown::telegram;
use delivery_svc::plan::{PartLayout, TextFormat};
use shared::model::receipt::{AttemptOutcome, ReceiptStep};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::receiver::Receiver;
use crate::world::{Setup, World, reply};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_is_posted_signed_and_comes_back_as_an_event() {
    let (world, receiver) = (World::start().await, Receiver::start(&[]).await);
    let replica = world.replica(
        "a",
        Setup {
            url: receiver.url(),
            ..Setup::default()
        },
    );

    let reply = reply(1, "webhook", "ann");
    world.publish(&reply).await;
    world.settled().await;

    let calls = receiver.calls();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].id, reply.id.to_string());
    assert_eq!(calls[0].body["data"]["content"], "echo: 1");
    assert_eq!(calls[0].headers["content-type"], "application/json");

    let steps: Vec<_> = world
        .receipts(&reply.delivery_context)
        .await
        .into_iter()
        .map(|receipt| receipt.step)
        .collect();

    let begun = ReceiptStep::AttemptStarted {
        attempt: 1,
        part: 0,
        by: "a".to_owned(),
        platform_ids: Vec::new(),
        unconfirmed: Vec::new(),
        uncounted: 0,
        plan: None,
    };
    let delivered = ReceiptStep::Delivered {
        attempts: 1,
        parts: 1,
        platform_ids: Vec::new(),
        unconfirmed: Vec::new(),
        live: None,
        plan: None,
    };

    assert_eq!(steps, [begun, delivered]);

    let events = world.sent_events().await;
    assert_eq!(events.len(), 1);
    assert_eq!(events[0].id.as_str(), format!("out:{}/0", reply.id));
    assert_eq!((events[0].hops, events[0].reply_to.as_deref()), (1, Some("test:ann/1")));

    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_account_with_a_format_gets_it_with_the_plain_text_beside_it() {
    let (world, receiver) = (World::start().await, Receiver::start(&[]).await);
    let layout = PartLayout {
        format: TextFormat::TelegramHtml,
        limit: Some(telegram::MESSAGE),
        max_lines: None,
    };
    let replica = world.replica(
        "a",
        Setup {
            url: receiver.url(),
            layout,
            ..Setup::default()
        },
    );

    let code = "    if a < b { return; }\n".repeat(300);
    let mut reply = reply(1, "webhook", "ann");
    reply.content = format!("**Here**:\n\n```rust\n{code}```");
    world.publish(&reply).await;
    world.settled().await;

    let calls = receiver.calls();
    assert_eq!(calls.len(), 2);
    for (call, index) in calls.iter().zip(0..) {
        let data = &call.body["data"];
        let content = data["content"].as_str().expect("a text");
        assert_eq!((&data["part"], &data["parts"]), (&index.into(), &2.into()));
        assert_eq!(data["format"], "telegram_html");
        assert!(
            content.contains("<pre><code class=\"language-rust\">    if a &lt; b"),
            "{content}"
        );
        assert!(content.ends_with("</code></pre>"), "{content}");
        assert!(
            data["plain"].as_str().is_some_and(|plain| plain.contains("if a < b {")),
            "{data}"
        );
    }
    assert!(
        calls[0].body["data"]["content"]
            .as_str()
            .is_some_and(|text| text.starts_with("<b>Here</b>:"))
    );

    // Those who read events see no markup of a platform.
    let events = world.sent_events().await;
    let contents: Vec<&str> = events.iter().map(|event| event.content.as_str()).collect();
    assert_eq!(
        contents,
        calls
            .iter()
            .map(|call| call.body["data"]["plain"].as_str().expect("a text"))
            .collect::<Vec<_>>()
    );

    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_receiver_asks_to_wait_is_waited() {
    for status in [503, 429] {
        let (world, receiver) = (World::start().await, Receiver::start(&[(status, Some("1"))]).await);
        let replica = world.replica(
            "a",
            Setup {
                url: receiver.url(),
                ..Setup::default()
            },
        );

        let (first, second) = (reply(1, "webhook", "ann"), reply(2, "webhook", "ann"));
        world.publish(&first).await;
        world.publish(&second).await;
        world.settled().await;

        assert_eq!(
            receiver.contents(),
            ["echo: 1", "echo: 1", "echo: 2"],
            "order is kept behind the failure"
        );

        let calls = receiver.calls();
        assert!(calls[1].at.since(calls[0].at) >= 1_000, "{calls:?}");
        assert_eq!(
            (calls[0].id.clone(), calls[1].id.clone()),
            (first.id.to_string(), first.id.to_string())
        );

        let receipts = world.outcomes(&first.delivery_context).await;
        let outcome = AttemptOutcome::Limited {
            after_ms: 1_000,
            reason: format!("status {status}"),
        };

        let failed = ReceiptStep::AttemptFinished {
            attempt: 1,
            part: 0,
            platform_ids: Vec::new(),
            unconfirmed: Vec::new(),
            uncounted: 0,
            plan: None,
            outcome,
        };

        assert_eq!(receipts[0], failed);
        assert!(
            matches!(receipts[1], ReceiptStep::Delivered { attempts: 2, .. }),
            "{receipts:?}"
        );
        assert_eq!((receipts.len(), world.sent_events().await.len()), (3, 2));

        replica.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_permanent_error_goes_to_the_dead_letters_at_once() {
    let (world, receiver) = (World::start().await, Receiver::start(&[(400, None)]).await);
    let replica = world.replica(
        "a",
        Setup {
            url: receiver.url(),
            ..Setup::default()
        },
    );

    let (bad, good) = (reply(1, "webhook", "ann"), reply(2, "webhook", "ann"));
    let sequence = world.publish(&bad).await;
    world.publish(&good).await;
    world.settled().await;

    assert_eq!(receiver.contents(), ["echo: 1", "echo: 2"]);

    let letters = world.dead_letters().await;
    assert_eq!(letters.len(), 1);
    assert_eq!(
        (letters[0].sequence, letters[0].detail.as_str()),
        (sequence, "status 400")
    );
    assert_eq!(letters[0].redrive_subject, "nexus.delivery.webhook.demo.ann");

    let payload = letters[0].payload_bytes().expect("base64");
    assert!(!payload.is_empty());

    let receipts = world.outcomes(&bad.delivery_context).await;
    assert!(
        matches!(&receipts[0], ReceiptStep::GaveUp { attempts: 1, .. }),
        "{receipts:?}"
    );
    assert_eq!(world.sent_events().await.len(), 1, "only what was sent is an event");

    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_attempt_ends_in_the_dead_letters() {
    let answers = [(500, None), (500, None), (500, None)];
    let (world, receiver) = (World::start().await, Receiver::start(&answers).await);
    let replica = world.replica(
        "a",
        Setup {
            url: receiver.url(),
            ..Setup::default()
        },
    );

    world.publish(&reply(1, "webhook", "ann")).await;
    world.settled().await;
    assert_eq!(receiver.calls().len(), 3);
    assert_eq!(world.dead_letters().await[0].detail, "status 500 (last attempt)");

    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redirect_is_not_followed_to_a_get() {
    let (world, receiver) = (World::start().await, Receiver::start(&[(302, None)]).await);
    let replica = world.replica(
        "a",
        Setup {
            url: receiver.url(),
            ..Setup::default()
        },
    );

    world.publish(&reply(1, "webhook", "ann")).await;
    world.settled().await;
    assert_eq!(world.dead_letters().await[0].detail, "status 302");

    replica.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_stalls_after_its_status_is_called_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = Some(format!("http://{}/", listener.local_addr().expect("an address")));
    let calls = Arc::new(AtomicUsize::new(0));

    let counted = Arc::clone(&calls);
    tokio::spawn(async move {
        // The connections stay open, so that the body that was announced never comes.
        let mut open = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            let mut request = vec![0; 64 * 1024];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n").await;
            open.push(stream);
        }
    });

    let world = World::start().await;
    let replica = world.replica(
        "a",
        Setup {
            url,
            ..Setup::default()
        },
    );
    world.publish(&reply(1, "webhook", "ann")).await;
    world.settled().await;

    assert_eq!(calls.load(Ordering::SeqCst), 1);
    replica.stop().await;
}
