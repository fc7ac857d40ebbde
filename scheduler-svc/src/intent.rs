//! HookIntents: what agents ask of their own future, admitted or refused, fired once, told of.
//!
//! Pure: [`registry`] (the kinds), [`plan`] (when), [`admission`] (whether), [`machine`] (the
//! lifecycle), [`refold`] (the lifecycle out of `AUDIT`), [`firing`] (the event and the dispatch of a firing),
//! [`outcome`] (how its turn ended), [`card`] (what an approver reads). Shells: [`store`] (compare-and-set and audit),
//! [`catch_up`] (values that are behind the audit), [`books`], [`hooks`] and [`sending`] (firings without a turn),
//! [`timers`], [`approvals`], [`quiet`], [`desk`] (what is asked), [`clerk`] (what time, approvers and sessions bring),
//! [`asking`] (waking, approvers), [`looking`] (ends), [`lost`] (firings that their queue has lost), [`withdrawal`],
//! [`bell`], [`conditions`], [`reconcile`]. Source: `docs/design/schedules.md` §3.

pub mod admission;
pub mod approvals;
pub mod asking;
pub mod bell;
pub mod books;
pub mod card;
pub mod catch_up;
pub mod clerk;
pub mod conditions;
pub mod desk;
pub mod error;
pub mod firing;
pub mod hooks;
pub mod looking;
pub mod lost;
pub mod machine;
pub mod outcome;
pub mod plan;
pub mod quiet;
pub mod reconcile;
pub mod refold;
pub mod registry;
pub mod sending;
pub mod service;
pub mod store;
pub mod timers;
pub mod withdrawal;
