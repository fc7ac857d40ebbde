//! `nexus doctor`: checks that everything needed is here, and that what runs keeps its promises.
//!
//! `CHECKS` is the list: a check is a name and a function that looks at what `Surroundings` holds and says what it
//! found. To add one is to add an entry.

mod local;
mod model;
mod replicas;
mod server;
#[cfg(test)]
mod tests;
mod work;

use std::time::Duration;

use anyhow::{Result, bail};
use futures_util::future::LocalBoxFuture;
use shared::bus::{Bus, NatsConfig};
use shared::process::config::Document;
use shared::process::status::{Heard, hear_replicas};

use crate::args::{Common, DoctorOptions};
use crate::output::{document, json, nats_config, plain};
use crate::say;

/// How long a server may take to answer.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long all replicas together may take to answer.
const REPLICAS_WITHIN: Duration = Duration::from_secs(3);

/// How long a check may take. The longest of them waits 15 s for a model's provider.
const CHECK_WITHIN: Duration = Duration::from_secs(20);

/// How grave a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    /// As it should be.
    Ok,
    /// It works, and somebody should know.
    Warning,
    /// Something is broken or lost.
    Fault,
}

/// What a check found.
#[derive(Debug, serde::Serialize)]
struct Finding {
    what: String,
    /// Whether it is no fault.
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

    /// What cannot be told, and why: nobody may take it for sound.
    fn unknown(what: impl Into<String>, why: impl std::fmt::Display) -> Self {
        Self::new(what, Level::Fault, format!("not known: {why}"))
    }

    /// Sound if `is_sound`, else a fault.
    fn judged(what: impl Into<String>, is_sound: bool, detail: impl Into<String>) -> Self {
        Self::new(what, if is_sound { Level::Ok } else { Level::Fault }, detail)
    }
}

/// What checks look at.
struct Surroundings {
    options: DoctorOptions,
    document: Document,
    nats: Result<NatsConfig, String>,
    /// The connection, or why there is none.
    bus: Result<Bus, String>,
    /// What the replicas answered, or why nobody was asked.
    heard: Result<Heard, String>,
}

/// A check.
type Check = for<'a> fn(&'a Surroundings) -> LocalBoxFuture<'a, Vec<Finding>>;

/// Every check, in the order in which it is shown. One that needs the bus says nothing without it: `server` has said why.
const CHECKS: [(&str, Check); 17] = [
    ("programs", local::programs),
    ("disk", local::disk),
    ("doors", local::doors),
    ("server", server::server),
    ("promise", server::promise),
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
    ("model", model::provider),
];

/// Runs the command.
///
/// # Errors
/// Fails if something is not as it should be.
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

    report(common, &findings)
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

    Surroundings {
        options,
        document: document(common),
        nats,
        bus,
        heard,
    }
}

fn report(common: &Common, findings: &[Finding]) -> Result<()> {
    if common.json {
        json(&findings)?;
    } else {
        for finding in findings {
            let mark = match finding.level {
                Level::Ok => "ok  ",
                Level::Warning => "warn",
                Level::Fault => "BAD ",
            };
            say!("{mark} {:<16} {}", plain(&finding.what), plain(&finding.detail));
        }
    }

    match findings.iter().filter(|finding| !finding.ok).count() {
        0 => Ok(()),
        bad => bail!("{bad} of {} things are not as they should be", findings.len()),
    }
}
