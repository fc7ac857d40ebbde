//! Order in which streams are copied while work goes on. *Pure.*
//!
//! The rule has two parts. A copy that records "this was done" must be older than the copy of the results of that work.
//! A stream that drops finished messages must be copied after the record that they are finished. Work that is done
//! while the backup runs is then, at worst, done again after a restore, and nothing that was accepted is left out.

use shared::wire::topology::{buckets, objects, streams};

/// Streams in the order in which they are copied, after the buckets: records and positions first, sources last.
const STREAMS: [&str; 12] = [
    // Replies that were sent, before the events that record it and before the deliveries that are dropped for it.
    streams::RECEIPTS,
    // Effects of turns, before the claims that are dropped and the deliveries that follow.
    streams::LEDGER,
    // Actions of hooks, before their dispatches and claims.
    streams::INVOCATIONS,
    streams::AUDIT,
    streams::SCHEDULES,
    streams::CLAIMS,
    streams::DISPATCHES,
    // A reply is removed from DELIVERIES once it is parked or held, and a dead letter's message once it is in DLQ.
    streams::DELIVERIES,
    HELD,
    streams::PARKED,
    streams::DLQ,
    streams::EVENTS,
];

/// Files of messages. They are stored before their events and never changed, so a copy that is made after that of the events
/// has all that these name. It may be large, so that no service stands still for it.
const FILES: &str = "OBJ_attachments";

/// Bucket of held messages. It is not a record of work that was done, but the only copy of undecided messages.
const HELD: &str = "KV_held";

/// Buckets that are not copied, each with the reason.
const LEFT_OUT: [(&str, &str); 3] = [
    (
        buckets::POSITIONS,
        "the positions of the restored streams are recorded again",
    ),
    (buckets::LEASES, "replicas acquire their leases again"),
    (buckets::MEMBERS, "replicas announce themselves"),
];

/// Returns everything that a backup leaves out, with the reasons, even if the server has none of it.
pub(super) fn left_out() -> Vec<(String, String)> {
    let buckets = LEFT_OUT.map(|(name, why)| (format!("KV_{name}"), why.to_owned()));
    let copies = (
        format!("OBJ_{}", objects::SNAPSHOTS),
        "rebuilt from the streams".to_owned(),
    );

    let spool = (
        "adapter-svc's spool".to_owned(),
        "events that were accepted and are not yet in EVENTS stay on that host's disk (adapter.data_dir)".to_owned(),
    );
    let key = (
        "the cluster's key".to_owned(),
        "it is a secret: back up the file of [trust] cluster_key separately; restored events are verified with it"
            .to_owned(),
    );

    buckets.into_iter().chain([copies, spool, key]).collect()
}

/// Returns the streams of `found` that are copied, in order. Streams that are not ours are left out.
pub(super) fn ordered(found: &[String]) -> Vec<String> {
    let left = left_out();
    let is_kept = |name: &&String| left.iter().all(|(out, _)| out != *name);
    let is_first = |name: &&String| name.starts_with("KV_") && !STREAMS.contains(&name.as_str());
    let buckets = found.iter().filter(is_first).filter(is_kept);
    let streams = STREAMS.iter().chain([&FILES]);
    let streams = streams.filter(|name| found.iter().any(|found| found == *name));
    buckets.cloned().chain(streams.map(|name| (*name).to_owned())).collect()
}

/// Returns whether `stream` is copied once the services go on: the last of the order.
pub(super) fn is_copied_after(stream: &str) -> bool {
    stream == FILES
}

#[cfg(test)]
mod tests {
    use shared::wire::topology::topology;

    use super::*;

    #[test]
    fn every_stream_of_the_topology_is_copied_or_named_as_left_out() {
        let all: Vec<String> = topology(1).streams.into_iter().map(|stream| stream.name).collect();
        let copied = ordered(&all);
        for name in &all {
            let is_out = left_out().iter().any(|(out, _)| out == name);
            assert!(copied.contains(name) != is_out, "{name}");
        }

        let paused: Vec<&String> = copied.iter().filter(|name| !is_copied_after(name)).collect();
        assert_eq!(
            paused.last().map(|name| name.as_str()),
            Some(streams::EVENTS),
            "sources last"
        );
        assert_eq!(
            copied.last().map(String::as_str),
            Some(FILES),
            "what they name after them"
        );

        let at = |name: &str| copied.iter().position(|copied| copied == name).expect(name);
        for (before, after) in [
            ("KV_attempts", streams::RECEIPTS),
            (streams::RECEIPTS, streams::DELIVERIES),
            (streams::LEDGER, streams::CLAIMS),
            (streams::LEDGER, streams::DISPATCHES),
            (streams::INVOCATIONS, streams::DISPATCHES),
            (streams::DELIVERIES, streams::PARKED),
            (streams::DELIVERIES, HELD),
            (streams::CLAIMS, streams::DLQ),
        ] {
            assert!(at(before) < at(after), "{before} before {after}");
        }

        assert_eq!(ordered(&["OTHERS".to_owned()]), Vec::<String>::new());
    }
}
