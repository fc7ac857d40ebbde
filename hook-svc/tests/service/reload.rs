//! How soon a saved file is in force on every replica, and what that costs events that come meanwhile: nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use shared::bus::{Bus, OutgoingMessage};
use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::invocation::{EventInvocations, HookOutcome};
use shared::model::time::UnixMillis;
use shared::wire::topology::streams::INVOCATIONS;

use crate::world::{DEADLINE, World, event, of};

const EDITS: u32 = 7;

/// How soon after it was written a file is in force on a replica: half of the times, and always. Milliseconds. The first
/// is a second, with room for a machine of a third of the usual speed.
const SOON_MS: i64 = 3_000;
const AT_LAST_MS: i64 = 30_000;

/// Fires upon everything, and says which version it is.
fn version(number: u32) -> String {
    format!(
        "export default ({{ event }}) => ({{ fire: true, routing: {{ session: event.peer.id }}, context: {{ prompt: 'v{number}' }} }});\n"
    )
}

/// Some hundred events a second on twenty conversations, until it is over; how many.
async fn send(bus: Bus, over: Arc<AtomicBool>) -> u32 {
    let mut number = 0;
    while !over.load(Ordering::Relaxed) {
        let event = event(&format!("v{}", number % 20), number, "hello");
        let out = OutgoingMessage::event(&event, bus.trust());
        bus.publish(out).await.expect("published");
        number += 1;
        pause(Duration::from_millis(2)).await;
    }
    number
}

/// Which version of the hook the event of `record` was shown to.
fn version_of(record: &EventInvocations) -> u32 {
    let HookOutcome::Fired { result, .. } = &of(record, "v").outcome else {
        panic!("{record:?}");
    };
    let prompt = result
        .context
        .as_ref()
        .and_then(|context| context.system_prompt.as_deref());
    let number = prompt.and_then(|prompt| prompt.strip_prefix('v')?.parse().ok());
    number.unwrap_or_else(|| panic!("{record:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_saved_file_is_in_force_on_every_replica_within_a_second() {
    let mut world = World::new(&[("v.ts", &version(0))]).await;
    world.start("a");
    world.start("b");
    world.wait_for_members(2).await;
    let over = Arc::new(AtomicBool::new(false));
    let sending = tokio::spawn(send(world.bus.clone(), Arc::clone(&over)));
    let mut records = world.bus.read_ordered(INVOCATIONS, &[], 1).await.expect("readable");

    let mut edits: Vec<UnixMillis> = Vec::new();
    let mut took_ms = Vec::new();
    for edit in 0..=EDITS {
        let written = SystemClock.now();

        if edit > 0 {
            world.write_hook("v.ts", &version(edit));
        }

        edits.push(written);
        let mut first: BTreeMap<String, i64> = BTreeMap::new();
        while first.len() < 2 {
            let incoming = tokio::time::timeout(DEADLINE, records.next()).await;
            let incoming = incoming.unwrap_or_else(|_| panic!("edit {edit} is in force on {first:?} only"));
            let record: EventInvocations = incoming.decode().expect("it decodes");
            if version_of(&record) == edit {
                first
                    .entry(record.evaluated_by)
                    .or_insert(record.started_at.0 - written.0);
            }
        }

        if edit > 0 {
            took_ms.extend(first.into_values());
        }
    }

    over.store(true, Ordering::Relaxed);
    let sent = sending.await.expect("all was sent");
    took_ms.sort_unstable();
    println!("{sent} events, {EDITS} edits, each in force on a replica after so many ms: {took_ms:?}");

    assert!(took_ms[took_ms.len() / 2] <= SOON_MS, "{took_ms:?}");
    assert!(took_ms[took_ms.len() - 1] <= AT_LAST_MS, "{took_ms:?}");

    let longest = took_ms[took_ms.len() - 1];
    nothing_is_lost_or_doubled(&world, sent, &edits, longest + SOON_MS).await;
}

/// Each of the `sent` events was shown to one version, and to none that was another for `within_ms`.
async fn nothing_is_lost_or_doubled(world: &World, sent: u32, edits: &[UnixMillis], within_ms: i64) {
    world.wait_for_records(sent.into()).await;
    world.wait_until_acked().await;
    let records = world.invocations().await;
    let events: BTreeSet<_> = records.iter().map(|record| record.event_id.as_str()).collect();

    assert_eq!((records.len(), events.len()), (sent as usize, sent as usize));

    let mut versions = BTreeMap::new();
    for record in &records {
        let version = version_of(record);
        versions.insert(record.event_id.clone(), version);
        let late = record.started_at.0 - within_ms;
        let least = edits.iter().rposition(|written| written.0 < late).unwrap_or(0);
        assert!(version as usize >= least, "v{version} after v{least}: {record:?}");
    }

    let dispatches = world.dispatches().await;
    assert_eq!(dispatches.len(), sent as usize);

    for dispatch in dispatches {
        let version = versions.remove(&dispatch.event_id);
        let version = version.map(|version| format!("v{version}"));
        assert_eq!(dispatch.context.system_prompt, version, "{}", dispatch.event_id);
    }

    assert!(world.dead_letters().await.is_empty());
}
