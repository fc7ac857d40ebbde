//! Accounts on platforms: the parts that adapter-svc, which receives through them, and delivery-svc, which sends
//! through them, have in common.
//!
//! [`accounts`] reads `channels.yaml` for both. Each platform that Nexus speaks itself has a file with its accounts'
//! settings, and one with its protocol as far as both directions use it.

pub mod accounts;
pub mod base_url;
pub mod bot_api;
pub mod discord;
pub mod group_prompts;
pub mod http_answer;
pub mod outline;
pub mod policy;
pub mod public_address;
pub mod slack;
pub mod slack_api;
pub mod slack_tokens;
pub mod telegram;
pub mod token;
mod token_seal;
pub mod topic;
