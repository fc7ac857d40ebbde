//! Health of hooks and of the replica: breakers, metrics, and the decision whether the replica takes part.

pub mod admission;
pub(crate) mod async_errors;
pub mod breakers;
pub(crate) mod metrics;
pub(crate) mod participation;
