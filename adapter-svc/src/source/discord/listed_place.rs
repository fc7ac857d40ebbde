//! Channels and threads as lists of the API name them. *Pure.*
//!
//! Sources: <https://discord.com/developers/docs/resources/channel#channel-object>,
//! <https://discord.com/developers/docs/resources/channel#thread-metadata-object>.

use serde::Deserialize;

/// A channel or thread in a list.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ListedPlace {
    /// Id.
    pub id: String,
    /// Type.
    #[serde(rename = "type")]
    pub kind: u64,
    /// Id of the newest message that it ever had.
    pub last_message_id: Option<String>,
    /// Of a thread: when it was archived.
    pub thread_metadata: Option<ThreadMetadata>,
}

/// What a list says of a thread.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct ThreadMetadata {
    /// Time at which it was archived, or opened again, as RFC 3339.
    pub archive_timestamp: Option<String>,
}

/// A page of threads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct ThreadPage {
    /// Threads; of archived ones those first that were archived last.
    pub threads: Vec<ListedPlace>,
    /// Whether there are more.
    pub has_more: bool,
}
