//! Health pages: `/livez`, `/readyz` and `/metrics`.
//!
//! Alive means that the process responds, and that no part of it has ended that only a restart can repair. Ready means
//! that every part that has reported is well. A process that is asked to stop is not ready, so that no new work is
//! sent to it while it drains.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use axum::{Router, serve};
use metrics_exporter_prometheus::PrometheusHandle;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use super::lifecycle::ShutdownSignal;
use crate::bus::position::void_positions;
use crate::metric::without_absent;

/// States that the parts of a process report of themselves. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Health {
    parts: Arc<Mutex<BTreeMap<String, HealthPart>>>,
    /// Reason why only a restart helps; `None` while the process is alive.
    lost: Arc<Mutex<Option<String>>>,
    /// Whether every part has been well once.
    was_ready: Arc<AtomicBool>,
}

/// Kind of log line for a part's report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HealthLine {
    /// Nothing for an operator: a part comes up.
    Quiet,
    /// The part has changed.
    Changed,
    /// Every part is well for the first time.
    Ready,
}

/// State of one part, as the part reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HealthPart {
    /// Whether the part can do its work.
    pub ok: bool,
    /// Whether the part works, but protects or serves less than it could: `nexus doctor` warns of it.
    pub degraded: bool,
    /// Description of the state or of the fault, for people.
    pub detail: String,
}

/// Response of the page `/readyz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Readiness {
    /// Whether every part is well.
    pub ready: bool,
    /// States of the parts, by name.
    pub parts: BTreeMap<String, HealthPart>,
}

impl HealthPart {
    fn degraded(detail: &str) -> Self {
        Self {
            ok: true,
            degraded: true,
            detail: detail.to_owned(),
        }
    }
}

impl Health {
    /// Returns a health in which none of a service's `parts` is ready yet, so that a probe cannot see a gap.
    pub(super) fn unready(parts: &[&'static str]) -> Self {
        let health = Self::default();
        health.set("nats", false, "connecting");
        health.set("topology", false, "not checked yet");

        for part in parts {
            health.set(part, false, "not started yet");
        }
        health
    }

    /// Sets the state of `part`; a change is logged.
    pub fn set(&self, part: &str, ok: bool, detail: impl Into<String>) {
        self.set_part(
            part,
            HealthPart {
                ok,
                degraded: false,
                detail: detail.into(),
            },
        );
    }

    /// Reports that `part` works, but protects or serves less than it could; a change of its state is logged.
    pub fn set_degraded(&self, part: &str, detail: &str) {
        self.set_part(part, HealthPart::degraded(detail));
    }

    fn set_part(&self, part: &str, now: HealthPart) {
        let mut parts = self.lock();
        let before = parts.insert(part.to_owned(), now);
        let Some(now) = parts.get(part) else { return };
        let before_state = before.as_ref().map(|part| (part.ok, part.degraded));
        if before_state == Some((now.ok, now.degraded)) {
            return;
        }

        let HealthPart { ok, degraded, detail } = now;
        let are_all_well = parts.values().all(|part| part.ok);
        match health_line(
            self.was_ready.load(Ordering::Relaxed),
            before.is_none(),
            now,
            are_all_well,
        ) {
            HealthLine::Quiet => tracing::debug!(part, ok, degraded, detail, "health changed"),
            HealthLine::Changed => tracing::info!(part, ok, degraded, detail, "health changed"),
            HealthLine::Ready => {
                self.was_ready.store(true, Ordering::Relaxed);
                let weak = parts.iter().filter(|(_, part)| part.degraded);
                let weak: Vec<String> = weak.map(|(name, part)| format!("{name}: {}", part.detail)).collect();
                tracing::info!(checks = parts.len(), degraded = weak.join("; "), "ready");
            }
        }
    }

    /// Sets or, without a `reason`, clears the reason why this process must be restarted. While there is one, `/livez`
    /// fails, so that the supervisor of the process starts another.
    pub fn set_lost(&self, reason: Option<&str>) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        if lost.as_deref() == reason {
            return;
        }
        match reason {
            Some(reason) => tracing::error!(reason, "this process must be restarted"),
            None => tracing::info!("this process has recovered"),
        }
        *lost = reason.map(str::to_owned);
    }

    /// Returns the reason why only a restart helps, or `None` if the process is alive.
    #[must_use]
    pub fn lost_reason(&self) -> Option<String> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the states of all parts.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let mut parts = self.lock().clone();
        let void = void_positions();
        if !void.is_empty() {
            let all: Vec<String> = void.iter().map(|(what, why)| format!("{what}: {why}")).collect();
            // The process decides by the records then, so it is ready.
            parts.insert("positions".to_owned(), HealthPart::degraded(&all.join("; ")));
        }

        Readiness {
            ready: parts.values().all(|part| part.ok),
            parts,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, HealthPart>> {
        self.parts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the kind of log line for a part that now is `part`: one line when the process comes up, and one for each
/// change after that. `is_first` is the first report of the part.
const fn health_line(was_ready: bool, is_first: bool, part: &HealthPart, are_all_well: bool) -> HealthLine {
    match (was_ready, are_all_well) {
        (false, true) => HealthLine::Ready,
        (false, false) => HealthLine::Quiet,
        (true, _) if is_first && part.ok && !part.degraded => HealthLine::Quiet,
        (true, _) => HealthLine::Changed,
    }
}

/// Serves the three pages on `listen` until `ended`. Returns the address once it listens.
pub(crate) async fn start(
    listen: SocketAddr,
    health: Health,
    metrics: PrometheusHandle,
    ended: ShutdownSignal,
) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    let pages = build_router(health, metrics);

    tokio::spawn(async move {
        tokio::select! {
            served = serve(listener, pages) => if let Err(error) = served {
                tracing::error!(%error, "health endpoint stopped");
            },
            () = ended.requested() => {}
        }
    });

    Ok(address)
}

fn build_router(health: Health, metrics: PrometheusHandle) -> Router {
    Router::new()
        .route("/livez", get(get_livez).with_state(health.clone()))
        .route("/readyz", get(get_readyz).with_state(health))
        .route("/metrics", get(render).with_state(metrics))
}

async fn get_livez(State(health): State<Health>) -> Response {
    match health.lost_reason() {
        None => "alive\n".into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

async fn get_readyz(State(health): State<Health>) -> Response {
    let readiness = health.readiness();
    let status = if readiness.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(readiness)).into_response()
}

async fn render(State(metrics): State<PrometheusHandle>) -> Response {
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        without_absent(&metrics.render()),
    )
        .into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(parts: &[(&str, bool)], ready: bool) {
        let health = Health::default();
        for (part, ok) in parts {
            health.set(part, *ok, "as it is");
        }
        assert_eq!(health.readiness().ready, ready, "{parts:?}");
    }

    #[test]
    fn ready_means_that_every_part_is_well() {
        check(&[("nats", true), ("spool", true)], true);
        check(&[("nats", true), ("spool", false)], false);
        check(&[("nats", false), ("nats", true)], true);
    }

    #[test]
    fn a_start_is_one_line_of_the_log() {
        let part = |ok, degraded| HealthPart {
            ok,
            degraded,
            detail: String::new(),
        };
        let (well, weak, ill) = (part(true, false), part(true, true), part(false, false));
        assert_eq!(health_line(false, true, &ill, false), HealthLine::Quiet);
        assert_eq!(health_line(false, false, &well, false), HealthLine::Quiet);
        assert_eq!(health_line(false, false, &well, true), HealthLine::Ready);
        assert_eq!(health_line(true, true, &well, true), HealthLine::Quiet);
        assert_eq!(health_line(true, true, &weak, true), HealthLine::Changed);
        assert_eq!(health_line(true, false, &ill, false), HealthLine::Changed);
        assert_eq!(health_line(true, false, &well, true), HealthLine::Changed);
    }

    #[test]
    fn a_part_that_is_degraded_is_well_and_says_so() {
        let health = Health::default();
        health.set_degraded("walls", "no Landlock");
        let readiness = health.readiness();
        let walls = &readiness.parts["walls"];
        assert!(readiness.ready && walls.ok && walls.degraded, "{walls:?}");
        assert_eq!(walls.detail, "no Landlock");

        health.set("walls", true, "all of them stand");
        assert!(!health.readiness().parts["walls"].degraded);
    }

    #[test]
    fn what_only_a_new_process_mends_is_told_until_it_is_over() {
        let health = Health::default();
        assert_eq!(health.lost_reason(), None);
        health.set_lost(Some("its client is dead"));
        assert_eq!(health.lost_reason().as_deref(), Some("its client is dead"));
        assert!(health.readiness().ready, "that is another question");
        health.set_lost(None);
        assert_eq!(health.lost_reason(), None);
    }
}
