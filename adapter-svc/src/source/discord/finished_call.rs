//! The outcome of a call that a reader made beside its socket.

use serde_json::Value;
use shared::platform::discord::ChannelPlace;

use super::api_error::ApiCallError;

/// A call that has ended.
#[derive(Debug)]
pub(super) enum FinishedCall {
    /// What a channel is.
    Place(String, Result<ChannelPlace, ApiCallError>),
    /// The bot's roles in a guild.
    Roles(String, Result<Vec<String>, ApiCallError>),
    /// A page of a channel's history, behind an id.
    History(String, u64, Result<Vec<Value>, ApiCallError>),
}
