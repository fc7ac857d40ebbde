//! Counts errors that hooks throw outside of their evaluations, in a timer or in a promise that was not awaited. Such
//! an error is shown as the hook's last error in the registry, and is a failure for the breaker. It is not in the
//! record of an event, because that event was answered.

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::health::breakers::HookBreakers;
use crate::health::metrics::ServiceMeters;
use crate::registry::HookRegistry;
use crate::runner::AsyncError;

/// Counts `strays` of processes of `instance`; returns when the sender is gone. Errors that arrive faster than they can
/// be counted are dropped: by then the hook's breaker is open.
pub(crate) async fn count(
    mut strays: Receiver<AsyncError>,
    registry: HookRegistry,
    breakers: HookBreakers,
    instance: String,
) {
    let (meters, me) = (ServiceMeters::new(), format!("{instance}/stray"));
    loop {
        match strays.recv().await {
            Ok(AsyncError { hook, error }) => {
                meters.failures.increment(1);
                registry.count_failure(&hook.id, &error);
                breakers.record_stray_error(&hook, &me).await;
            }
            Err(RecvError::Lagged(left_out)) => {
                tracing::warn!(left_out, "uncaught errors of hooks outside of evaluations");
            }
            Err(RecvError::Closed) => return,
        }
    }
}
