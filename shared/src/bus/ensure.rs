//! Making the topology, and listing how the server's streams and consumers differ from it.

use async_nats::jetstream::consumer::{AckPolicy, PriorityPolicy, PullConsumer, pull};
use async_nats::jetstream::stream::{
    Compression, Config, DiscardPolicy, RetentionPolicy, StorageType, SubjectTransform,
};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};

use crate::wire::topology::{ConsumerSpec, REQUEST_GROUP, StreamRetention, StreamSpec, Topology};

use super::connect::Bus;
use super::error::EnsureTopologyError;
use super::position::{INCARNATION, LINEAGE};
use super::writer;

/// Consumers that are made at once; the server makes 265–1,600 a second (`docs/contribute/nats-facts.md` "Reading").
const CREATIONS_AT_ONCE: usize = 16;

/// Option that stands for a stream or consumer that does not exist.
const MISSING: &str = "missing";

/// One difference between the topology and the server.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct TopologyDrift {
    /// `stream EVENTS`, `consumer hook-7 of EVENTS`.
    pub what: String,
    /// The option; `missing` if the stream or consumer does not exist.
    pub option: String,
    /// Its value in the topology.
    pub wanted: String,
    /// Its value on the server.
    pub found: String,
    /// Whether the server's value takes or keeps all that the topology's does, and more.
    #[serde(skip)]
    pub is_wider: bool,
}

impl TopologyDrift {
    /// Whether the stream or consumer does not exist.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.option == MISSING
    }

    /// Whether it keeps services from starting: they create missing streams and consumers, and change no existing ones. Streams
    /// that take more are those of a later release, beside which this one runs while services are replaced.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        !self.is_missing() && !self.is_wider
    }
}

impl std::fmt::Display for TopologyDrift {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_missing() {
            return write!(f, "{} is missing", self.what);
        }

        write!(
            f,
            "{}: {} is {}, should be {}",
            self.what, self.option, self.found, self.wanted
        )
    }
}

/// Result of [`Bus::ensure_topology`].
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
pub struct EnsureReport {
    /// Streams and consumers that were created.
    pub created: Vec<String>,
    /// Streams and consumers that were changed.
    pub updated: Vec<String>,
}

fn stream_config(spec: &StreamSpec) -> Config {
    Config {
        name: spec.name.clone(),
        subjects: spec.subjects.clone(),
        retention: match spec.retention {
            StreamRetention::Limits => RetentionPolicy::Limits,
            StreamRetention::WorkQueue => RetentionPolicy::WorkQueue,
        },
        storage: StorageType::File,
        max_age: spec.max_age,
        duplicate_window: spec.duplicate_window,
        max_messages_per_subject: spec.max_per_subject,
        discard: if spec.discard_new {
            DiscardPolicy::New
        } else {
            DiscardPolicy::Old
        },
        discard_new_per_subject: spec.discard_new_per_subject,
        compression: spec.compressed.then_some(Compression::S2),
        allow_direct: spec.allow_direct,
        allow_rollup: spec.allow_rollup,
        deny_delete: spec.deny_delete,
        deny_purge: spec.deny_purge,
        allow_message_ttl: spec.allow_ttl,
        subject_delete_marker_ttl: (!spec.marker_ttl.is_zero()).then_some(spec.marker_ttl),
        allow_message_schedules: spec.allow_schedules,
        subject_transform: spec.transform.as_ref().map(|(source, destination)| SubjectTransform {
            source: source.clone(),
            destination: destination.clone(),
        }),
        num_replicas: spec.replicas,
        max_messages: -1,
        max_bytes: spec.max_bytes,
        max_message_size: spec.max_message_bytes,
        max_consumers: -1,
        ..Config::default()
    }
}

fn consumer_config(spec: &ConsumerSpec) -> pull::Config {
    pull::Config {
        durable_name: Some(spec.name.clone()),
        filter_subject: spec.filter.clone(),
        ack_policy: AckPolicy::Explicit,
        ack_wait: spec.ack_wait,
        max_deliver: spec.max_deliver,
        max_ack_pending: spec.max_ack_pending,
        priority_policy: if spec.prioritized {
            PriorityPolicy::Prioritized
        } else {
            PriorityPolicy::None
        },
        priority_groups: spec.prioritized.then(|| REQUEST_GROUP.to_owned()).into_iter().collect(),
        ..pull::Config::default()
    }
}

/// Returns the name of an option's value, as the server's configuration has it: `limits`, `file`, `s2`.
fn option_name(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}").to_lowercase()
}

/// The options that we spell out, as text: all others are the server's business.
fn stream_options(config: &Config) -> Vec<(&'static str, String)> {
    let transform = config
        .subject_transform
        .as_ref()
        .map(|t| format!("{} -> {}", t.source, t.destination));
    vec![
        ("subjects", config.subjects.join(" ")),
        ("retention", option_name(&config.retention)),
        ("storage", option_name(&config.storage)),
        ("max_age", format!("{:?}", config.max_age)),
        ("duplicate_window", format!("{:?}", config.duplicate_window)),
        ("max_messages_per_subject", config.max_messages_per_subject.to_string()),
        ("max_message_size", config.max_message_size.to_string()),
        ("max_bytes", config.max_bytes.to_string()),
        ("discard", option_name(&config.discard)),
        ("discard_new_per_subject", config.discard_new_per_subject.to_string()),
        (
            "compression",
            config
                .compression
                .as_ref()
                .filter(|compression| **compression == Compression::S2)
                .map_or_else(|| "none".to_owned(), option_name),
        ),
        ("allow_direct", config.allow_direct.to_string()),
        ("allow_rollup", config.allow_rollup.to_string()),
        ("deny_delete", config.deny_delete.to_string()),
        ("deny_purge", config.deny_purge.to_string()),
        ("allow_message_ttl", config.allow_message_ttl.to_string()),
        (
            "subject_delete_marker_ttl",
            config
                .subject_delete_marker_ttl
                .filter(|ttl| !ttl.is_zero())
                .map_or_else(|| "none".to_owned(), |ttl| format!("{ttl:?}")),
        ),
        ("allow_message_schedules", config.allow_message_schedules.to_string()),
        ("subject_transform", transform.unwrap_or_default()),
        ("replicas", config.num_replicas.to_string()),
    ]
}

fn compare_options(
    what: &str,
    wanted: Vec<(&'static str, String)>,
    found: Vec<(&'static str, String)>,
) -> Vec<TopologyDrift> {
    let pairs = wanted
        .into_iter()
        .zip(found)
        .filter(|((_, wanted), (_, found))| wanted != found);

    pairs
        .map(|((option, wanted), (_, found))| TopologyDrift {
            what: what.to_owned(),
            option: option.to_owned(),
            wanted,
            found,
            is_wider: false,
        })
        .collect()
}

/// Returns whether the limit `found` allows all that the limit `wanted` does; a negative one stands for none.
const fn allows(found: i64, wanted: i64) -> bool {
    found < 0 || (wanted >= 0 && found >= wanted)
}

/// Returns whether a stream of the configuration `found` takes and keeps, as far as `option` says it, all that `wanted` does.
fn takes_all(option: &str, found: &Config, wanted: &StreamSpec) -> bool {
    match option {
        "subjects" => wanted.subjects.iter().all(|subject| found.subjects.contains(subject)),
        // Zero stands for ever.
        "max_age" => found.max_age.is_zero() || (!wanted.max_age.is_zero() && found.max_age >= wanted.max_age),
        "max_bytes" => allows(found.max_bytes, wanted.max_bytes),
        "max_message_size" => allows(found.max_message_size.into(), wanted.max_message_bytes.into()),
        _ => false,
    }
}

fn missing_drift(what: String) -> TopologyDrift {
    TopologyDrift {
        what,
        option: MISSING.to_owned(),
        wanted: "there".to_owned(),
        found: "absent".to_owned(),
        is_wider: false,
    }
}

impl Bus {
    /// How the server differs from `topology`; empty = not at all.
    ///
    /// # Errors
    /// [`EnsureTopologyError::Lookup`] where it cannot be asked.
    pub async fn find_drift(&self, topology: &Topology) -> Result<Vec<TopologyDrift>, EnsureTopologyError> {
        let streams = stream::iter(topology.streams.iter())
            .map(|spec| self.stream_drift(spec))
            .buffered(CREATIONS_AT_ONCE)
            .try_concat()
            .await?;
        let consumers = stream::iter(topology.consumers.iter())
            .map(|spec| self.consumer_drift(spec))
            .buffered(CREATIONS_AT_ONCE)
            .try_concat()
            .await?;

        Ok([streams, consumers].concat())
    }

    async fn stream_drift(&self, spec: &StreamSpec) -> Result<Vec<TopologyDrift>, EnsureTopologyError> {
        let what = format!("stream {}", spec.name);
        match self.jetstream.get_stream(&spec.name).await {
            Ok(found) => {
                let config = &found.cached_info().config;
                let mut drift = compare_options(&what, stream_options(&stream_config(spec)), stream_options(config));
                for one in &mut drift {
                    one.is_wider = takes_all(&one.option, config, spec);
                }
                Ok(drift)
            }
            Err(error) if is_not_found(&error.to_string()) => Ok(vec![missing_drift(what)]),
            Err(error) => Err(EnsureTopologyError::Lookup {
                what: "stream",
                name: spec.name.clone(),
                detail: error.to_string(),
            }),
        }
    }

    async fn consumer_drift(&self, spec: &ConsumerSpec) -> Result<Vec<TopologyDrift>, EnsureTopologyError> {
        let what = format!("consumer {} of {}", spec.name, spec.stream);
        let found = self
            .jetstream
            .get_consumer_from_stream::<pull::Config, _, _>(&spec.name, spec.stream)
            .await;

        // A missing consumer can be created; any other error says nothing about it.
        let mut found: PullConsumer = match found {
            Ok(found) => found,
            Err(error) if is_not_found(&error.to_string()) => return Ok(vec![missing_drift(what)]),
            Err(error) => {
                let detail = error.to_string();
                return Err(EnsureTopologyError::Lookup {
                    what: "consumer",
                    name: spec.name.clone(),
                    detail,
                });
            }
        };

        let info = found.info().await.map_err(|error| EnsureTopologyError::Lookup {
            what: "consumer",
            name: spec.name.clone(),
            detail: error.to_string(),
        })?;
        let config = &info.config;
        let intended = consumer_config(spec);
        let wanted = vec![
            ("filter", spec.filter.clone()),
            ("ack_wait", format!("{:?}", spec.ack_wait)),
            ("max_deliver", spec.max_deliver.to_string()),
            ("max_ack_pending", spec.max_ack_pending.to_string()),
            ("priority_policy", option_name(&intended.priority_policy)),
            ("priority_groups", intended.priority_groups.join(" ")),
        ];

        let there = vec![
            ("filter", config.filter_subject.clone()),
            ("ack_wait", format!("{:?}", config.ack_wait)),
            ("max_deliver", config.max_deliver.to_string()),
            ("max_ack_pending", config.max_ack_pending.to_string()),
            ("priority_policy", option_name(&config.priority_policy)),
            ("priority_groups", config.priority_groups.join(" ")),
        ];

        Ok(compare_options(&what, wanted, there))
    }

    /// Creates the streams and consumers that are missing. Two replicas that do it at once do no harm.
    ///
    /// With `update` those that differ are changed as well, as far as the server allows; without it a difference is an
    /// error, unless the server's streams take more: silently running on another topology would break our promises.
    ///
    /// # Errors
    /// [`EnsureTopologyError`].
    pub async fn ensure_topology(
        &self,
        topology: &Topology,
        update: bool,
    ) -> Result<EnsureReport, EnsureTopologyError> {
        let drift = self.find_drift(topology).await?;
        let mut report = EnsureReport::default();

        // Checked before the first change: a service must not change half of a topology that it does not accept.
        let differing: Vec<&TopologyDrift> = drift.iter().filter(|d| d.is_conflict()).collect();
        if let (false, Some(first)) = (update, differing.first()) {
            return Err(EnsureTopologyError::Incompatible {
                count: differing.len(),
                first: first.to_string(),
            });
        }

        for spec in &topology.streams {
            let what = format!("stream {}", spec.name);
            let found = drift.iter().find(|d| d.what == what);
            // What a later release has made wider stays so.
            if let Some(found) = found.filter(|found| update || found.is_missing()) {
                self.make_stream(spec).await?;
                if found.is_missing() {
                    report.created.push(what);
                } else {
                    report.updated.push(what);
                }
            }
        }

        // Streams first, because a consumer needs its stream.
        let wanted = topology.consumers.iter().filter_map(|spec| {
            let what = format!("consumer {} of {}", spec.name, spec.stream);
            drift
                .iter()
                .find(|d| d.what == what)
                .map(|found| (spec, what, found.is_missing()))
        });

        // A new installation has some seventy consumers: created one by one they would delay its start.
        let made: Vec<(String, bool)> = stream::iter(wanted)
            .map(|(spec, what, new)| async move { self.make_consumer(spec).await.map(|()| (what, new)) })
            .buffer_unordered(CREATIONS_AT_ONCE)
            .try_collect()
            .await?;

        for (what, new) in made {
            if new {
                report.created.push(what);
            } else {
                report.updated.push(what);
            }
        }

        Ok(report)
    }

    /// Makes the stream, or changes the one that is there. A new one gets an incarnation, an older one keeps its own:
    /// positions name it.
    async fn make_stream(&self, spec: &StreamSpec) -> Result<(), EnsureTopologyError> {
        let failed = |detail: String| EnsureTopologyError::Create {
            what: "stream",
            name: spec.name.clone(),
            detail,
        };
        let mut config = stream_config(spec);
        let metadata = match self.jetstream.get_stream(&spec.name).await {
            Ok(found) => found.cached_info().config.metadata.clone(),
            Err(error) if is_not_found(&error.to_string()) => {
                config.metadata.insert(INCARNATION.to_owned(), writer::random_name());
                return match self.jetstream.create_stream(config).await {
                    Ok(_) => Ok(()),
                    // Another replica was faster, and gave it another incarnation.
                    Err(error) if is_name_in_use(&error.to_string()) => Ok(()),
                    Err(error) => Err(failed(error.to_string())),
                };
            }
            Err(error) => return Err(failed(error.to_string())),
        };

        let incarnation = metadata.get(INCARNATION).cloned().unwrap_or_else(writer::random_name);
        config.metadata.insert(INCARNATION.to_owned(), incarnation);
        let lineage = metadata.get(LINEAGE).cloned();
        config
            .metadata
            .extend(lineage.map(|lineage| (LINEAGE.to_owned(), lineage)));
        let updated = self.jetstream.update_stream(&config).await;

        updated.map(|_| ()).map_err(|error| failed(error.to_string()))
    }

    async fn make_consumer(&self, spec: &ConsumerSpec) -> Result<(), EnsureTopologyError> {
        let made = self
            .jetstream
            .create_consumer_on_stream(consumer_config(spec), spec.stream)
            .await;
        made.map(|_| ()).map_err(|error| EnsureTopologyError::Create {
            what: "consumer",
            name: spec.name.clone(),
            detail: error.to_string(),
        })
    }
}

fn is_name_in_use(text: &str) -> bool {
    ["10058", "already in use"].iter().any(|sign| text.contains(sign))
}

pub(super) fn is_not_found(text: &str) -> bool {
    ["10059", "10014", "not found"].iter().any(|sign| text.contains(sign))
}
