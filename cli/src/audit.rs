//! `nexus audit`: what was decided and changed, and by whom, from scheduler-svc.

use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use shared::wire::operator::audit::{AUDIT_TOPICS, ListRecords, ListedRecord, MAX_LISTED_RECORDS, RecordList};
use shared::wire::subject::untoken;

use crate::args::{AuditOptions, Common};
use crate::connect::connect_bus;
use crate::exit::{Exit, failure};
use crate::output::{Column, Table, View};
use crate::service::call_service;

/// Longest time that an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Prefix of the records' subjects.
const PREFIX: &str = "nexus.audit.";

/// Runs the command.
///
/// # Errors
/// Fails if the topic is unknown, or if scheduler-svc does not answer.
pub async fn execute(common: &Common, options: AuditOptions) -> Result<()> {
    if let Some(topic) = options.topic.as_deref().filter(|topic| !AUDIT_TOPICS.contains(topic)) {
        let text = format!("--topic {topic}: expected one of {}", AUDIT_TOPICS.join(", "));
        return Err(failure(Exit::Usage, text));
    }

    let bus = connect_bus(common).await?;
    let (mut pages, mut found, mut before) = (Vec::new(), 0, None);
    while found < options.limit {
        let question = ListRecords {
            topic: options.topic.clone(),
            about: options.about.clone(),
            before,
            limit: (options.limit - found).min(MAX_LISTED_RECORDS),
        };
        let page: RecordList = call_service(&bus, "scheduler-svc", "nexus.svc.audit.list", &question, PATIENCE).await?;
        found += page.records.len();
        pages.push(page.records);
        before = page.before;
        if before.is_none() {
            break;
        }
    }

    let records: Vec<ListedRecord> = pages.into_iter().rev().flatten().collect();
    show_records(common, &records)
}

fn show_records(common: &Common, records: &[ListedRecord]) -> Result<()> {
    let columns = [
        Column::id("SEQUENCE"),
        Column::time("AT"),
        Column::text("TOPIC"),
        Column::text("ABOUT"),
        Column::text("BY"),
        Column::text("WHAT"),
    ];
    let table = Table::new(&columns).with(records, |one| {
        let (topic, about) = topic_of(&one.subject);
        let value = one.record.as_ref();
        [
            one.sequence.into(),
            one.at.into(),
            topic.into(),
            about.into(),
            value.map(who_of).into(),
            value.map(what_of).or_else(|| one.unreadable.clone()).into(),
        ]
    });
    View::list(records, table)?.show(common)
}

/// Returns the topic of a record's subject, and the thing that it is about.
fn topic_of(subject: &str) -> (&str, String) {
    let rest = subject.strip_prefix(PREFIX).unwrap_or(subject);
    let (topic, about) = rest.split_once('.').unwrap_or((rest, ""));
    let about: Vec<String> = about
        .split('.')
        .map(|token| untoken(token).unwrap_or_else(|| token.to_owned()))
        .collect();
    (topic, about.join("/"))
}

/// Returns the decider, as `record` says; empty if it names none.
fn who_of(record: &Value) -> String {
    record["by"].as_str().unwrap_or_default().to_owned()
}

/// Returns the change in `record`, in a word.
fn what_of(record: &Value) -> String {
    let named = [
        &record["step"]["kind"],
        &record["what"],
        &record["code"],
        &record["wanted"],
    ];
    let named = named.into_iter().find_map(Value::as_str);
    let word = match (named, record["decision"]["granted"].as_bool()) {
        (Some(word), _) => word,
        (None, Some(true)) => "granted",
        (None, Some(false)) => "withdrawn",
        // The record of a breaker has its failures, and is written for one thing alone.
        (None, None) if record["failures"].is_number() => "reset",
        (None, None) => "",
    };
    word.replace('_', " ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_record_is_told_in_a_word() {
        for (record, who, what) in [
            (
                json!({"by": "anna", "step": {"kind": "redrive_begun"}}),
                "anna",
                "redrive begun",
            ),
            (json!({"by": "bob", "what": "approved"}), "bob", "approved"),
            (
                json!({"by": "agent:x", "code": "rescheduled"}),
                "agent:x",
                "rescheduled",
            ),
            (json!({"decision": {"granted": false}}), "", "withdrawn"),
            (json!({"by": "anna", "failures": 5}), "anna", "reset"),
            (json!({}), "", ""),
        ] {
            assert_eq!(
                (who_of(&record).as_str(), what_of(&record).as_str()),
                (who, what),
                "{record}"
            );
        }
        assert_eq!(
            topic_of("nexus.audit.pairing.telegram.main.4=2E7"),
            ("pairing", "telegram/main/4.7".to_owned())
        );
        assert_eq!(topic_of("nexus.audit.dlq.7"), ("dlq", "7".to_owned()));
    }
}
