//! The event of a lost dispatch, wherever it is by now.

use broker_svc::queue::event_search::find_event;
use shared::bus::{Bus, OutgoingMessage, StoredMessage};
use shared::clock::{Clock as _, SystemClock};
use shared::model::dispatch::dispatch_id;
use shared::model::event::{Event, EventDirection, EventId};
use shared::model::hook::HookResult;
use shared::model::invocation::{EventInvocations, HookInvocation, HookOutcome};
use shared::model::ledger::DispatchRef;
use shared::testing::world;
use shared::wire::headers::EVENT_SUBJECT;
use shared::wire::seal::record_key;
use shared::wire::subject;
use shared::wire::topology::streams::EVENTS;
use ulid::Ulid;

fn event(number: usize) -> Event {
    let id = EventId::parse(format!("test:{number}")).expect("an id");
    let mut event = Event::new(id, "test", "ada", SystemClock.now());
    event.content = format!("message {number}");
    event
}

/// A dispatch of `event` as the ledger names it; `salt` stands for the hook.
fn dispatch_of(event: &Event, salt: &str) -> DispatchRef {
    DispatchRef {
        id: dispatch_id(&event.id, event.believed_at(), salt),
        sequence: 1,
        event_id: event.id.clone(),
        content: event.content.clone(),
        stranger: None,
    }
}

pub(crate) async fn send(bus: &Bus, event: &Event) -> StoredMessage {
    let out = OutgoingMessage::event(event, bus.trust());
    let sequence = bus.publish(out).await.expect("stored").sequence;
    let stored = bus.at_sequence(EVENTS, sequence).await.expect("readable");
    stored.expect("it is there")
}

/// Sends `event` once more, to a server that has forgotten its message id.
async fn send_again(bus: &Bus, event: &Event) -> u64 {
    let out = OutgoingMessage::event(event, bus.trust()).msg_id("forgotten");
    bus.publish(out).await.expect("stored").sequence
}

/// Stores the record of `event` at `stored`, as hook-svc does; `made` is the dispatch of its fire.
pub(crate) async fn note(bus: &Bus, event: &Event, stored: &StoredMessage, made: Option<Ulid>) {
    let fire = made.map(|dispatch| HookInvocation {
        hook_id: "hook".to_owned(),
        latency_us: 1,
        outcome: HookOutcome::Fired {
            dispatch,
            result: Box::new(HookResult::default()),
            target: None,
        },
        llm_calls: 0,
        llm_tokens_in: 0,
        llm_tokens_out: 0,
        llm_cost_usd: 0.0,
        search_calls: 0,
    });
    let record = EventInvocations {
        event_id: event.id.clone(),
        event_seq: stored.sequence,
        evaluated_by: "a".to_owned(),
        started_at: SystemClock.now(),
        finished_at: SystemClock.now(),
        passed: 0,
        hooks: fire.into_iter().collect(),
        passes: Vec::new(),
        is_slim: false,
    };
    let out = OutgoingMessage::new(subject::invocation(0, &record_key(event)), &record);
    let out = out.header(EVENT_SUBJECT, &stored.subject);
    bus.publish(out).await.expect("stored");
}

async fn found(bus: &Bus, known: &DispatchRef) -> Option<u64> {
    let found = find_event(bus, known).await.expect("readable");
    found.map(|stored| stored.sequence)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_was_sent_again_to_a_restored_stream_is_found() {
    let (mut server, bus) = world().await;
    send(&bus, &event(1)).await;
    server.stop().await;
    let older = server.copy_of(EVENTS);
    server.restart().await;

    let wanted = event(3);
    let known = dispatch_of(&wanted, "hook");
    send(&bus, &event(2)).await;
    let stored = send(&bus, &wanted).await;
    note(&bus, &wanted, &stored, Some(known.id)).await;
    assert_eq!(found(&bus, &known).await, Some(stored.sequence));

    server.stop().await;
    server.put_back(EVENTS, &older);
    server.restart().await;
    assert_eq!(found(&bus, &known).await, None, "it is lost");

    // The sequence that the record names is another event's, and the source sends the event again behind it.
    for number in 4..=5 {
        send(&bus, &event(number)).await;
    }
    let again = send(&bus, &wanted).await.sequence;
    assert_ne!(again, stored.sequence);
    assert_eq!(found(&bus, &known).await, Some(again));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_had_expired_and_was_sent_again_behind_many_others_is_found() {
    let (_server, bus) = world().await;
    let wanted = event(0);
    let known = dispatch_of(&wanted, "hook");
    let stored = send(&bus, &wanted).await;
    note(&bus, &wanted, &stored, Some(known.id)).await;
    bus.delete_message(EVENTS, stored.sequence).await.expect("deleted");

    // More than are read at once.
    for number in 1..=300 {
        send(&bus, &event(number)).await;
    }
    assert_eq!(found(&bus, &known).await, None);
    let again = send_again(&bus, &wanted).await;
    assert_eq!(found(&bus, &known).await, Some(again));
}

/// The item and its changes have one id; redriving another than the one that made the dispatch would evaluate what
/// its sender has replaced.
#[tokio::test(flavor = "multi_thread")]
async fn of_an_item_and_its_changes_the_one_that_made_the_dispatch_is_found() {
    let (_server, bus) = world().await;
    let item = event(1);
    let changed = |content: &str| Event {
        direction: EventDirection::Updated,
        content: content.to_owned(),
        ..item.clone()
    };
    let changes = [changed("first"), changed("second"), changed("third")];
    let known = dispatch_of(&item, "of the change");

    let stored = send(&bus, &item).await;
    let first = dispatch_of(&item, "of the item");
    note(&bus, &item, &stored, Some(first.id)).await;
    let mut sequences = Vec::new();
    for (change, made) in changes.iter().zip([None, Some(known.id), None]) {
        let stored = send(&bus, change).await;
        note(&bus, change, &stored, made).await;
        sequences.push(stored.sequence);
    }

    assert_eq!(found(&bus, &first).await, Some(stored.sequence));
    assert_eq!(found(&bus, &known).await, Some(sequences[1]));

    bus.delete_message(EVENTS, sequences[1]).await.expect("deleted");
    assert_eq!(
        found(&bus, &known).await,
        None,
        "the item and the other changes are not it"
    );
    let again = send_again(&bus, &changes[1]).await;
    assert_eq!(found(&bus, &known).await, Some(again));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_would_not_make_the_dispatch_again_is_not_returned() {
    let (_server, bus) = world().await;
    let wanted = event(1);
    let known = dispatch_of(&wanted, "hook");
    let stored = send(&bus, &wanted).await;
    assert_eq!(found(&bus, &known).await, None, "it has no record");
    note(&bus, &wanted, &stored, None).await;
    assert_eq!(found(&bus, &known).await, None, "nothing fired");
    note(&bus, &wanted, &stored, Some(known.id)).await;
    assert_eq!(found(&bus, &known).await, Some(stored.sequence));
}
