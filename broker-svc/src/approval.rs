//! Approvals: a human's decision on a tool call of a suspended turn. Source: `docs/design/sessions.md` §8; seed 002
//! §3.
//!
//! No model is in the loop. The pure parts are [`question`] (the question to the human), [`machine`] (the transitions
//! that a decision causes), [`scope`] (who may decide), [`external_tool`] (the gate's response to an agent that runs its
//! tools itself) and [`card`] (the text that the human is shown). [`store`] keeps approvals in KV `approvals` by
//! compare-and-set, notifies the session, and writes every change to `AUDIT`; [`auditor`] adds records that are
//! missing there. [`restored_streams`] sends cards again that their queue has lost. [`timers`] sets the timers of expiry and
//! escalation, which [`timer_handler`] handles. [`service`] serves `nexus.svc.approval.*`, and [`reply`] reads
//! `approve CODE` in a channel.

pub mod auditor;
pub mod card;
pub mod external_tool;
pub mod machine;
pub mod question;
pub mod reply;
pub mod restored_streams;
pub mod scope;
pub mod service;
pub mod store;
pub mod timer_handler;
pub mod timers;
