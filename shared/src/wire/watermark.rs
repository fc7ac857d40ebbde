//! Watermarks: how far the source of an account has come (KV `watermarks`). *Pure.* Source: `docs/design/wire.md` §3.3;
//! `docs/design/trust.md` §2.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::envelope::WireMessage;
use super::subject::token;
use crate::model::time::UnixMillis;

/// How far the source of an account has come (KV `watermarks`, key [`watermark_key`]).
///
/// It is written once everything before it is durable. A watermark that is older than it should be, because the bucket
/// was restored, only lets the source read again messages that are stored already.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceWatermark {
    /// Name of the thing that the position counts, e.g. a bot and its token. A position that counts another is void.
    pub of: String,
    /// Position in the form of the source.
    pub position: Value,
    /// Time up to which everything that the platform had is stored.
    pub complete_until: UnixMillis,
    /// Run of a process that wrote it, so that equal values of two writers are not taken for each other's.
    pub by: String,
}

/// Returns the key of the watermark of `account` on `channel`.
///
/// ```
/// use shared::wire::watermark::watermark_key;
///
/// assert_eq!(watermark_key("telegram", "my.bot"), "telegram.my=2Ebot");
/// ```
#[must_use]
pub fn watermark_key(channel: &str, account: &str) -> String {
    format!("{}.{}", token(channel), token(account))
}

impl WireMessage for SourceWatermark {
    const SCHEMA: &'static str = "watermark";
}
