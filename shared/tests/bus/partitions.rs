//! Replicas that share the partitions of a stream.

use shared::wire::session_mark::LeaseRecord;

use super::*;

type Log = Arc<Mutex<Vec<(String, String, u32)>>>;

/// A replica that logs (replica, peer, number) of what it handles.
fn replica(bus: &Bus, name: &str, log: &Log) -> (ShutdownSignal, tokio::task::JoinHandle<()>) {
    let (_, open) = tokio::sync::watch::channel(true);
    replica_at(bus, name, log, None, &open)
}

/// A replica whose owners take their messages at `tap`. Those of the peer "slow" wait until the gate is `open`.
fn replica_at(
    bus: &Bus,
    name: &str,
    log: &Log,
    tap: Option<StreamTap>,
    open: &tokio::sync::watch::Receiver<bool>,
) -> (ShutdownSignal, tokio::task::JoinHandle<()>) {
    let shutdown = ShutdownSignal::default();
    let (_, may_join) = tokio::sync::watch::channel(true);
    let group = partition::PartitionGroup {
        name: "hook",
        stream: streams::EVENTS,
        instance: name.to_owned(),
        may_join,
        settled: partition::SettledOutcome::ByOwner,
        tap,
        batch: 20,
        clock: Arc::new(SystemClock),
    };

    let (log, name, open) = (Arc::clone(log), name.to_owned(), open.clone());
    let handler = move |mut owned: partition::OwnedPartition| {
        let (log, name, mut open) = (Arc::clone(&log), name.clone(), open.clone());
        async move {
            while let Some(message) = owned.next().await {
                let event: Event = message.decode().expect("ours");
                let number = event.content.parse().expect("a number");

                if event.peer.id == "slow" && open.wait_for(|open| *open).await.is_err() {
                    return;
                }

                log.lock()
                    .expect("no panic")
                    .push((name.clone(), event.peer.id, number));
                message.ack().await;
            }
        }
    };

    let task = tokio::spawn(partition::run(bus.clone(), group, shutdown.clone(), handler));
    (shutdown, task)
}

#[tokio::test]
async fn a_replica_refreshes_one_record_for_all_its_leases() {
    const ALL: u64 = 64;
    const REFRESHES: u64 = 6;

    let (_server, bus) = world().await;
    let (stop, running) = replica(&bus, "a", &Log::default());
    let leases = bus.kv::<LeaseRecord>(buckets::LEASES);
    let entries = async |prefix: &str| {
        let entries = leases.entries().await.expect("readable").into_iter();
        entries.filter(|(key, _)| key.starts_with(prefix)).collect::<Vec<_>>()
    };
    // The session's record is one of them.
    eventually("all leases are taken", async || {
        entries("hook.").await.len() as u64 == ALL + 1
    })
    .await;

    let session = async || entries("hook.session.").await.pop().expect("a session").1.revision;
    eventually("the session is refreshed", async || session().await > ALL + 1).await;
    let first = session().await;
    let at = SystemClock.monotonic();
    eventually("the session is refreshed some times", async || {
        session().await >= first + REFRESHES
    })
    .await;
    let took = SystemClock.monotonic().duration_since(at);

    // Nothing else was written meanwhile, and the replica was not woken by what it wrote: a refresh each 0.7 s.
    let last = bus.stream_state("KV_leases").await.expect("readable").last;
    assert!(last <= first + 3 * REFRESHES, "{last} after {first}");
    assert!(took >= Duration::from_millis(700 * (REFRESHES - 2)), "{took:?}");

    stop.trigger();
    running.await.expect("no panic");
    eventually("all leases and the session are given back", async || {
        entries("hook.").await.is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_replicas_leases_are_taken_once_its_session_is_over_and_not_before() {
    let (_server, bus) = world().await;
    let log: Log = Arc::default();
    let (_stop, dead) = replica(&bus, "dead", &log);
    let leases = bus.kv::<LeaseRecord>(buckets::LEASES);
    let holders = async || {
        let entries = leases.entries().await.expect("readable").into_iter();
        let partitions = entries.filter(|(key, _)| !key.contains("session"));
        partitions
            .map(|(_, entry)| (entry.value.holder, entry.value.session))
            .collect::<Vec<_>>()
    };
    eventually("all leases are taken", async || holders().await.len() == 64).await;
    let (_, session) = holders().await.pop().expect("a lease");

    // As with a kill: nothing is given back.
    dead.abort();
    let (stop, heir) = replica(&bus, "heir", &log);
    eventually("the heir has them", async || {
        holders().await.iter().all(|(holder, _)| holder == "heir")
    })
    .await;
    let over = leases.get(&format!("hook.session.{session}")).await.expect("readable");
    assert_eq!(over, None, "its leases were taken while its session lasted");

    // Whoever loses one lease to another keeps the rest.
    let key = "hook.7";
    leases.delete(key, None).await.expect("removed");
    eventually("it is taken again", async || {
        leases.get(key).await.expect("readable").is_some()
    })
    .await;
    let sessions: std::collections::BTreeSet<String> =
        holders().await.into_iter().map(|(_, session)| session).collect();
    assert_eq!(sessions.len(), 1, "one session all the time");

    stop.trigger();
    heir.await.expect("no panic");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_loses_its_session_loses_all_leases_and_takes_them_anew() {
    let (_server, bus) = world().await;
    let (stop, running) = replica(&bus, "a", &Log::default());
    let leases = bus.kv::<LeaseRecord>(buckets::LEASES);
    let sessions = async || {
        let entries = leases.entries().await.expect("readable").into_iter();
        let partitions = entries.filter(|(key, _)| !key.contains("session"));
        partitions.map(|(_, entry)| entry.value.session).collect::<Vec<_>>()
    };
    eventually("all leases are taken", async || sessions().await.len() == 64).await;
    let first = sessions().await.pop().expect("a lease");

    leases
        .delete(&format!("hook.session.{first}"), None)
        .await
        .expect("removed");
    eventually("all are of another session", async || {
        let now = sessions().await;
        now.len() == 64 && now.iter().all(|session| *session != first)
    })
    .await;

    stop.trigger();
    running.await.expect("no panic");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_share_partitions_and_keep_order_while_they_come_and_go() {
    let (_server, bus) = world().await;
    let log: Log = Arc::default();
    let (stop_a, a) = replica(&bus, "a", &log);
    let mut sent = 0;

    let mut send = async |count: u32| {
        for _ in 0..count {
            sent += 1;
            for peer in 0..20 {
                publish(&bus, &event(sent, &format!("peer{peer}"))).await;
            }
        }

        sent as usize * 20
    };

    let total = send(3).await;
    eventually("a handles all", async || log.lock().expect("ok").len() == total).await;
    let (stop_b, b) = replica(&bus, "b", &log);
    eventually("b gets its share", async || {
        send(1).await;
        log.lock().expect("ok").iter().any(|(name, _, _)| name == "b")
    })
    .await;

    stop_a.trigger();
    a.await.expect("a gives everything back");
    let total = send(3).await;
    eventually("b handles all", async || log.lock().expect("ok").len() >= total).await;
    stop_b.trigger();
    b.await.expect("b gives everything back");

    let mut by_peer: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for (_, peer, number) in log.lock().expect("ok").iter() {
        by_peer.entry(peer.clone()).or_default().push(*number);
    }

    let wanted: Vec<u32> = (1..=(total / 20) as u32).collect();
    assert!(by_peer.values().all(|numbers| *numbers == wanted), "{by_peer:?}");
}

/// How many consumers `EVENTS` has.
async fn consumers(bus: &Bus) -> u64 {
    let info: Value = bus
        .request("$JS.API.STREAM.INFO.EVENTS", Headers::new(), &(), DEADLINE)
        .await
        .expect("the server answers");
    info["state"]["consumer_count"].as_u64().expect("a count")
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_at_a_tap_miss_nothing_whoever_falls_behind() {
    const MANY: u32 = 1_500;

    let (mut server, bus) = world().await;
    let durable = consumers(&bus).await;
    let tap = StreamTap::default();
    let mut ordered = bus
        .read_ordered(streams::EVENTS, &[], 1)
        .await
        .expect("the stream is there");
    let passing = tap.begin_behind(0, true);
    let reader = tokio::spawn(async move {
        loop {
            passing.pass_on(&ordered.next().await).await;
        }
    });

    let log: Log = Arc::default();
    let (open, gate) = tokio::sync::watch::channel(true);
    let (stop, running) = replica_at(&bus, "a", &log, Some(tap), &gate);

    let handled = async |peer: &str, through: u32| {
        eventually(&format!("{peer} is handled through {through}"), async || {
            let log = log.lock().expect("ok");
            log.iter().any(|(_, of, number)| of == peer && *number == through)
        })
        .await;
    };

    publish(&bus, &event(1, "slow")).await;
    handled("slow", 1).await;
    eventually("one consumer reads for all", async || {
        consumers(&bus).await == durable + 1
    })
    .await;

    // Falls behind alone, further than it may at the tap.
    open.send_replace(false);

    for number in 2..=MANY {
        publish(&bus, &event(number, "slow")).await;
    }

    publish(&bus, &event(1, "quick")).await;
    handled("quick", 1).await;
    open.send_replace(true);
    handled("slow", MANY).await;
    eventually("it has come back to the tap", async || {
        publish(&bus, &event(2, "quick")).await;
        consumers(&bus).await == durable + 1
    })
    .await;

    // What was on its way to the tap is not lost with the connection.
    server.kill9();
    server.restart().await;

    for peer in ["slow", "quick"] {
        publish(&bus, &event(MANY + 1, peer)).await;
        handled(peer, MANY + 1).await;
    }

    // Whoever takes no part reads no stream; the owners then read it by themselves.
    reader.abort();

    for peer in ["slow", "quick"] {
        publish(&bus, &event(MANY + 2, peer)).await;
        handled(peer, MANY + 2).await;
    }

    stop.trigger();
    running.await.expect("it gives everything back");
    let log = log.lock().expect("ok");

    let of = |peer: &str| {
        log.iter()
            .filter(|(_, of, _)| of == peer)
            .map(|(_, _, number)| *number)
            .collect::<Vec<_>>()
    };

    assert_eq!(of("slow"), (1..=MANY + 2).collect::<Vec<_>>());
    assert_eq!(of("quick"), [1, 2, MANY + 1, MANY + 2]);
}
