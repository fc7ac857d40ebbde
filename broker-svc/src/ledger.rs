//! The ledger of a session: its writer, the state that its entries sum up to, compaction and resets.

pub mod compaction;
pub mod reset;
pub mod reset_notifier;
pub mod state;
pub mod state_cache;
pub mod writer;
