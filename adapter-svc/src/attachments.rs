//! Files of messages: fetched from their platform before the event is stored, and kept in the object store.
//!
//! A platform's address of a file is void after a while, so the file is fetched at once. The event waits for its files for a
//! few seconds; what is not there by then is fetched by the [`keeper`], which says so with an event `updated`. The event is
//! noted in KV `fetches` before it is stored, so that a process that is killed leaves none behind. Source:
//! `docs/design/channels.md` §1.9.

mod allowance;
pub mod download;
pub mod fetcher;
pub mod keeper;
pub mod media;
pub mod note;
mod plan;

pub use self::fetcher::AttachmentFetcher;
pub use self::media::{FetchFileError, Media};
