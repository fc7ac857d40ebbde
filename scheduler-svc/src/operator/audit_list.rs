//! `nexus.svc.audit.list`: what was decided and changed, by whom, from the newest record on.

use shared::bus::{Bus, ServiceSpec, StoredMessage};
use shared::error_chain::describe_error;
use shared::wire::envelope::decode_value;
use shared::wire::headers::SCHEMA;
use shared::wire::operator::audit::{
    AUDIT_TOPICS, LISTED_RECORDS, ListRecords, ListedRecord, MAX_LISTED_BYTES, MAX_LISTED_RECORDS, RecordList,
};
use shared::wire::subject::token;
use shared::wire::topology::streams::AUDIT;

use super::Refusal;

/// Returns the service over `bus`.
#[must_use]
pub fn service_spec(bus: &Bus) -> ServiceSpec {
    let bus = bus.clone();
    ServiceSpec::new("audit", "records of what was decided and changed").endpoint(
        "list",
        move |question: ListRecords| {
            let bus = bus.clone();
            async move { list(&bus, &question).await }
        },
    )
}

/// Returns the filter for the subjects that `question` asks for.
fn filter_of(question: &ListRecords) -> Result<String, Refusal> {
    let wrong = |text: String| Err((400, text));
    match (question.topic.as_deref(), question.about.as_deref()) {
        (None, None) => Ok("nexus.audit.>".to_owned()),
        (None, Some(_)) => wrong("about: needs a topic".to_owned()),
        (Some(topic), _) if !AUDIT_TOPICS.contains(&topic) => {
            wrong(format!("topic: `{topic}` is none of {}", AUDIT_TOPICS.join(", ")))
        }
        (Some(topic), None) => Ok(format!("nexus.audit.{topic}.>")),
        // Its records are by channel and account.
        (Some("backfill"), Some(account)) => Ok(format!("nexus.audit.backfill.*.{}", token(account))),
        // Its records are by channel, account and sender.
        (Some("pairing"), Some(sender)) => Ok(format!("nexus.audit.pairing.*.*.{}", token(sender))),
        (Some(topic), Some(about)) => Ok(format!("nexus.audit.{topic}.{}", token(about))),
    }
}

async fn list(bus: &Bus, question: &ListRecords) -> Result<RecordList, Refusal> {
    let filter = filter_of(question)?;
    let limit = match question.limit {
        0 => LISTED_RECORDS,
        limit => limit.min(MAX_LISTED_RECORDS),
    };

    let page = bus.newest_messages(AUDIT, &filter, question.before, limit, |stored| Some(listed(&stored)));
    let page = page.await.map_err(|error| {
        tracing::warn!(error = describe_error(&error), "request about records of AUDIT failed");
        (503, error.to_string())
    })?;

    let mut list = RecordList {
        records: page.items.iter().map(|(record, _)| record.clone()).collect(),
        before: page.before,
    };
    // The newest records fit in any case; the older ones are in the next list.
    let mut left = MAX_LISTED_BYTES.min(bus.max_payload() / 2);
    let fits = |(_, size): &&(ListedRecord, usize)| {
        let is_enough = left >= *size;
        left = left.saturating_sub(*size);
        is_enough
    };
    let count = page.items.iter().rev().take_while(fits).count().max(1);
    if count < list.records.len() {
        list.records.drain(..list.records.len() - count);
        list.before = list.records.first().map(|record| record.sequence);
    }

    Ok(list)
}

/// Returns a record as it is listed, and its approximate size in bytes.
fn listed(stored: &StoredMessage) -> (ListedRecord, usize) {
    let (record, unreadable) = match decode_value(&stored.headers, &stored.payload) {
        Ok(record) => (Some(record), None),
        Err(error) => (None, Some(error)),
    };
    let listed = ListedRecord {
        sequence: stored.sequence,
        at: stored.published_at,
        subject: stored.subject.clone(),
        schema: stored.headers.get(SCHEMA).map(str::to_owned),
        record,
        unreadable,
    };
    (listed, 2 * stored.payload.len() + 256)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(topic: Option<&str>, about: Option<&str>) -> Result<String, Refusal> {
        filter_of(&ListRecords {
            topic: topic.map(str::to_owned),
            about: about.map(str::to_owned),
            ..ListRecords::default()
        })
    }

    #[test]
    fn a_question_names_subjects_of_the_record_alone() {
        assert_eq!(filter(None, None), Ok("nexus.audit.>".to_owned()));
        assert_eq!(filter(Some("dlq"), None), Ok("nexus.audit.dlq.>".to_owned()));
        assert_eq!(
            filter(Some("breaker"), Some("a.b>")),
            Ok("nexus.audit.breaker.a=2Eb=3E".to_owned())
        );
        assert_eq!(
            filter(Some("pairing"), Some("4711")),
            Ok("nexus.audit.pairing.*.*.4711".to_owned())
        );
        assert_eq!(
            filter(Some("backfill"), Some("main")),
            Ok("nexus.audit.backfill.*.main".to_owned())
        );
        let (code, text) = filter(Some("*"), None).expect_err("no topic");
        assert!(
            code == 400 && text.starts_with("topic: `*` is none of approval, "),
            "{text}"
        );
        assert!(filter(None, Some("7")).is_err());
    }
}
