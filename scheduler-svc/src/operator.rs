//! Services for operators, answered by any replica: dead letters, held messages, the records of decisions, and the
//! status of the whole.
//!
//! They are here because this service's work is small and its replicas share everything: each request is decided by
//! streams and buckets alone, so that another replica goes on where one was killed. The server decides which
//! users may ask (`docs/design/operations.md` §5). A change is in `AUDIT` before it is made.

pub mod audit_list;
pub mod held_desk;
pub mod letter_api;
pub mod letter_desk;
pub mod letter_error;
pub mod letter_fate;
pub mod status;

use shared::bus::{Bus, ServiceSpec};
use shared::clock::{SharedClock, SharedIds};

use held_desk::HeldDesk;
use letter_desk::LetterDesk;

/// Code and text with which an endpoint refuses a request.
pub type Refusal = (usize, String);

/// What the services are made of.
#[derive(Debug, Clone)]
pub struct OperatorContext {
    /// Connection to the bus.
    pub bus: Bus,
    /// Clock of the records.
    pub clock: SharedClock,
    /// Ids of operations.
    pub ids: SharedIds,
    /// Copies that each stream should have.
    pub replicas: usize,
}

/// Returns the services over `context`.
#[must_use]
pub fn service_specs(context: &OperatorContext) -> Vec<ServiceSpec> {
    let OperatorContext { bus, clock, ids, .. } = context;
    vec![
        letter_api::service_spec(&LetterDesk::new(bus, clock, ids)),
        held_desk::service_spec(&HeldDesk::new(bus, clock)),
        audit_list::service_spec(bus),
        status::service_spec(context),
    ]
}
