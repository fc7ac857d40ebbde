//! The wire format of the model: envelopes, subjects, headers and the whole topology as data. *Pure.*
//!
//! Source: `docs/design/wire.md`. `shared::bus` applies these decisions on the server.

pub mod agent;
pub mod dead_letter;
pub mod envelope;
pub mod headers;
pub mod held;
pub mod ledger_kinds;
pub mod operator;
pub mod partition;
pub mod rights;
pub mod schema;
pub mod seal;
pub mod session_mark;
pub mod settled;
pub mod subject;
pub(crate) mod tagged;
pub mod topology;
pub mod unknown;
pub mod watermark;
pub mod witness;
