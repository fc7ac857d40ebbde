//! The code that the five services share: model, wire format, bus, process shell, read model.
#![warn(missing_docs)]

pub mod attachments;
pub mod breaker;
pub mod bus;
pub mod clock;
pub mod credentials;
pub mod embed;
pub mod error_chain;
pub mod json_schema;
pub mod llm;
pub mod metric;
pub mod model;
pub mod platform;
pub mod process;
pub mod projection;
pub mod retry;
pub mod schedule;
pub mod serde_text;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod wire;
