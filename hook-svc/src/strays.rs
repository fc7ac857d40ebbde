//! What hooks throw outside of their evaluations — in a timer, or by a promise that nobody awaits — is an error of theirs:
//! the last one that the registry tells of, and a failure for the breaker. The record of an event has none of it: that
//! event was answered.

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::breakers::Breakers;
use crate::meters::Meters;
use crate::registry::Registry;
use crate::runner::Stray;

/// Counts `strays` of processes of `instance`, for ever. Those that come faster than they can be counted are left out:
/// by then the hook's breaker is open.
pub(crate) async fn count(mut strays: Receiver<Stray>, registry: Registry, breakers: Breakers, instance: String) {
    let (meters, me) = (Meters::new(), format!("{instance}/stray"));
    loop {
        match strays.recv().await {
            Ok(Stray { hook, error }) => {
                meters.failures.increment(1);
                registry.failed(&hook.id, &error);
                breakers.strayed(&hook, &me).await;
            }
            Err(RecvError::Lagged(left_out)) => {
                tracing::warn!(left_out, "uncaught errors of hooks outside of evaluations");
            }
            Err(RecvError::Closed) => return,
        }
    }
}
