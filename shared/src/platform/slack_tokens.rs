//! Rotated tokens of apps of Slack: renewed by one replica at a time, kept in KV `account_tokens`, used by all.
//!
//! A rotated bot token ends after twelve hours. For a refresh token, which it takes once, Slack gives another bot token and the
//! next refresh token. Both are in the bucket before any process calls with them, so that a process that dies takes no token
//! along that was in use.
//! Source: <https://docs.slack.dev/authentication/using-token-rotation>; `docs/adr/0031-rotated-tokens.md`.

mod keeper;
mod plan;
mod renewal;

pub use self::keeper::{KeeperContext, TokenKeeper, open_keepers};
