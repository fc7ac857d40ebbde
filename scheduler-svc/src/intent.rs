//! HookIntents: the future actions that agents request, admitted or rejected, fired once each, and followed to their
//! end.
//!
//! Pure: [`registry`] (the kinds), [`plan`] (when an intent fires), [`admission`] (whether it is
//! admitted), [`machine`] (the lifecycle), [`refold`] (the lifecycle from `AUDIT`), [`firing`] (the event and the
//! dispatch of a firing), [`outcome`] (how its turn ended), [`card`] (the text for an approver).
//!
//! Shells: [`store`] (compare-and-set and audit), [`catch_up`] (values older than their audit), [`budget_ledger`], [`hooks`]
//! and [`sending`] (firings without a turn), [`timers`], [`approvals`], [`idle_check`], [`requests`] (requests), [`executor`]
//! (timers, approvals and ends), [`approval_prompt`] (wake-ups and approval requests), [`outcome_poll`] (polls for the end), [`lost_firings`]
//! (firings that their queue has lost), [`withdrawal`], [`turn_listener`], [`conditions`], [`reconcile`]. Source:
//! `docs/design/schedules.md` §3.

pub mod admission;
pub mod approval_prompt;
pub mod approvals;
pub mod budget_ledger;
pub mod card;
pub mod catch_up;
pub mod conditions;
pub mod error;
pub mod executor;
pub mod firing;
pub mod hooks;
pub mod idle_check;
pub mod lost_firings;
pub mod machine;
pub mod outcome;
pub mod outcome_poll;
pub mod plan;
pub mod reconcile;
pub mod refold;
pub mod registry;
pub mod requests;
pub mod sending;
pub mod service;
pub mod store;
pub mod timers;
pub mod turn_listener;
pub mod withdrawal;
