//! Channels and threads as lists of the API name them. *Pure.*
//!
//! Sources: <https://discord.com/developers/docs/resources/channel#channel-object>,
//! <https://discord.com/developers/docs/resources/channel#thread-metadata-object>.

use serde::Deserialize;

/// A channel or thread in a list.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct ListedPlace {
    /// Id.
    pub(super) id: String,
    /// Type.
    #[serde(rename = "type")]
    pub(super) kind: u64,
    /// Id of the newest message that it ever had.
    pub(super) last_message_id: Option<String>,
    /// Of a thread: when it was archived.
    pub(super) thread_metadata: Option<ThreadMetadata>,
}

/// What a list says of a thread.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct ThreadMetadata {
    /// Time at which it was archived, or opened again, as RFC 3339.
    pub(super) archive_timestamp: Option<String>,
}

/// A page of threads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ThreadPage {
    /// Threads; of archived ones those first that were archived last.
    pub(super) threads: Vec<ListedPlace>,
    /// Whether there are more.
    pub(super) has_more: bool,
}
