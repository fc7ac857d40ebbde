//! Buckets with fields that only a later release knows: their records are read again before they are changed.
//!
//! Records are read in many places and hold no unknown field as a rule. So a bucket is noted when a record with such a
//! field is decoded, and only a noted bucket costs another read for each change.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::wire::envelope::WireMessage;
use crate::wire::headers::Headers;
use crate::wire::unknown::has_unknown;

/// Buckets in which this process has read a field that it does not know.
static NOTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Notes the bucket of the record at `subject`, which was read as `value`, if the record has unknown fields. Messages of
/// other streams are not looked at.
pub(super) fn note_record<T: WireMessage>(subject: &str, headers: &Headers, payload: &[u8], value: &T) {
    let bucket = subject.strip_prefix("$KV.").and_then(|rest| rest.split_once('.'));
    let Some((bucket, _)) = bucket else { return };
    if has_unknown(headers, payload, value) {
        NOTED
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(bucket.to_owned());
    }
}

/// Returns whether this process has read a field that it does not know in `bucket`.
pub(super) fn is_noted(bucket: &str) -> bool {
    NOTED.lock().unwrap_or_else(PoisonError::into_inner).contains(bucket)
}
