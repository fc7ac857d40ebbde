//! The domain model of Nexus: the types that cross the wire. *Pure.*
//!
//! Request →normalize→ **Event** →evaluate→ [`hook::HookResult`] →build→ **Dispatch** →run→ turn →reply→
//! **Reply** →plan→ part →sent→ outbound **Event**. The types in bold are defined here; `ARCHITECTURE.md` names the
//! function of each arrow.

pub mod approval;
pub mod approval_api;
pub mod channel;
pub mod dispatch;
pub mod event;
pub mod heartbeat;
pub mod hook;
pub mod hook_api;
pub mod identity;
pub mod intent;
pub mod invocation;
pub mod ledger;
pub mod live;
pub mod order;
pub mod origin;
pub mod owner;
pub mod pairing;
pub mod pairing_api;
pub mod permission;
pub mod position;
pub mod proof;
pub mod rate;
pub mod receipt;
pub mod reply;
pub mod restore;
pub mod schedule;
pub mod schedule_api;
pub mod session;
pub mod time;
