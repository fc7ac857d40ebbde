//! Services for operators, answered by any replica, with or without a copy of the read model: circuit breakers, and
//! messages as they come.

mod breaker_api;
mod tail;
mod tail_page;
mod tailed_message;

use shared::bus::{Bus, ServiceHandle, ServiceSpec};
use shared::clock::{SharedClock, SharedIds};

/// Returns the services over `bus`.
#[must_use]
pub fn service_specs(bus: &Bus, clock: &SharedClock, ids: &SharedIds) -> Vec<ServiceSpec> {
    vec![
        breaker_api::service_spec(bus, clock, ids),
        tail::service_spec(bus, clock),
    ]
}

/// Serves them until the handles are dropped.
///
/// # Errors
/// Returns the client's error text if a service cannot be announced.
pub(crate) async fn serve(bus: &Bus, clock: &SharedClock, ids: &SharedIds) -> Result<Vec<ServiceHandle>, String> {
    let mut handles = Vec::new();
    for spec in service_specs(bus, clock, ids) {
        handles.push(bus.serve(spec).await?);
    }
    Ok(handles)
}
