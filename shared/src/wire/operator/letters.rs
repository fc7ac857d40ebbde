//! Requests about dead letters (`nexus.svc.dlq.*`), and the record of what became of each. *Pure.*

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use crate::model::position::{StreamPlace, StreamPosition};
use crate::model::time::UnixMillis;
use crate::wire::dead_letter::DeadLetter;
use crate::wire::envelope::WireMessage;

/// Number of dead letters in a list if the request names none.
pub const LISTED_LETTERS: usize = 50;
/// Maximum number of dead letters in one list.
pub const MAX_LISTED_LETTERS: usize = 500;
/// Maximum length of a detail in a list, in bytes.
pub const MAX_LISTED_DETAIL: usize = 512;
/// Maximum length of the payload that `show` returns, in bytes.
pub const MAX_SHOWN_PAYLOAD: usize = 1 << 20;

/// Request of `nexus.svc.dlq.list`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListLetters {
    /// Only dead letters of this service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Only dead letters with a lower number; absent = from the newest on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// Maximum number of entries; 0 = [`LISTED_LETTERS`].
    pub limit: usize,
    /// Whether held messages are left out, which `nexus recover` decides.
    pub without_held: bool,
}

/// A dead letter without its message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LetterHead {
    /// Name of the service that gave the message up.
    pub service: String,
    /// Subject under which the message was stored.
    pub subject: String,
    /// Subject to publish it to again; empty if it cannot be.
    pub redrive_subject: String,
    /// Stream of the message; empty if it was not in a stream.
    pub stream: String,
    /// Sequence of the message in its stream.
    pub sequence: u64,
    /// Reason in one word.
    pub reason: String,
    /// Error in words; a long one is cut in lists.
    pub detail: String,
    /// Number of attempts that were made.
    pub attempts: u64,
    /// Time it was given up.
    pub at: UnixMillis,
}

impl LetterHead {
    /// Returns `letter` without its message, and with at most `most` bytes of its detail.
    #[must_use]
    pub fn of_letter(letter: DeadLetter, most: usize) -> Self {
        let mut detail = letter.detail;
        if detail.len() > most {
            detail.truncate(detail.floor_char_boundary(most));
            detail.push('…');
        }

        Self {
            service: letter.service,
            subject: letter.subject,
            redrive_subject: letter.redrive_subject,
            stream: letter.stream,
            sequence: letter.sequence,
            reason: letter.reason,
            detail,
            attempts: letter.attempts,
            at: letter.at,
        }
    }
}

/// A dead letter in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedLetter {
    /// Number of the dead letter: its sequence in `DLQ`.
    pub number: u64,
    /// Time at which it was stored, in nanoseconds since 1970: a restored stream gives its number to another one.
    pub stored_at_ns: i64,
    /// The dead letter; absent if it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub letter: Option<LetterHead>,
    /// Why it cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

/// Answer of `nexus.svc.dlq.list`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LetterList {
    /// Dead letters, newest last.
    pub letters: Vec<ListedLetter>,
    /// Number of all that the request could have named, whatever the limit.
    pub total: u64,
    /// Number before which the next list goes on; absent if there are no older ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
}

/// Request of `nexus.svc.dlq.show`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShowLetter {
    /// Number of the dead letter.
    pub number: u64,
}

/// Answer of `nexus.svc.dlq.show`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownLetter {
    /// Number of the dead letter.
    pub number: u64,
    /// Time at which it was stored, in nanoseconds since 1970.
    pub stored_at_ns: i64,
    /// The dead letter.
    pub letter: LetterHead,
    /// Headers of the message.
    pub headers: Vec<(String, String)>,
    /// Payload of the message in base64; of a longer one the first [`MAX_SHOWN_PAYLOAD`] bytes.
    pub payload: String,
    /// Size of the whole payload, in bytes.
    pub payload_bytes: usize,
    /// What operators had done with it, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<LetterRecord>,
}

/// Request of `nexus.svc.dlq.redrive` and `nexus.svc.dlq.drop`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecideLetter {
    /// Number of the dead letter.
    pub number: u64,
    /// Time at which it was stored, as listed; absent = whichever has this number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_at_ns: Option<i64>,
    /// User that asks, for the record.
    pub by: String,
}

/// Answer of `nexus.svc.dlq.redrive`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LetterRedriven {
    /// Number of the dead letter, which is deleted.
    pub number: u64,
    /// Subject to which the message was published.
    pub subject: String,
    /// Sequence of the message in its stream.
    pub sequence: u64,
    /// Whether an earlier request had done it.
    #[serde(default)]
    pub repeated: bool,
}

/// Answer of `nexus.svc.dlq.drop`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LetterDropped {
    /// Number of the dead letter, which is deleted.
    pub number: u64,
    /// Service that gave the message up; empty if the letter could not be read.
    pub service: String,
    /// Reason in one word.
    pub reason: String,
    /// Whether an earlier request had done it.
    #[serde(default)]
    pub repeated: bool,
}

/// A record in `AUDIT` of one step of what an operator has done with a dead letter. All records of one number are on one
/// subject, each behind the one before, so that one of two operators is first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LetterRecord {
    /// The dead letter: its number, and the time at which it was stored.
    pub letter: StreamPlace,
    /// Id of the operation, which the message that is published again has in its own id.
    pub operation: Ulid,
    /// User that asked, as the request says.
    pub by: String,
    /// Time of the step.
    pub at: UnixMillis,
    /// The step.
    pub step: LetterStep,
}

/// A step of what is done with a dead letter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum LetterStep {
    /// From now on the message may have been published again.
    RedriveBegun {
        /// Subject to which it is published.
        subject: String,
        /// Service that gave the message up.
        service: String,
        /// Reason in one word.
        reason: String,
    },
    /// The message is stored again; what is left is to delete the dead letter.
    Redriven {
        /// Subject to which it was published.
        subject: String,
        /// Stream that stores it.
        stream: String,
        /// Where it is stored there.
        position: StreamPosition,
    },
    /// The server refuses the message for good: it was not published.
    RedriveRefused {
        /// The server's error.
        error: String,
    },
    /// The dead letter is to be deleted, and is not published again.
    Dropped {
        /// Service that gave the message up; empty if the letter cannot be read.
        service: String,
        /// Reason in one word.
        reason: String,
    },
}

impl WireMessage for LetterRecord {
    const SCHEMA: &'static str = "letter_record";
}
