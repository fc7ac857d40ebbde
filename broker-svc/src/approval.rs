//! Approvals: a human's word on a tool call of a suspended turn. Source: `docs/design/sessions.md` §8; seed 002 §3.
//!
//! No model is in the loop: [`question`] says what is asked, [`machine`] what a word does to it, [`scope`] whose word
//! counts, and [`outside`] what an agent that runs its tools itself is told, all pure; [`desk`] keeps them in KV `approvals` by compare-and-set, tells the session, and writes everything into
//! `AUDIT`, for which [`auditor`] makes up; [`again`] sends cards again that their queue has lost; [`card`] is what the human is shown; [`timers`] sets the timers of expiry and escalation, which [`timer_handler`] handles; [`service`]
//! serves `nexus.svc.approval.*`; [`reply`] reads `approve CODE` in a channel.

pub mod again;
pub mod auditor;
pub mod card;
pub mod desk;
pub mod machine;
pub mod outside;
pub mod question;
pub mod reply;
pub mod scope;
pub mod service;
pub mod timer_handler;
pub mod timers;
