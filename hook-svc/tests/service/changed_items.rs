//! A message that was edited or deleted at its source: its sessions are told, by the party that brought it alone.

use std::collections::BTreeSet;

use shared::model::event::{Event, EventDirection};
use shared::model::invocation::HookOutcome;
use shared::model::order::OrderKind;
use shared::model::origin::EventOrigin;
use shared::model::time::UnixMillis;
use shared::testing::eventually;

use crate::world::{World, event, of};

const FIRES: &str = "export default () => ({ fire: true });\n";
/// Is still under way when the deletion comes.
const SLOW: &str = "/** @timeout 60s */
export default async () => {
    await new Promise((resolve) => setTimeout(resolve, 1500));
    return { fire: true, routing: { persona: 'atlas', session: 'slow' } };
};
";

fn deletion_of(message: &Event) -> Event {
    Event {
        direction: EventDirection::Deleted,
        content: String::new(),
        ..message.clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_withdraws_the_dispatches_of_its_message_once() {
    let world = World::with_one_replica(&[("fires.ts", FIRES), ("slow.ts", SLOW)]).await;
    let (message, other) = (event("v1", 1, "hello"), event("v1", 2, "again"));
    let events = [message.clone(), other, deletion_of(&message)];
    for event in &events {
        world.publish(event).await;
    }

    // The message's last hook has not answered when the deletion comes: it is waited for.
    eventually("both dispatches are withdrawn", async || {
        world.orders().await.len() == 2
    })
    .await;
    world.wait_until_acked().await;

    let record = world.record(&message).await;
    let made: BTreeSet<_> = ["fires", "slow"]
        .map(|hook| {
            let HookOutcome::Fired {
                dispatch,
                target: Some(target),
                ..
            } = &of(&record, hook).outcome
            else {
                panic!("{record:?}");
            };
            (*dispatch, target.to_string())
        })
        .into();

    let orders = world.orders().await;
    let withdrawn = orders.iter().map(|order| {
        let OrderKind::Withdraw {
            dispatch,
            spares_turn: true,
        } = order.wanted
        else {
            panic!("{order:?}");
        };
        (dispatch, order.target.to_string())
    });
    let withdrawn: BTreeSet<_> = withdrawn.collect();
    assert_eq!(withdrawn, made);
    assert!(made.iter().any(|(_, session)| session == "atlas/slow"));
    assert_eq!(world.dispatches().await.len(), 4, "the other message's stay");

    // The server cannot tell a repetition without a message id; the orders have ids of their own.
    world.publish_anonymously(&deletion_of(&message)).await;
    world.wait_until_acked().await;
    let ids: BTreeSet<_> = world.orders().await.iter().map(|order| order.id).collect();
    assert_eq!(ids.len(), orders.len(), "a further deletion gives no further order");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_by_another_party_withdraws_nothing() {
    let world = World::with_one_replica(&[("fires.ts", FIRES)]).await;
    let message = event("v1", 1, "hello");
    world.publish(&message).await;
    world.record(&message).await;

    let by_another = Event {
        origin: EventOrigin::visitor("default", "v2"),
        ..deletion_of(&message)
    };
    let mut by_another_sender = deletion_of(&message);
    by_another_sender.from.id = "v2".to_owned();
    let mut of_another = deletion_of(&event("v1", 9, ""));
    of_another.target = Some(message.id.to_string());

    for event in [by_another, by_another_sender, of_another] {
        world.publish(&event).await;
    }
    world.wait_until_acked().await;
    assert_eq!(world.orders().await, []);

    world.publish(&deletion_of(&message)).await;
    eventually("the sender's own deletion counts", async || {
        world.orders().await.len() == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_is_told_to_the_session_once() {
    let world = World::with_one_replica(&[("fires.ts", FIRES)]).await;
    let message = event("v1", 1, "hello");
    world.publish(&message).await;
    let record = world.record(&message).await;
    let HookOutcome::Fired { dispatch: made, .. } = of(&record, "fires").outcome else {
        panic!("{record:?}");
    };

    let edit = |at: Option<i64>, content: &str| Event {
        direction: EventDirection::Updated,
        edited_at: at.map(UnixMillis),
        content: content.to_owned(),
        ..message.clone()
    };
    // An edit, a late file of the edited message, and another edit.
    let mut with_tag = edit(Some(1_700_000_000_500), "hello!");
    with_tag.tags.push("late".to_owned());
    for event in [
        edit(None, "hello"),
        edit(Some(1_700_000_000_500), "hello!"),
        with_tag,
        edit(Some(1_700_000_000_900), "bye"),
    ] {
        world.publish(&event).await;
    }
    world.wait_until_acked().await;

    let orders = world.orders().await;
    let texts = orders.iter().map(|order| {
        let OrderKind::Edit {
            dispatch,
            from,
            content,
            edited_at: _,
        } = &order.wanted
        else {
            panic!("{order:?}");
        };
        assert_eq!(*dispatch, made);
        (from.as_str(), content.as_str())
    });
    assert_eq!(texts.collect::<Vec<_>>(), [("v1", "hello!"), ("v1", "bye")]);
    assert_eq!(world.dispatches().await.len(), 1);
}
