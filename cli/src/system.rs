//! Questions of commands about the whole system, which scheduler-svc answers.

use std::time::Duration;

use anyhow::Result;
use shared::bus::Bus;
use shared::wire::operator::status::{AskStatus, StatusPart, SystemStatus};

use crate::service::call_service;

/// Longest time that an answer may take: the server is asked some hundred times.
const PATIENCE: Duration = Duration::from_secs(15);

/// Returns the `parts` of the status, with the names of at most `sessions` sessions that have something to run.
///
/// # Errors
/// Fails if scheduler-svc does not answer.
pub async fn read_status(bus: &Bus, parts: &[StatusPart], sessions: usize) -> Result<SystemStatus> {
    let question = AskStatus {
        parts: parts.to_vec(),
        sessions,
    };
    call_service(bus, "scheduler-svc", "nexus.svc.system.status", &question, PATIENCE).await
}
