//! The way to a turn: claims, the window over `DISPATCHES`, each session's inbox, and the sweeper that finds lost wake-ups.

pub mod claim_deadline;
pub mod claims;
pub mod doubt;
pub mod event_search;
pub mod feed;
pub mod inbox;
pub mod quarantine;
pub mod settled;
pub mod slot;
pub mod sweep;
pub mod sweeper;
pub mod window;
