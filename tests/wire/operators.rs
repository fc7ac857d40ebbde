//! Records in `AUDIT` of what operators had done.

use serde_json::json;
use shared::model::position::{StreamPlace, StreamPosition};
use shared::wire::held::HeldKind;
use shared::wire::operator::backfill::{
    BackfillChange, BackfillJob, BackfillRecord, BackfillState, ConversationPlace, SkippedConversation,
};
use shared::wire::operator::breakers::BreakerRecord;
use shared::wire::operator::held_messages::{HeldDecision, HeldRecord};
use shared::wire::operator::letters::{LetterRecord, LetterStep};
use shared::wire::operator::owner::{OwnerChange, OwnerRecord};
use ulid::Ulid;

use super::samples::AT;

const OPERATION: Ulid = Ulid::from_parts(1_790_000_000_123, 7);

/// Every step of a dead letter, each with a name.
pub(crate) fn letter_records() -> Vec<(&'static str, LetterRecord)> {
    let record = |step| LetterRecord {
        letter: StreamPlace {
            sequence: 7,
            stored_at_ns: 1_790_000_000_123_000_001,
        },
        operation: OPERATION,
        by: "anna".to_owned(),
        at: AT,
        step,
    };
    let subject = || "nexus.event.a.b.c".to_owned();
    let (service, reason) = (|| "hook-svc".to_owned(), || "malformed".to_owned());

    vec![
        (
            "redrive_begun",
            record(LetterStep::RedriveBegun {
                subject: subject(),
                service: service(),
                reason: reason(),
            }),
        ),
        (
            "redriven",
            record(LetterStep::Redriven {
                subject: subject(),
                stream: "EVENTS".to_owned(),
                position: StreamPosition {
                    incarnation: "a".to_owned(),
                    sequence: 20,
                    stored_at_ns: 900,
                },
            }),
        ),
        (
            "redrive_refused",
            record(LetterStep::RedriveRefused {
                error: "too large".to_owned(),
            }),
        ),
        (
            "dropped",
            record(LetterStep::Dropped {
                service: service(),
                reason: reason(),
            }),
        ),
    ]
}

pub(crate) fn breaker_record() -> BreakerRecord {
    BreakerRecord {
        hook_id: "work/route".to_owned(),
        operation: OPERATION,
        by: "anna".to_owned(),
        at: AT,
        failures: 5,
    }
}

pub(crate) fn held_record() -> HeldRecord {
    HeldRecord {
        kind: HeldKind::Delivery,
        id: OPERATION,
        held_since: AT,
        wanted: HeldDecision::Redo,
        by: "anna".to_owned(),
        at: AT,
    }
}

pub(crate) fn owner_record() -> OwnerRecord {
    OwnerRecord {
        operation: OPERATION,
        what: OwnerChange::Offered,
        about: "link.00ff".to_owned(),
        by: "anna".to_owned(),
        at: AT,
    }
}

pub(crate) fn backfill_record() -> BackfillRecord {
    BackfillRecord {
        operation: OPERATION,
        what: BackfillChange::Started,
        job: OPERATION,
        channel: "slack".to_owned(),
        account: "main".to_owned(),
        since: AT.plus(-86_400_000),
        until: AT,
        conversations: vec!["C012AB3CD".to_owned()],
        by: "anna".to_owned(),
        at: AT,
    }
}

pub(crate) fn backfill() -> BackfillJob {
    BackfillJob {
        id: OPERATION,
        channel: "slack".to_owned(),
        account: "main".to_owned(),
        since: AT.plus(-86_400_000),
        until: AT,
        conversations: vec!["C012AB3CD".to_owned()],
        by: "anna".to_owned(),
        state: BackfillState::Running,
        reason: Some("too many calls; retry in 30 s".to_owned()),
        started_at: AT,
        changed_at: AT.plus(5_000),
        read_by: Some("adapter-svc-0".to_owned()),
        found: Some(2),
        finished: 1,
        events: 240,
        passed_over: 3,
        place: Some(ConversationPlace {
            conversation: "C012AB3CD".to_owned(),
            position: json!({"read_us": 1_789_913_600_123_999_i64, "bounds_us": [1_789_950_000_000_000_i64]}),
        }),
        skipped: vec![SkippedConversation {
            conversation: "C099XY9ZZ".to_owned(),
            reason: "not_in_channel".to_owned(),
        }],
        skipped_count: 1,
    }
}
