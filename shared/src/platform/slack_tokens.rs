//! Rotated tokens of apps of Slack: renewed by one replica at a time, kept in KV `account_tokens`, used by all.
//!
//! A rotated bot token ends after twelve hours. Slack gives another for a refresh token, which it takes once, together with the
//! next refresh token. What Slack gave is in the bucket before any process calls with it, so that a process that dies with it
//! takes nothing along that was in use.
//! Source: <https://docs.slack.dev/authentication/using-token-rotation>; `docs/adr/0031-rotated-tokens.md`.

mod keeper;
mod plan;
mod renewal;

pub use self::keeper::{KeeperContext, TokenKeeper, open_keepers};
