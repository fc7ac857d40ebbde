//! `nexus doctor`: checks that everything needed is present, and that the running system keeps its promises.
//!
//! `CHECKS` is the list: a check is a name and a function that reads `Surroundings` and returns its findings. A new
//! check is a new entry.

mod local;
mod model;
mod replicas;
mod server;
#[cfg(test)]
mod tests;
mod work;

use std::time::Duration;

use anyhow::Result;
use futures_util::future::LocalBoxFuture;
use shared::bus::{Bus, NatsConfig};
use shared::process::config::ConfigDocument;
use shared::process::status::{HeardStatus, hear_replicas};
use shared::wire::operator::status::{StatusPart, SystemStatus};

use crate::args::{Common, DoctorOptions};
use crate::connect::{load_document, nats_config};
use crate::exit::{Exit, failure};
use crate::output::View;
use crate::system::read_status;

/// Longest time that a server may take to answer.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Longest time that all replicas together may take to answer.
const REPLICAS_WITHIN: Duration = Duration::from_secs(3);

/// Longest time that a check may take. The slowest check waits 15 s for a model's provider.
const CHECK_WITHIN: Duration = Duration::from_secs(20);

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    /// Everything is as it should be.
    Ok,
    /// The system works, but the operator should know this.
    Warning,
    /// Something is broken or lost.
    Fault,
}

/// Result of one check about one thing.
#[derive(Debug, serde::Serialize)]
struct Finding {
    what: String,
    /// Whether the finding is not a fault.
    ok: bool,
    level: Level,
    detail: String,
}

impl Finding {
    fn new(what: impl Into<String>, level: Level, detail: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            ok: level != Level::Fault,
            level,
            detail: detail.into(),
        }
    }

    fn ok(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(what, Level::Ok, detail)
    }

    fn warning(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(what, Level::Warning, detail)
    }

    fn fault(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(what, Level::Fault, detail)
    }

    /// Returns a finding about a state that could not be read, with the reason; it is a fault, so that it is never
    /// mistaken for a sound state.
    fn unknown(what: impl Into<String>, why: impl std::fmt::Display) -> Self {
        Self::new(what, Level::Fault, format!("not known: {why}"))
    }

    /// Returns a finding that is sound if `is_sound`, else a fault.
    fn judged(what: impl Into<String>, is_sound: bool, detail: impl Into<String>) -> Self {
        Self::new(what, if is_sound { Level::Ok } else { Level::Fault }, detail)
    }
}

/// Everything that checks read.
struct Surroundings {
    options: DoctorOptions,
    document: ConfigDocument,
    nats: Result<NatsConfig, String>,
    /// Connection to the bus, or the reason why there is none.
    bus: Result<Bus, String>,
    /// Answers of the replicas, or the reason why none was asked.
    heard: Result<HeardStatus, String>,
    /// What scheduler-svc says of the server and the work, or the reason why it says nothing.
    status: Result<SystemStatus, String>,
}

/// Function of one check.
type Check = for<'a> fn(&'a Surroundings) -> LocalBoxFuture<'a, Vec<Finding>>;

/// All checks, in the order in which they are shown. A check that needs the bus returns nothing without it: `server`
/// has reported the reason. Streams and buckets are read by scheduler-svc, so that an operator needs no right on them.
const CHECKS: [(&str, Check); 18] = [
    ("programs", local::programs),
    ("disk", local::disk),
    ("access", local::access),
    ("server", server::server),
    ("durability", server::durability),
    ("payload", server::payload),
    ("topology", server::topology),
    ("clock", server::clock),
    ("storage", server::storage),
    ("services", replicas::services),
    ("waiting", work::waiting),
    ("held", work::held),
    ("dead letters", work::dead_letters),
    ("sessions", work::sessions),
    ("paused hooks", work::hooks),
    ("schedules", work::schedules),
    ("pairings", work::pairings),
    ("model", model::provider),
];

/// Runs the command.
///
/// # Errors
/// Fails if a check finds a fault.
pub async fn execute(common: &Common, options: DoctorOptions) -> Result<()> {
    let surroundings = look_around(common, options).await;
    let mut findings = Vec::new();
    for (name, check) in CHECKS {
        let found = tokio::time::timeout(CHECK_WITHIN, check(&surroundings)).await;
        let late = |_| {
            vec![Finding::unknown(
                name,
                format!("no answer in {} s", CHECK_WITHIN.as_secs()),
            )]
        };

        findings.extend(found.unwrap_or_else(late));
    }

    print_findings(common, &findings)
}

async fn look_around(common: &Common, options: DoctorOptions) -> Surroundings {
    let nats = nats_config(common).map_err(|error| format!("{error:#}"));
    let bus = match &nats {
        Err(error) => Err(error.clone()),
        Ok(config) => match tokio::time::timeout(CONNECT_WITHIN, Bus::connect(config, "nexus-doctor")).await {
            Ok(connected) => connected.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer in {} s", CONNECT_WITHIN.as_secs())),
        },
    };

    let heard = match &bus {
        Ok(bus) => hear_replicas(bus, REPLICAS_WITHIN).await,
        Err(error) => Err(error.clone()),
    };

    let parts = [StatusPart::Server, StatusPart::Work];
    let status = match &bus {
        Ok(bus) => read_status(bus, &parts, 0).await.map_err(|error| error.to_string()),
        Err(error) => Err(error.clone()),
    };

    Surroundings {
        options,
        document: load_document(common),
        nats,
        bus,
        heard,
        status,
    }
}

fn print_findings(common: &Common, findings: &[Finding]) -> Result<()> {
    let mut view = View::of(findings)?.ids(findings.iter().map(|finding| finding.what.clone()));
    for finding in findings {
        let mark = match finding.level {
            Level::Ok => "ok  ",
            Level::Warning => "warn",
            Level::Fault => "BAD ",
        };
        view = view.entry(format!("{mark} {:<16}", finding.what), &finding.detail);
    }
    view.show(common)?;

    match findings.iter().filter(|finding| !finding.ok).count() {
        0 => Ok(()),
        bad => {
            let text = format!("{bad} of {} checks failed", findings.len());
            Err(failure(Exit::No, text))
        }
    }
}
