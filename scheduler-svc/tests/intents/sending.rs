//! Intents that send a text: as it was asked for, once, and ended by the receipt.

use serde_json::json;
use shared::bus::OutgoingMessage;
use shared::model::intent::{IntentCode, IntentStatus};
use shared::model::receipt::{Receipt, ReceiptStep};
use shared::model::reply::Reply;
use shared::testing::eventually_some;
use shared::wire::subject;
use shared::wire::topology::streams::{DELIVERIES, RECEIPTS};

use crate::world::{World, ulid};

const TEXT: &str = "  *Good* luck,\n\nand \u{1f340}";

impl World {
    async fn sent(&self) -> Vec<Reply> {
        let stored = self
            .bus
            .read_history(DELIVERIES, "nexus.dl.>", 1, 100)
            .await
            .expect("deliveries");
        stored.iter().map(|stored| stored.decode().expect("a reply")).collect()
    }

    /// Plays delivery-svc: `step` became of `reply`.
    async fn receipt(&self, reply: &Reply, step: ReceiptStep) {
        let at = subject::receipt(&reply.delivery_context);
        let last = self.bus.last_on_subject(RECEIPTS, &at).await.expect("receipts");
        let receipt = Receipt {
            delivery: reply.id,
            session: reply.session.clone(),
            target: reply.delivery_context.clone(),
            causation: reply.causation.clone(),
            at: self.now(),
            card: false,
            changes: None,
            step,
        };

        let out = OutgoingMessage::new(at, &receipt).expect_last(last.map_or(0, |stored| stored.sequence));
        self.bus.publish(out).await.expect("stored");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_is_sent_as_it_is_once_and_its_receipt_ends_the_intent() {
    let world = World::start(2).await;
    let delivered = ReceiptStep::Delivered {
        attempts: 1,
        parts: 1,
        platform_ids: Vec::new(),
        unconfirmed: Vec::new(),
        live: None,
        plan: None,
    };

    let denied = ReceiptStep::DeniedByPolicy {
        rule: "quiet hours".to_owned(),
    };
    let ends = [
        (delivered, IntentStatus::Completed, IntentCode::Done),
        (denied, IntentStatus::Failed, IntentCode::TurnFailed),
    ];
    for (number, (step, status, code)) in (1..).zip(ends) {
        let wish = json!({ "kind": "send_message", "parameters": { "target": "telegram/5", "text": TEXT } });
        let asked = world.propose(number, wish).await;
        let due = asked.due.unwrap_or_else(|| panic!("{asked:?}"));
        world.clock.set(due);
        let fire = async |replica: usize| {
            world.desks[replica]
                .clerk
                .handle_due("default", ulid(number), due, None)
                .await
        };

        let deliver = async {
            let reply = eventually_some("the text", || async {
                let sent = world.sent().await;
                sent.into_iter().nth(usize::try_from(number).expect("small") - 1)
            })
            .await;
            assert_eq!(reply.content, TEXT);
            assert_eq!(reply.delivery_context.channel, "telegram");

            let begun = ReceiptStep::AttemptStarted {
                attempt: 1,
                part: 0,
                by: "delivery-svc-0".to_owned(),
                platform_ids: Vec::new(),
                unconfirmed: Vec::new(),
                uncounted: 0,
                plan: None,
            };

            for step in [begun, step] {
                world.receipt(&reply, step).await;
            }
        };

        let (one, other, ()) = tokio::join!(fire(0), fire(1), deliver);
        one.and(other).expect("fired");
        let clerk = &world.desks[0].clerk;
        eventually_some("its end", || async {
            let over = clerk.look_for_end("default", ulid(number), due).await;
            over.expect("looked").then_some(())
        })
        .await;

        assert_eq!(world.status(ulid(number)).await, status);
        assert_eq!(world.history(ulid(number)).await.last().expect("one").code, code);
        assert_eq!(
            world.sent().await.len(),
            usize::try_from(number).expect("small"),
            "once"
        );
    }

    assert!(world.dispatches().await.is_empty(), "no model is asked");
}
