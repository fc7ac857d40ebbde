//! Counts errors that hooks throw outside of their evaluations, in a timer or in a promise that was not awaited. Such
//! an error is shown as the hook's last error in the registry, and is a failure for the breaker. It is not in the
//! record of an event, because that event was answered.

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::breakers::Breakers;
use crate::meters::Meters;
use crate::registry::Registry;
use crate::runner::Stray;

/// Counts `strays` of processes of `instance`; returns when the sender is gone. Errors that arrive faster than they can
/// be counted are dropped: by then the hook's breaker is open.
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
