//! Watches and readers whose bucket or stream is purged, made anew or put back while they listen: none goes deaf.

use std::collections::BTreeMap;
use std::time::Duration;

use shared::bus::{Bus, Kv, KvEvent, KvWatch, OutgoingMessage, ReadStreamError};
use shared::testing::nats::NatsServer;
use shared::testing::{connect_to, world};
use shared::wire::headers::Headers;
use shared::wire::session_mark::GroupMember;
use shared::wire::topology::{buckets, streams, topology};

const STREAM: &str = "KV_members";
/// How long anything may take on a busy machine: a watch looks after its bucket each 15 s.
const DEADLINE: Duration = Duration::from_secs(60);

fn member(name: &str) -> GroupMember {
    GroupMember {
        instance: name.to_owned(),
        run: String::new(),
    }
}

fn members(bus: &Bus) -> Kv<GroupMember> {
    bus.kv(buckets::MEMBERS)
}

/// What a reader of `watch` knows, as most of them keep it.
struct Reader {
    watch: KvWatch<GroupMember>,
    known: BTreeMap<String, (String, u64)>,
    /// How often it began anew.
    anew: u32,
}

impl Reader {
    async fn of(bus: &Bus) -> Self {
        let mut reader = Self {
            watch: members(bus).watch_all(),
            known: BTreeMap::new(),
            anew: 0,
        };
        reader.until_current().await;
        reader
    }

    async fn next(&mut self) -> bool {
        let told = tokio::time::timeout(DEADLINE, self.watch.next()).await;
        match told.unwrap_or_else(|_| panic!("nothing is told; known: {:?}", self.known)) {
            KvEvent::Put { key, value, revision } => drop(self.known.insert(key, (value.instance, revision))),
            KvEvent::Gone { key, .. } => drop(self.known.remove(&key)),
            KvEvent::Bad { key, error, .. } => panic!("{key}: {error}"),
            KvEvent::Anew => {
                // Revisions count no more.
                self.known.values_mut().for_each(|(_, revision)| *revision = 0);
                self.anew += 1;
            }
            KvEvent::Current => return true,
        }

        false
    }

    async fn until_current(&mut self) {
        while !self.next().await {}
    }

    async fn until(&mut self, key: &str, value: Option<&str>) {
        while self.known.get(key).map(|(value, _)| value.as_str()) != value {
            self.next().await;
        }
    }

    fn names(&self) -> Vec<&str> {
        self.known.values().map(|(name, _)| name.as_str()).collect()
    }
}

async fn written(bus: &Bus, pairs: &[(&str, &str)]) {
    for (key, value) in pairs {
        members(bus).put(key, &member(value)).await.expect("stored");
    }
}

#[tokio::test]
async fn a_bucket_that_is_made_anew_is_read_from_its_beginning() {
    let (_server, bus) = world().await;
    written(&bus, &[("a", "1"), ("b", "1"), ("b", "2")]).await;
    let mut reader = Reader::of(&bus).await;

    assert_eq!(reader.names(), ["1", "2"]);

    assert!(bus.delete_stream(STREAM).await.expect("deleted"));

    bus.ensure_topology(&topology(1), false).await.expect("made again");
    written(&bus, &[("a", "3")]).await;
    reader.until_current().await;

    assert_eq!((reader.names(), reader.anew), (vec!["3"], 1), "b is gone");
    assert_eq!(reader.known["a"].1, 1, "its revisions count from the beginning");

    // It hears what comes later.
    written(&bus, &[("c", "4")]).await;
    reader.until("c", Some("4")).await;
    assert_eq!(reader.anew, 1);
}

#[tokio::test]
async fn a_bucket_that_is_purged_is_noticed_without_a_word() {
    let (_server, bus) = world().await;
    written(&bus, &[("a", "1"), ("b", "1")]).await;
    let mut reader = Reader::of(&bus).await;
    bus.purge_subject(STREAM, ">").await.expect("purged");
    reader.until("a", None).await;
    reader.until("b", None).await;
    written(&bus, &[("b", "2")]).await;
    reader.until("b", Some("2")).await;
    assert_eq!(reader.anew, 0, "revisions go on");
}

#[tokio::test]
async fn a_bucket_that_is_put_back_under_a_watch_tells_what_it_holds_now() {
    let (mut server, bus) = world().await;
    written(&bus, &[("a", "1"), ("b", "1"), ("c", "1")]).await;
    server.stop().await;
    let older = server.copy_of(STREAM);
    server.restart().await;
    let mut reader = Reader::of(&bus).await;
    written(&bus, &[("a", "2"), ("d", "2")]).await;
    reader.until("d", Some("2")).await;

    server.stop().await;
    server.put_back(STREAM, &older);
    server.restart().await;
    reader.until_current().await;

    assert_eq!((reader.names(), reader.anew), (vec!["1", "1", "1"], 1));

    written(&bus, &[("d", "3")]).await;
    reader.until("d", Some("3")).await;
}

/// The older state has grown beyond what was read before anybody could look: no count of messages tells it apart.
#[tokio::test]
async fn a_bucket_that_was_put_back_and_has_grown_since_is_told_apart_by_its_keys() {
    let (mut server, bus) = world().await;
    written(&bus, &[("a", "1"), ("b", "1")]).await;
    server.stop().await;
    let older = server.copy_of(STREAM);
    server.restart().await;
    let mut reader = Reader::of(&bus).await;
    written(&bus, &[("a", "2"), ("c", "2")]).await;
    reader.until("c", Some("2")).await;

    let grown = {
        let (mut other, elsewhere) = world().await;
        other.stop().await;
        other.put_back(STREAM, &older);
        other.restart().await;
        written(&elsewhere, &[("x", "9"), ("b", "9"), ("y", "9"), ("z", "9")]).await;
        other.stop().await;

        other.copy_of(STREAM)
    };

    server.stop().await;
    server.put_back(STREAM, &grown);
    server.restart().await;
    reader.until_current().await;

    assert_eq!((reader.names(), reader.anew), (vec!["1", "9", "9", "9", "9"], 1));
}

#[tokio::test]
async fn a_server_that_comes_back_as_it_was_tells_only_what_is_new() {
    let (mut server, bus) = world().await;
    written(&bus, &[("a", "1"), ("b", "1")]).await;
    let mut reader = Reader::of(&bus).await;
    server.kill9();
    server.restart().await;
    written(&bus, &[("b", "2")]).await;
    let next = tokio::time::timeout(DEADLINE, reader.watch.next()).await;

    assert!(
        matches!(next, Ok(KvEvent::Put { ref key, .. }) if key == "b"),
        "{next:?}"
    );
    assert_eq!(reader.anew, 0);
}

async fn stored(bus: &Bus, text: &str) -> u64 {
    let payload = text.as_bytes().to_vec().into();
    let out = OutgoingMessage::raw("nexus.dispatch.5.default.main".to_owned(), Headers::new(), payload);
    bus.publish(out).await.expect("stored").sequence
}

#[tokio::test]
async fn a_reader_of_a_stream_that_is_made_anew_has_everybody_look_at_their_positions() {
    let (_server, bus) = world().await;
    let mut reader = bus.read_ordered(streams::DISPATCHES, &[], 1).await.expect("readable");
    stored(&bus, "read").await;

    assert_eq!(reader.next().await.sequence, 1);

    let mut connections = bus.connections();
    connections.count_from_now();
    assert!(bus.delete_stream(streams::DISPATCHES).await.expect("deleted"));

    bus.ensure_topology(&topology(1), false).await.expect("made again");

    for sequence in 1..=3 {
        assert_eq!(stored(&bus, "another").await, sequence);
    }

    let told = async {
        tokio::select! {
            () = connections.stands_anew() => {}
            message = reader.next() => panic!("{} is of another stream", message.sequence),
        }
    };

    tokio::time::timeout(DEADLINE, told).await.expect("it is noticed");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_entries_of_a_bucket_that_does_not_exist_are_an_error_and_not_waited_for() {
    let server = NatsServer::start().await;
    let bus = connect_to(&server.url(), "test").await;

    let error = tokio::time::timeout(DEADLINE, members(&bus).entries())
        .await
        .expect("an answer in time")
        .expect_err("there is no bucket");
    assert!(
        matches!(&error, ReadStreamError::Refused { stream, code: 404 | 10_059, .. } if stream == "KV_members"),
        "{error:?}"
    );
}

/// Names of the keys that `bus` lists; it must answer soon, whatever happens meanwhile.
async fn listed(bus: &Bus, what: &str) -> Vec<String> {
    let listed = tokio::time::timeout(DEADLINE, members(bus).entries()).await;
    let entries = listed.unwrap_or_else(|_| panic!("{what}: no answer"));
    let entries = entries.unwrap_or_else(|error| panic!("{what}: {error}"));
    entries.into_iter().map(|(key, _)| key).collect()
}

async fn many(bus: &Bus, count: u32) {
    let bucket = members(bus);
    let puts = (0..count).map(|number| {
        let bucket = bucket.clone();
        async move { bucket.put(&format!("k{number}"), &member("m")).await.expect("stored") }
    });
    futures_util::future::join_all(puts).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_is_listed_whatever_is_missing_in_it() {
    let (_server, bus) = world().await;
    assert_eq!(listed(&bus, "never written").await, [""; 0]);

    written(&bus, &[("a", "1"), ("b", "1"), ("c", "1")]).await;
    bus.purge_subject(STREAM, "$KV.members.c").await.expect("purged");
    assert_eq!(listed(&bus, "the last message is gone").await, ["a", "b"]);

    written(&bus, &[("c", "1"), ("d", "1")]).await;
    bus.purge_subject(STREAM, "$KV.members.b").await.expect("purged");
    written(&bus, &[("a", "2")]).await;
    assert_eq!(listed(&bus, "inner messages are gone").await, ["a", "c", "d"]);

    for key in ["a", "c", "d"] {
        members(&bus).delete(key, None).await.expect("deleted");
    }
    assert_eq!(listed(&bus, "there are markers alone").await, [""; 0]);

    bus.purge_subject(STREAM, ">").await.expect("purged");
    assert_eq!(listed(&bus, "it was emptied").await, [""; 0]);

    // Values that expire leave markers, which expire as well.
    let second = Duration::from_secs(1);
    members(&bus).put_ttl("e", &member("1"), second).await.expect("stored");
    assert_eq!(listed(&bus, "before it expires").await, ["e"]);
    let gone = async { while !listed(&bus, "while it expires").await.is_empty() {} };
    tokio::time::timeout(DEADLINE, gone).await.expect("it expires");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_changes_while_it_is_listed_is_listed_as_it_was_at_some_time() {
    let (_server, bus) = world().await;
    let stays = ["stays-1", "stays-2"];

    for round in 0..5 {
        many(&bus, 1_000).await;
        written(&bus, &[("stays-1", "1"), ("stays-2", "1")]).await;
        let emptied = async {
            match round % 3 {
                // With markers, without them, and by new values.
                0 => {
                    for number in 0..200 {
                        members(&bus)
                            .delete(&format!("k{number}"), None)
                            .await
                            .expect("deleted");
                    }
                }
                1 => {
                    for number in (0..1_000).rev() {
                        let subject = format!("$KV.members.k{number}");
                        bus.purge_subject(STREAM, &subject).await.expect("purged");
                    }
                }
                _ => many(&bus, 1_000).await,
            }
        };
        let lists = async {
            for _ in 0..3 {
                let keys = listed(&bus, &format!("round {round}")).await;
                assert!(
                    stays.iter().all(|key| keys.iter().any(|one| one == key)),
                    "round {round}"
                );
            }
        };
        tokio::join!(emptied, lists);

        bus.purge_subject(STREAM, ">").await.expect("purged");
        assert_eq!(listed(&bus, "it was emptied").await, [""; 0], "round {round}");
    }

    // Emptied under the reader's hands.
    many(&bus, 5_000).await;
    let (keys, purged) = tokio::join!(listed(&bus, "while it is emptied"), bus.purge_subject(STREAM, ">"));
    purged.expect("purged");
    assert!(keys.len() <= 5_000);
    assert_eq!(listed(&bus, "at last").await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_that_are_set_while_a_bucket_is_listed_are_listed() {
    let (_server, bus) = world().await;
    many(&bus, 200).await;
    let busy = ["busy-1", "busy-2", "busy-3", "busy-4"];
    written(&bus, &busy.map(|key| (key, "0"))).await;

    // As leases, members and witnesses are: the keys are always there, and their messages never for long.
    let lists = async {
        for round in 0..150 {
            let keys = listed(&bus, &format!("round {round}")).await;
            for key in busy {
                assert!(keys.iter().any(|one| one == key), "round {round}: {key} is missing");
            }
            assert_eq!(keys.len(), 200 + busy.len(), "round {round}");
        }
    };
    let sets = async |key: &str| -> () {
        loop {
            written(&bus, &[(key, "1")]).await;
        }
    };

    tokio::select! {
        () = lists => {}
        () = sets(busy[0]) => {}
        () = sets(busy[1]) => {}
        () = sets(busy[2]) => {}
        () = sets(busy[3]) => {}
    }
}

/// Reads `watch` until some values have come after what the bucket had, and checks that their revisions ascend.
async fn revisions_ascend(watch: &mut KvWatch<GroupMember>, round: u32) {
    let (mut last, mut left) = (0, u32::MAX);
    while left > 0 {
        let told = tokio::time::timeout(DEADLINE, watch.next()).await;
        let revision = match told.unwrap_or_else(|_| panic!("round {round}: nothing is told")) {
            KvEvent::Put { revision, .. } => revision,
            // One that is missed by a repaired reader is told at the end of its reading.
            KvEvent::Gone { .. } => continue,
            KvEvent::Bad { key, error, .. } => panic!("round {round}: {key}: {error}"),
            KvEvent::Anew => panic!("round {round}: it is the same bucket"),
            KvEvent::Current => {
                left = 20;
                continue;
            }
        };
        assert!(revision > last, "round {round}: {revision} after {last}");
        last = revision;
        left -= 1;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_in_order_stays_so_while_keys_come_and_go() {
    let (_server, bus) = world().await;
    many(&bus, 200).await;

    // As posts are: each key is set once, and gone soon.
    let sets = async |name: &str| -> () {
        for number in 0_u32.. {
            let key = format!("{name}-{number}");
            written(&bus, &[(key.as_str(), "1")]).await;
            if let Some(former) = number.checked_sub(20) {
                let former = format!("{name}-{former}");
                members(&bus).delete(&former, None).await.expect("deleted");
            }
        }
    };
    let reads = async {
        for round in 0..20 {
            let mut watch = members(&bus).watch_all().in_order();
            revisions_ascend(&mut watch, round).await;
        }
    };

    tokio::select! {
        () = reads => {}
        () = sets("one") => {}
        () = sets("two") => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_lists_a_bucket_leaves_no_consumer_behind() {
    let (_server, bus) = world().await;
    written(&bus, &[("a", "1")]).await;
    for _ in 0..20 {
        assert_eq!(listed(&bus, "again").await, ["a"]);
    }

    let none = async { while bus.stream_info(STREAM).await.expect("told").state.consumers > 0 {} };
    tokio::time::timeout(Duration::from_secs(20), none)
        .await
        .expect("they are gone before the server forgets them");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pages_of_a_prefix_have_its_entries_in_their_order_and_no_consumer() {
    let (_server, bus) = world().await;
    let keys = ["a.1", "b.1", "a.2", "a.3", "a.4", "a.5", "a.6"];
    written(&bus, &keys.map(|key| (key, "1"))).await;
    for gone in ["a.2", "a.4", "a.5"] {
        members(&bus).delete(gone, None).await.expect("deleted");
    }
    written(&bus, &[("a.1", "2")]).await;

    let mut pages = members(&bus).pages("a.", 2);
    let mut told = Vec::new();
    loop {
        let page = pages.next().await.expect("asked");
        // Markers are entries of a page of the server's, and none of ours.
        assert!(page.len() <= 2);
        if page.is_empty() {
            break;
        }
        for entry in page {
            let KvEvent::Put { key, value, .. } = entry else {
                panic!("{entry:?}")
            };
            told.push((key, value.instance));
        }
    }
    let told: Vec<_> = told.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(told, [("a.3", "1"), ("a.6", "1"), ("a.1", "2")]);

    // A later entry is told when the pages are asked for again.
    written(&bus, &[("a.7", "1")]).await;
    assert_eq!(pages.next().await.expect("asked").len(), 1);
    assert_eq!(bus.stream_info(STREAM).await.expect("told").state.consumers, 0);
}
