//! For tests: the operators' services, in this process.

use std::sync::Arc;

use scheduler_svc::operator::OperatorContext;
use shared::bus::{Bus, ServiceHandle};
use shared::clock::{SharedClock, SharedIds, SystemClock, SystemIds};

/// Serves what scheduler-svc serves to operators on `bus`, until the handles are dropped.
pub(crate) async fn serve_operators(bus: &Bus) -> Vec<ServiceHandle> {
    let (clock, ids): (SharedClock, SharedIds) = (Arc::new(SystemClock), Arc::new(SystemIds));
    let context = OperatorContext {
        bus: bus.clone(),
        clock,
        ids,
        replicas: 1,
    };

    let mut handles = Vec::new();
    for spec in scheduler_svc::operator::service_specs(&context) {
        handles.push(bus.serve(spec).await.expect("served"));
    }
    handles
}
