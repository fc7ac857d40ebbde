//! `ctx.readFile()`: the bytes of a stored attachment of the event.
//!
//! A hook reads files of its own event alone: it names one by its place, and the host takes the hash from the event.
//!
//! Source: `docs/design/hooks.md` §2.1.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::Value;
use shared::attachments::AttachmentStore;
use shared::error_chain::describe_error;
use shared::model::event::Attachment;
use tokio::sync::Semaphore;

use crate::runner::{CallError, CallResult, CallUsage, HostCall, ScriptHost};

/// Name of the call.
const READ_FILE: &str = "readFile";
/// Largest file that a hook reads, in bytes: it crosses a pipe as text, and is in the worker's memory.
const MAX_FILE_BYTES: u64 = 8 * 1024 * 1024;
/// Number of a hook's first calls for an event that may read a file: answers are kept until the event is done.
const MAX_READS: u32 = 8;
/// Most files that are read at once; more wait for their turn.
const AT_ONCE: usize = 4;
/// Longest time for reading a file, including the wait for its turn.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Arguments that scripts pass.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    index: usize,
}

/// The part of an event that says which files it has.
#[derive(Debug, Deserialize)]
struct EventFiles {
    #[serde(default)]
    attachments: Vec<Attachment>,
}

/// Host that answers `readFile`, and passes all other calls to another host.
#[derive(Debug)]
pub struct FileHost {
    store: AttachmentStore,
    turns: Semaphore,
    rest: Arc<dyn ScriptHost>,
}

impl FileHost {
    /// Creates a host that reads the files in `store`.
    #[must_use]
    pub fn new(store: AttachmentStore, rest: Arc<dyn ScriptHost>) -> Self {
        Self {
            store,
            turns: Semaphore::new(AT_ONCE),
            rest,
        }
    }

    async fn read_file(&self, call: &HostCall) -> Result<Value, CallError> {
        let fault = |detail: &str| CallError::new("bad_arguments", format!("readFile(): {detail}"));
        let Arguments { index } =
            serde_json::from_value(call.args.clone()).map_err(|error| fault(&error.to_string()))?;
        if call.number >= MAX_READS {
            let message = format!("readFile() must be among the first {MAX_READS} calls of a hook for an event");
            return Err(CallError::new("too_many_calls", message));
        }
        let files: EventFiles = serde_json::from_slice(&call.event_json).map_err(|error| fault(&error.to_string()))?;
        let file = files.attachments.get(index);
        let file = file.ok_or_else(|| fault(&format!("the event has {} attachments", files.attachments.len())))?;

        let missing = |code: &'static str, why: &str| CallError::new(code, format!("readFile({index}): {why}"));
        let hash = file.stored_hash();
        let hash = hash.ok_or_else(|| missing("not_stored", "the file is not in the object store"))?;
        if file.size_bytes.is_some_and(|size| size > MAX_FILE_BYTES) {
            let why = format!("the file has more than {MAX_FILE_BYTES} bytes");
            return Err(missing("too_large", &why));
        }

        let read = async {
            let _turn = self.turns.acquire().await;
            self.store.load(hash, MAX_FILE_BYTES).await
        };
        let read = tokio::time::timeout(TIMEOUT, read).await;
        let read = read.map_err(|_| missing("timed_out", "it took too long"))?;
        let bytes = read.map_err(|error| {
            let error = describe_error(&error);
            tracing::warn!(event_id = %call.event_id, hook_id = call.hook.id, error, "readFile() failed");
            missing("unavailable", &error)
        })?;
        let bytes = bytes.ok_or_else(|| missing("not_stored", "the file is kept no longer"))?;
        Ok(STANDARD.encode(bytes).into())
    }
}

#[async_trait]
impl ScriptHost for FileHost {
    async fn call(&self, call: HostCall) -> CallResult {
        if call.name != READ_FILE {
            return self.rest.call(call).await;
        }
        CallResult {
            outcome: self.read_file(&call).await,
            spent: CallUsage::default(),
        }
    }
}
