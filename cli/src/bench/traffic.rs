//! Messages that the servers stored and delivered between two moments.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use shared::bus::{Bus, StreamState};
use shared::wire::topology::topology;

use crate::launch::Stack;

/// Largest number of connections that are counted by name.
const MAX_CONNECTIONS: usize = 4_096;

/// Counts of streams and servers at one moment.
#[derive(Debug, Clone, Default)]
pub(super) struct TrafficMark {
    /// Extent of each stream, the buckets' among them.
    streams: BTreeMap<String, StreamState>,
    /// Counts of the servers together; `None` if they have no monitoring endpoint.
    servers: Option<ServerCounts>,
}

/// Counts of a server since its start; those of several are added up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct ServerCounts {
    delivered: u64,
    delivered_bytes: u64,
    requests: u64,
    /// Messages delivered to the connections that are open, by the name of the client.
    by_client: BTreeMap<String, u64>,
}

/// Answer of a server's `/varz`.
#[derive(Deserialize)]
struct ServerAnswer {
    out_msgs: u64,
    out_bytes: u64,
    jetstream: JetStreamAnswer,
}

#[derive(Deserialize)]
struct JetStreamAnswer {
    stats: StatsAnswer,
}

#[derive(Deserialize)]
struct StatsAnswer {
    api: ApiAnswer,
}

#[derive(Deserialize)]
struct ApiAnswer {
    total: u64,
}

/// Answer of a server's `/connz`.
#[derive(Deserialize)]
struct ConnectionsAnswer {
    connections: Vec<ConnectionAnswer>,
}

#[derive(Deserialize)]
struct ConnectionAnswer {
    #[serde(default)]
    name: String,
    out_msgs: u64,
}

/// Messages of one stream for each event.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct StreamTraffic {
    /// Name of the stream; that of a bucket begins with `KV_`.
    pub(super) stream: String,
    /// Number of messages stored.
    pub(super) messages: f64,
    /// Growth of the stored bytes: less than was stored if messages are removed, and negative if more are.
    pub(super) bytes: f64,
}

/// Messages that the servers delivered for each event.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct DeliveredTraffic {
    /// Number of messages that went out to clients: of streams, answers to requests, and acknowledgements.
    pub(super) messages: f64,
    /// Size of these messages, in bytes.
    pub(super) bytes: f64,
    /// Number of requests to the API of JetStream.
    pub(super) requests: f64,
    /// Number of messages by client, as far as its connections were open all the time; replicas of a service together.
    pub(super) by_client: Vec<(String, f64)>,
}

/// Messages for each event.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Traffic {
    /// The streams that got messages.
    pub(super) streams: Vec<StreamTraffic>,
    /// `None` if the servers have no monitoring endpoint.
    pub(super) delivered: Option<DeliveredTraffic>,
}

impl TrafficMark {
    /// Reads the counts as they are now.
    pub(super) async fn read(stack: &Stack, bus: &Bus) -> Result<Self> {
        let mut streams = BTreeMap::new();
        for spec in topology(1).streams {
            let state = bus.stream_state(&spec.name).await?;
            streams.insert(spec.name, state);
        }

        let monitors: Vec<String> = stack.nats.iter().filter_map(|nats| nats.monitor()).collect();
        let mut servers = ServerCounts::default();
        for monitor in &monitors {
            servers.add(&ask(monitor, "varz").await?, &ask_connections(monitor).await?);
        }

        Ok(Self {
            streams,
            servers: (!monitors.is_empty()).then_some(servers),
        })
    }

    /// Returns the messages from `before` until this moment, divided by the number of events.
    pub(super) fn since(&self, before: &Self, events: f64) -> Traffic {
        let streams = self.streams.iter().filter_map(|(stream, now)| {
            let then = before.streams.get(stream).copied().unwrap_or_default();
            let traffic = StreamTraffic {
                stream: stream.clone(),
                messages: now.last.saturating_sub(then.last) as f64 / events,
                bytes: (now.bytes as f64 - then.bytes as f64) / events,
            };
            (traffic.messages > 0.0).then_some(traffic)
        });

        let servers = self.servers.as_ref().zip(before.servers.as_ref());
        Traffic {
            streams: streams.collect(),
            delivered: servers.map(|(now, then)| now.since(then, events)),
        }
    }
}

impl ServerCounts {
    fn add(&mut self, server: &ServerAnswer, connections: &ConnectionsAnswer) {
        self.delivered += server.out_msgs;
        self.delivered_bytes += server.out_bytes;
        self.requests += server.jetstream.stats.api.total;

        for connection in &connections.connections {
            *self.by_client.entry(client(&connection.name)).or_default() += connection.out_msgs;
        }
    }

    fn since(&self, before: &Self, events: f64) -> DeliveredTraffic {
        let grown = |now: u64, then: u64| now.saturating_sub(then) as f64 / events;
        let by_client = self.by_client.iter().filter_map(|(name, now)| {
            let then = before.by_client.get(name).copied().unwrap_or(0);
            (*now > then).then(|| (name.clone(), grown(*now, then)))
        });

        DeliveredTraffic {
            messages: grown(self.delivered, before.delivered),
            bytes: grown(self.delivered_bytes, before.delivered_bytes),
            requests: grown(self.requests, before.requests),
            by_client: by_client.collect(),
        }
    }
}

/// Returns the name under which a connection's messages are counted: services connect as `{service}.{instance}`.
fn client(connection: &str) -> String {
    let service = connection.split_once('.').map(|(service, _)| service);
    service.unwrap_or(connection).to_owned()
}

/// Returns the answer of the monitoring endpoint `monitor` to `question`.
async fn ask<T: DeserializeOwned>(monitor: &str, question: &str) -> Result<T> {
    let url = format!("{monitor}/{question}");
    let asked = crate::http::client()?.get(&url).send().await;
    let answer = asked.and_then(reqwest::Response::error_for_status);
    let body = answer.with_context(|| format!("failed to call {url}"))?.bytes().await?;
    serde_json::from_slice(&body).with_context(|| format!("failed to read the answer of {url}"))
}

async fn ask_connections(monitor: &str) -> Result<ConnectionsAnswer> {
    ask(monitor, &format!("connz?limit={MAX_CONNECTIONS}")).await
}

/// Returns the number of messages that all of `streams` got for each event, if their name is one of `names`.
pub(super) fn sum_of(streams: &[StreamTraffic], names: &[&str]) -> f64 {
    let wanted = streams
        .iter()
        .filter(|traffic| names.contains(&traffic.stream.as_str()));
    wanted.map(|traffic| traffic.messages).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(streams: &[(&str, u64, u64)], servers: Option<ServerCounts>) -> TrafficMark {
        let extent = |&(name, last, bytes): &(&str, u64, u64)| {
            let state = StreamState {
                last,
                bytes,
                ..StreamState::default()
            };
            (name.to_owned(), state)
        };
        TrafficMark {
            streams: streams.iter().map(extent).collect(),
            servers,
        }
    }

    fn counts(delivered: u64, clients: &[(&str, u64)]) -> ServerCounts {
        let varz = serde_json::json!({
            "out_msgs": delivered, "out_bytes": delivered * 100, "jetstream": { "stats": { "api": { "total": 7 } } },
        });
        let of_client = |(name, sent): &(&str, u64)| serde_json::json!({ "name": name, "out_msgs": sent });
        let connz = serde_json::json!({ "connections": clients.iter().map(of_client).collect::<Vec<_>>() });

        let mut counts = ServerCounts::default();
        let server = serde_json::from_value(varz).expect("an answer of /varz");
        counts.add(&server, &serde_json::from_value(connz).expect("an answer of /connz"));
        counts
    }

    #[test]
    fn messages_are_counted_for_each_event() {
        let before = mark(&[("CLAIMS", 10, 500), ("EVENTS", 100, 1_000), ("DLQ", 3, 9)], None);
        let after = mark(&[("CLAIMS", 20, 300), ("EVENTS", 120, 3_000), ("DLQ", 3, 9)], None);
        let traffic = after.since(&before, 10.0);

        let of = |stream: &str, messages, bytes| StreamTraffic {
            stream: stream.to_owned(),
            messages,
            bytes,
        };
        assert_eq!(traffic.streams, [of("CLAIMS", 1.0, -20.0), of("EVENTS", 2.0, 200.0)]);
        assert_eq!(traffic.delivered, None, "no server was asked");
        assert_eq!(sum_of(&traffic.streams, &["EVENTS", "LEDGER"]), 2.0);
    }

    #[test]
    fn replicas_of_a_client_are_counted_together() {
        let before = counts(1_000, &[("hook-svc.hook-svc-0", 10), ("gone", 5)]);
        let after = counts(
            1_500,
            &[
                ("hook-svc.hook-svc-0", 40),
                ("hook-svc.hook-svc-1", 30),
                ("nexus-bench", 50),
            ],
        );
        let delivered = after.since(&before, 10.0);

        assert_eq!((delivered.messages, delivered.bytes), (50.0, 5_000.0));
        assert_eq!(delivered.requests, 0.0);
        assert_eq!(
            delivered.by_client,
            [("hook-svc".to_owned(), 6.0), ("nexus-bench".to_owned(), 5.0)]
        );
    }
}
