//! A message that was edited or deleted at its source: its sessions are told, by the party that brought it alone.

use std::collections::BTreeSet;

use shared::model::event::{Event, EventDirection, MERGED_TEXTS, PlatformIds, UNPAIRED};
use shared::model::invocation::HookOutcome;
use shared::model::order::{OrderKind, SessionOrder};
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

/// Has not answered before a test is over, if the event is a change or says so.
const ENDLESS: &str = "/** @timeout 5m
 * @match direction=received,updated,deleted */
export default async ({ event }) => {
    const waits = event.direction !== 'received' || event.content === 'wait';
    if (waits) await new Promise((resolve) => setTimeout(resolve, 280000));
    return { fire: false };
};
";
const QUICK: &str = "export default () => ({ fire: false });\n";

fn edit_of(message: &Event, at: i64, content: &str) -> Event {
    Event {
        direction: EventDirection::Updated,
        edited_at: Some(UnixMillis(at)),
        content: content.to_owned(),
        ..message.clone()
    }
}

/// What the orders want, in their order: the text of an edit with its time, or nothing for a withdrawal.
fn wanted(orders: &[SessionOrder]) -> Vec<Option<(&str, i64)>> {
    let wanted = orders.iter().map(|order| match &order.wanted {
        OrderKind::Edit { content, edited_at, .. } => Some((content.as_str(), edited_at.0)),
        OrderKind::Withdraw { .. } => None,
        OrderKind::Abort
        | OrderKind::Interrupt
        | OrderKind::Reset
        | OrderKind::Queue { .. }
        | OrderKind::Send { .. } => panic!("{order:?}"),
    });
    wanted.collect()
}

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

    let edit = |at: i64, content: &str| edit_of(&message, at, content);
    // A late file, an edit, a late file of the edited message, and another edit.
    let with_file = Event {
        edited_at: None,
        ..edit(0, "hello")
    };
    let mut with_tag = edit(1_700_000_000_500, "hello!");
    with_tag.tags.push("late".to_owned());
    for event in [
        with_file,
        edit(1_700_000_000_500, "hello!"),
        with_tag,
        edit(1_700_000_000_900, "bye"),
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

#[tokio::test(flavor = "multi_thread")]
async fn neither_the_hooks_of_a_change_nor_other_messages_delay_its_orders() {
    let world = World::with_one_replica(&[("fires.ts", FIRES), ("endless.ts", ENDLESS)]).await;
    let message = event("v1", 1, "hello");
    world.publish(&message).await;
    world.record(&message).await;

    // The second message and both changes are under way until the end of the test.
    for event in [
        event("v1", 2, "wait"),
        edit_of(&message, 1_700_000_000_500, "bye"),
        deletion_of(&message),
    ] {
        world.publish(&event).await;
    }

    eventually("both orders are given", async || world.orders().await.len() == 2).await;
    assert_eq!(wanted(&world.orders().await), [Some(("bye", 1_700_000_000_500)), None]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_a_message_that_is_under_way_delays_nothing_and_is_ordered_by_the_next_owner() {
    let notes = "/** @match direction=deleted */\nexport default () => ({ fire: true });\n";
    let hooks = [("fires.ts", FIRES), ("endless.ts", ENDLESS), ("notes.ts", notes)];
    let mut world = World::with_one_replica(&hooks).await;
    let (message, next) = (event("v1", 1, "wait"), event("v1", 2, "hello"));
    for event in [&message, &deletion_of(&message), &next] {
        world.publish(event).await;
    }

    // The hooks of the deletion do not wait for those of the message, and the next message waits for neither.
    world.record(&next).await;
    eventually("the deletion's own dispatch", async || {
        let dispatches = world.dispatches().await;
        dispatches.iter().any(|dispatch| dispatch.hook_id == "notes")
    })
    .await;
    assert_eq!(world.orders().await, [], "it is unknown what the message leads to");

    world.replica("a").kill();
    world.write_hook("endless.ts", QUICK);
    world.start("b");
    eventually("the order is given", async || !world.orders().await.is_empty()).await;
    world.wait_until_acked().await;
    assert_eq!(wanted(&world.orders().await), [None]);
    assert_eq!(world.dispatches().await.len(), 3, "of two messages and the deletion");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_killed_between_an_order_and_the_changes_record_is_followed_without_a_further_order() {
    let mut world = World::with_one_replica(&[("fires.ts", FIRES), ("endless.ts", ENDLESS)]).await;
    let message = event("v1", 1, "hello");
    world.publish(&message).await;
    world.record(&message).await;
    world.publish(&edit_of(&message, 1_700_000_000_500, "bye")).await;
    eventually("the order is given", async || world.orders().await.len() == 1).await;
    assert_eq!(world.invocations().await.len(), 1, "the edit has no record yet");

    let first = world.orders().await.remove(0);
    world.replica("a").kill();
    world.write_hook("endless.ts", QUICK);
    world.start("b");
    world.wait_for_records(2).await;
    world.wait_until_acked().await;

    // The server may have forgotten the message id; the session recognises the order's own.
    let orders = world.orders().await;
    assert!(orders.iter().all(|order| *order == first), "{orders:?}");
    let records = world.invocations().await;
    let by: Vec<&str> = records.iter().map(|record| record.evaluated_by.as_str()).collect();
    assert_eq!(by, ["a", "b"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_is_ordered_once_and_in_its_order_by_two_replicas_of_which_one_is_killed() {
    const ITEMS: u32 = 12;

    let mut world = World::new(&[("fires.ts", FIRES)]).await;
    world.start("a");
    world.start("b");
    world.wait_for_members(2).await;
    let messages: Vec<Event> = (0..ITEMS)
        .map(|number| event(&format!("v{number}"), 1, "hello"))
        .collect();
    world.publish_all(&messages).await;
    world.wait_for_records(u64::from(ITEMS)).await;

    let edits = messages
        .iter()
        .map(|message| edit_of(message, 1_700_000_000_500, "bye"));
    world.publish_all(&edits.collect::<Vec<_>>()).await;
    world.replica("a").kill();
    let deletions = messages.iter().map(deletion_of);
    world.publish_all(&deletions.collect::<Vec<_>>()).await;
    world.wait_until_acked().await;

    let mut known = BTreeSet::new();
    let mut orders = world.orders().await;
    // A repetition has the id of the first, whose place counts.
    orders.retain(|order| known.insert(order.id));
    assert_eq!(orders.len(), 2 * ITEMS as usize);
    for dispatch in world.dispatches().await {
        let of_dispatch: Vec<SessionOrder> = orders
            .iter()
            .filter(|order| match order.wanted {
                OrderKind::Edit { dispatch: of, .. } | OrderKind::Withdraw { dispatch: of, .. } => of == dispatch.id,
                OrderKind::Abort
                | OrderKind::Interrupt
                | OrderKind::Reset
                | OrderKind::Queue { .. }
                | OrderKind::Send { .. } => false,
            })
            .cloned()
            .collect();
        assert_eq!(wanted(&of_dispatch), [Some(("bye", 1_700_000_000_500)), None]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_who_may_not_write_changes_no_text_and_an_album_keeps_its_own() {
    let world = World::with_one_replica(&[("fires.ts", FIRES)]).await;
    let (single, mut album) = (event("v1", 1, "hello"), event("v1", 2, "one\ntwo"));
    let ids = ["11", "12"].map(str::to_owned).to_vec();
    PlatformIds { ids, part: 0 }.write_to(&mut album);
    for message in [&single, &album] {
        world.publish(message).await;
        world.record(message).await;
    }

    let mut withheld = edit_of(&single, 1_700_000_000_900, "and now this");
    withheld.add_tag(UNPAIRED);
    let mut taken_back = deletion_of(&single);
    taken_back.add_tag(UNPAIRED);
    for event in [
        withheld,
        edit_of(&album, 1_700_000_000_900, "two, edited"),
        // A source may bring an older edit later; the session knows which one counts.
        edit_of(&single, 1_700_000_000_800, "newer"),
        edit_of(&single, 1_700_000_000_700, "older"),
        taken_back,
        deletion_of(&album),
    ] {
        world.publish(&event).await;
    }
    world.wait_until_acked().await;

    let edits = [Some(("newer", 1_700_000_000_800)), Some(("older", 1_700_000_000_700))];
    let orders = world.orders().await;
    assert_eq!(
        wanted(&orders).into_iter().flatten().map(Some).collect::<Vec<_>>(),
        edits
    );
    let withdrawn: BTreeSet<String> = orders
        .iter()
        .filter(|order| matches!(order.wanted, OrderKind::Withdraw { .. }))
        .map(|order| order.reason.clone())
        .collect();
    let reasons = [&single, &album].map(|message| format!("{} was deleted at its source", message.id));
    assert_eq!(withdrawn, BTreeSet::from(reasons));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_that_has_all_texts_of_a_merged_event_is_the_new_text_of_its_dispatches() {
    let world = World::with_one_replica(&[("fires.ts", FIRES)]).await;
    let mut merged = event("v1", 1, "one\ntwo");
    let ids = ["11", "12"].map(str::to_owned).to_vec();
    PlatformIds { ids, part: 0 }.write_to(&mut merged);
    world.publish(&merged).await;
    world.record(&merged).await;

    let mut edit = edit_of(&merged, 1_700_000_000_900, "one");
    edit.metadata
        .insert(MERGED_TEXTS.to_owned(), serde_json::json!([{"id": "one", "bytes": 3}]));
    world.publish(&edit).await;
    world.wait_until_acked().await;
    assert_eq!(wanted(&world.orders().await), [Some(("one", 1_700_000_000_900))]);
}
