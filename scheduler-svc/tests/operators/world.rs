//! Two replicas of the operators' services on one server, and what lies in its streams.

use std::sync::Arc;
use std::time::Duration;

use scheduler_svc::operator::{OperatorContext, service_specs};
use serde::Serialize;
use serde::de::DeserializeOwned;
use shared::bus::{Bus, OutgoingMessage, RequestError, ServiceHandle};
use shared::clock::{SystemClock, SystemIds};
use shared::model::position::StreamPlace;
use shared::model::time::UnixMillis;
use shared::testing::connect_to;
use shared::testing::nats::NatsServer;
use shared::wire::dead_letter::DeadLetter;
use shared::wire::headers::Headers;
use shared::wire::operator::letters::{DecideLetter, LetterDropped, LetterRecord, LetterRedriven, LetterStep};
use shared::wire::subject;
use shared::wire::topology::streams::{AUDIT, DLQ};
use ulid::Ulid;

const PATIENCE: Duration = Duration::from_secs(30);

/// Two replicas of the services on one server.
pub(crate) struct World {
    _server: NatsServer,
    pub(crate) bus: Bus,
    _replicas: Vec<ServiceHandle>,
}

impl World {
    pub(crate) async fn start() -> Self {
        let (server, bus) = shared::testing::world().await;
        let mut replicas = Vec::new();
        for _ in 0..2 {
            let context = OperatorContext {
                bus: connect_to(&server.url(), "operators").await,
                clock: Arc::new(SystemClock),
                ids: Arc::new(SystemIds),
                replicas: 1,
            };
            for spec in service_specs(&context) {
                replicas.push(context.bus.serve(spec).await.expect("served"));
            }
        }
        Self {
            _server: server,
            bus,
            _replicas: replicas,
        }
    }

    pub(crate) async fn ask<Q: Serialize, A: DeserializeOwned>(
        &self,
        endpoint: &str,
        question: &Q,
    ) -> Result<A, (u16, String)> {
        let subject = format!("nexus.svc.{endpoint}");
        let asked = self.bus.request(&subject, Headers::new(), question, PATIENCE).await;
        asked.map_err(|error| {
            let told = error.to_string();
            let RequestError::Service { code, text, .. } = error else {
                panic!("{endpoint}: {told}");
            };
            (code, text)
        })
    }

    pub(crate) async fn redrive(&self, number: u64) -> Result<LetterRedriven, (u16, String)> {
        self.ask("dlq.redrive", &request(number)).await
    }

    pub(crate) async fn drop_letter(&self, number: u64) -> Result<LetterDropped, (u16, String)> {
        self.ask("dlq.drop", &request(number)).await
    }

    /// Stores a dead letter, and returns its place.
    pub(crate) async fn letter(&self, letter: &DeadLetter) -> StreamPlace {
        let out = OutgoingMessage::new(subject::dlq(&letter.service), letter);
        let sequence = self.bus.publish(out).await.expect("stored").sequence;
        let stored = self
            .bus
            .at_sequence(DLQ, sequence)
            .await
            .expect("readable")
            .expect("stored");
        StreamPlace {
            sequence,
            stored_at_ns: stored.stored_at_ns,
        }
    }

    /// Writes what a replica has recorded before it was killed.
    pub(crate) async fn record(&self, letter: StreamPlace, operation: Ulid, step: LetterStep) {
        let record = LetterRecord {
            letter,
            operation,
            by: "anna".to_owned(),
            at: UnixMillis(1),
            step,
        };
        let out = OutgoingMessage::new(subject::letter_audit(letter.sequence), &record);
        self.bus.publish(out).await.expect("stored");
    }

    /// Returns the kinds of all records about the letter `number`, oldest first.
    pub(crate) async fn steps(&self, number: u64) -> Vec<String> {
        let stored = self
            .bus
            .read_history(AUDIT, &subject::letter_audit(number), 1, 100)
            .await;
        let stored = stored.expect("readable").into_iter();
        let kind = |record: LetterRecord| serde_json::to_value(record.step).expect("JSON")["kind"].clone();
        stored
            .map(|stored| {
                kind(stored.decode().expect("a record"))
                    .as_str()
                    .expect("a kind")
                    .to_owned()
            })
            .collect()
    }

    /// Returns the payloads in `stream`, oldest first.
    pub(crate) async fn payloads(&self, stream: &str) -> Vec<String> {
        let stored = self.bus.read_history(stream, ">", 1, 1_000).await.expect("readable");
        let text = |payload: &[u8]| String::from_utf8_lossy(payload).into_owned();
        stored.iter().map(|stored| text(&stored.payload)).collect()
    }

    pub(crate) async fn is_there(&self, number: u64) -> bool {
        self.bus.at_sequence(DLQ, number).await.expect("readable").is_some()
    }
}

pub(crate) fn request(number: u64) -> DecideLetter {
    DecideLetter {
        number,
        stored_at_ns: None,
        by: "bob".to_owned(),
    }
}
