//! Consumers that an older version had: found, and removed once nobody needs what they counted.
//!
//! A durable consumer that nobody pulls costs the server a state file and a look at every message. Its ack floor is where
//! a partition's first owner of this version begins, so it goes only once that owner's floor is stored and not behind it.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::json;

use super::connect::Bus;
use super::ensure::is_not_found;
use super::error::{EnsureTopologyError, ReadStreamError};
use super::partition::stored_floors;
use crate::wire::topology::{PARTITIONS, RetiredConsumers, Topology};

/// Consumer names that the server lists at once, and most pages that are read.
const MAX_PAGES: usize = 64;

/// One of them.
#[derive(Debug)]
pub(super) struct Leftover {
    stream: &'static str,
    group: &'static str,
    partition: u16,
}

impl Leftover {
    fn name(&self) -> String {
        format!("{}-{}", self.group, self.partition)
    }

    /// What it is, as a difference names it.
    pub(super) fn what(&self) -> String {
        format!("consumer {} of {}", self.name(), self.stream)
    }
}

fn unknown(stream: &str, error: impl std::fmt::Display) -> EnsureTopologyError {
    EnsureTopologyError::Lookup {
        what: "consumers of",
        name: stream.to_owned(),
        detail: error.to_string(),
    }
}

impl Bus {
    /// The consumers on the server that `topology` has retired.
    pub(super) async fn leftovers(&self, topology: &Topology) -> Result<Vec<Leftover>, EnsureTopologyError> {
        let mut found = Vec::new();
        for retired in &topology.retired {
            let RetiredConsumers { stream, group } = *retired;
            let names = match self.consumer_names(stream).await {
                Ok(names) => names,
                // A stream that is still to be made has none.
                Err(error) if is_not_found(&error.to_string()) => continue,
                Err(error) => return Err(unknown(stream, error)),
            };

            let all = (0..PARTITIONS).map(|partition| Leftover {
                stream,
                group,
                partition,
            });
            found.extend(all.filter(|left| names.contains(&left.name())));
        }

        Ok(found)
    }

    /// Removes those whose partition was taken over; answers what was removed and what was not.
    pub(super) async fn remove_leftovers(
        &self,
        topology: &Topology,
    ) -> Result<(Vec<String>, Vec<String>), EnsureTopologyError> {
        let (mut removed, mut kept) = (Vec::new(), Vec::new());
        for left in self.leftovers(topology).await? {
            let floors = stored_floors(self, left.group).await;
            let floors = floors.map_err(|error| unknown(left.stream, error))?;
            let stored = floors.get(usize::from(left.partition)).copied().unwrap_or(0);
            let counted = self.ack_floor(left.stream, &left.name()).await;
            let counted = counted.map_err(|error| unknown(left.stream, error))?;

            if counted.is_some_and(|counted| counted > stored) {
                kept.push(left.what());
                continue;
            }

            let gone = self
                .jetstream
                .delete_consumer_from_stream(&left.name(), left.stream)
                .await;
            match gone {
                Ok(_) => removed.push(left.what()),
                // Somebody else was faster.
                Err(error) if is_not_found(&error.to_string()) => {}
                Err(error) => return Err(unknown(left.stream, error)),
            }
        }

        Ok((removed, kept))
    }

    /// The names of all consumers of `stream`, those that come and go among them.
    async fn consumer_names(&self, stream: &str) -> Result<BTreeSet<String>, ReadStreamError> {
        #[derive(Deserialize)]
        struct Page {
            #[serde(default)]
            consumers: Option<Vec<String>>,
            total: usize,
        }

        let mut names = BTreeSet::new();
        let mut offset = 0;
        for _ in 0..MAX_PAGES {
            let question = json!({ "offset": offset });
            let page: Page = self.api(stream, &format!("CONSUMER.NAMES.{stream}"), &question).await?;
            let listed = page.consumers.unwrap_or_default();
            offset += listed.len();
            let is_last = listed.is_empty() || offset >= page.total;
            names.extend(listed);

            if is_last {
                break;
            }
        }

        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bus::{Drift, Outgoing, PullOptions};
    use crate::model::event::{Event, EventId};
    use crate::model::time::UnixMillis;
    use crate::testing::world;
    use crate::wire::session_mark::PartitionFloors;
    use crate::wire::subject;
    use crate::wire::topology::{ConsumerSpec, buckets, streams, topology};

    #[tokio::test]
    async fn what_an_older_version_has_left_over_goes_once_it_was_taken_over() {
        let (_server, bus) = world().await;
        let event = Event::new(EventId::parse("test:p/1").expect("an id"), "test", "p", UnixMillis(1));
        let out = Outgoing::event(&event, bus.trust());
        let published = bus.publish(out).await.expect("stored");
        let stored = bus.at_sequence(streams::EVENTS, published.sequence).await;
        let stored = stored.expect("readable").expect("there");
        let partition = subject::parse_event(&stored.subject)
            .expect("a stored subject")
            .partition;
        let other = (partition + 1) % PARTITIONS;

        let consumer = |partition: u16| ConsumerSpec {
            stream: streams::EVENTS,
            name: format!("hook-{partition}"),
            filter: format!("nexus.ev.{partition}.>"),
            ..topology(1).consumers[0].clone()
        };

        let older = Topology {
            consumers: vec![consumer(partition), consumer(other)],
            retired: Vec::new(),
            ..topology(1)
        };
        bus.ensure(&older, true).await.expect("as it was");
        let name = consumer(partition).name;
        let mut pull = bus.pull(streams::EVENTS, &name, PullOptions { batch: 1 });
        pull.next().await.ack().await;
        drop(pull);

        let counted = tokio::time::timeout(Duration::from_secs(60), async {
            while bus.ack_floor(streams::EVENTS, &name).await.expect("told") != Some(published.sequence) {
                crate::clock::pause(Duration::from_millis(10)).await;
            }
        });
        counted.await.expect("the server counts in time");

        let drift = bus.drift(&topology(1)).await.expect("it can be told");
        assert!(drift.len() == 2 && !drift.iter().any(Drift::is_conflict), "{drift:?}");

        bus.ensure(&topology(1), false)
            .await
            .expect("services start beside them");
        let what = |partition| format!("consumer hook-{partition} of EVENTS");
        let report = bus.ensure(&topology(1), true).await.expect("applied");

        assert_eq!(
            (report.removed, report.kept),
            (vec![what(other)], vec![what(partition)])
        );

        let mut floors = vec![0; usize::from(PARTITIONS)];
        floors[usize::from(partition)] = published.sequence;
        let kv = bus.kv::<PartitionFloors>(buckets::ATTEMPTS);

        kv.put(
            "floors.hook",
            &PartitionFloors {
                floors,
                ..PartitionFloors::default()
            },
        )
        .await
        .expect("stored");

        let report = bus.ensure(&topology(1), true).await.expect("applied");
        assert_eq!((report.removed, report.kept), (vec![what(partition)], vec![]));
        assert_eq!(bus.drift(&topology(1)).await.expect("it can be told"), Vec::new());
    }
}
