//! Golden files: what every schema looks like on the wire, in CBOR and in JSON, frozen.
//!
//! A golden file is never edited: a change of shape is a new version and a new file, and from the first
//! release on a step in `shared::wire::envelope::upgrade`. `NEXUS_WRITE_GOLDEN=1` writes those that are missing, and only those.

#[path = "wire/approvals.rs"]
mod approvals;
#[path = "wire/hook.rs"]
mod hook;
#[path = "wire/intents.rs"]
mod intents;
#[path = "wire/later.rs"]
mod later;
#[path = "wire/ledger.rs"]
mod ledger;
#[path = "wire/operators.rs"]
mod operators;
#[path = "wire/order.rs"]
mod order;
#[path = "wire/pairings.rs"]
mod pairings;
#[path = "wire/positions.rs"]
mod positions;
#[path = "wire/samples.rs"]
mod samples;
#[path = "wire/schedule.rs"]
mod schedule;

use std::fmt::Write as _;
use std::path::PathBuf;

use shared::model::channel::{AccountTokens, BegunThread, ConfiguredChannels, StoppedAccount};
use shared::model::hook::HookState;
use shared::model::position::StreamPlace;
use shared::model::restore::HoldDecision;
use shared::wire::envelope::{PayloadFormat, WireMessage, decode, decode_value, encode};
use tests::world::root;

fn path(name: &str, version: u16, ending: &str) -> PathBuf {
    root().join("tests/golden").join(format!("{name}.{version}.{ending}"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.chunks(32).fold(String::new(), |mut text, line| {
        for byte in line {
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\n');
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let value = |digit: u8| char::from(digit).to_digit(16).unwrap_or(0) as u8;
    digits
        .chunks(2)
        .map(|pair| value(pair[0]) << 4 | value(pair[1]))
        .collect()
}

fn golden(file: &PathBuf, written: &str) -> String {
    #[expect(
        clippy::disallowed_methods,
        reason = "writing golden files is asked for by a variable"
    )]
    let write = std::env::var_os("NEXUS_WRITE_GOLDEN").is_some();
    if write && !file.exists() {
        std::fs::write(file, written).expect("the golden file is written");
    }
    std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// `value` is written as its golden files say, and they are read as `value`.
fn check<T: WireMessage + PartialEq + std::fmt::Debug>(name: &str, value: &T) {
    let (cbor, headers) = encode(value, PayloadFormat::Cbor);
    let text = golden(&path(name, T::VERSION, "cbor.hex"), &hex(&cbor));
    assert_eq!(hex(&cbor), text, "{name}: CBOR is written otherwise");
    assert_eq!(
        &decode::<T>(&headers, &unhex(&text)).expect("the golden CBOR is read"),
        value,
        "{name}"
    );

    let (json, headers) = encode(value, PayloadFormat::Json);
    let mut pretty: serde_json::Value = serde_json::from_slice(&json).expect("JSON");

    // The order of fields means nothing, and follows from a feature of the JSON crate that any dependency may switch.
    pretty.sort_all_objects();
    let written = format!("{}\n", serde_json::to_string_pretty(&pretty).expect("JSON"));
    let text = golden(&path(name, T::VERSION, "json"), &written);

    later::check_unknown_fields(name, value, &pretty);
    assert_eq!(written, text, "{name}: JSON is written otherwise");
    assert_eq!(
        &decode::<T>(&headers, text.as_bytes()).expect("the golden JSON is read"),
        value,
        "{name}"
    );
}

#[test]
fn events_are_frozen() {
    check("event", &samples::event());
    check("event-least", &samples::least_event());
    check("event-large_file", &samples::large_file_event());
}

#[test]
fn owners_links_are_frozen() {
    check("owner_link", &samples::owner_link());
}

#[test]
fn dispatches_and_replies_are_frozen() {
    check("dispatch", &samples::dispatch());
    check("dispatch-channel", &samples::dispatch_with_channel());
    check("dispatch-person", &samples::dispatch_of_a_person());
    check("reply", &samples::reply());
    check("session_order", &order::session_order());
    check("session_order-withdraw", &order::withdrawal());
    check("session_order-edit", &order::edit());
}

#[test]
fn receipts_are_frozen() {
    for (number, receipt) in samples::receipts().iter().enumerate() {
        check(&format!("receipt-{number}"), receipt);
    }
}

#[test]
fn invocations_are_frozen() {
    check("invocations", &samples::invocations());
    check("invocations-deferred", &samples::invocations_deferred());
    check("invocations-target", &order::invocations_with_target());
}

#[test]
fn the_whole_ledger_is_frozen() {
    for record in ledger::ledger() {
        let value = serde_json::to_value(&record.entries[0]).expect("JSON");
        check(&format!("ledger-{}", value["kind"].as_str().expect("a kind")), &record);
    }
    check("ledger-tool_started-rewritten", &ledger::rewritten());
    check("ledger-tool_finished-unseen", &ledger::unseen());
    check("ledger-model_answered-attached", &ledger::attached());
    check("ledger-turn_started-stranger", &ledger::of_a_stranger());
}

#[test]
fn records_of_operators_are_frozen() {
    for (name, record) in operators::letter_records() {
        check(&format!("letter_record-{name}"), &record);
    }
    check("breaker_record", &operators::breaker_record());
    check("held_record", &operators::held_record());
    check("owner_record", &operators::owner_record());
    check("backfill_record", &operators::backfill_record());
    check("backfill", &operators::backfill());
}

/// What an operator reads of any record is the record, whatever its schema.
#[test]
fn records_are_read_without_their_schema() {
    fn check_value<T: WireMessage>(record: &T) {
        for format in [PayloadFormat::Cbor, PayloadFormat::Json] {
            let (payload, headers) = encode(record, format);
            let value = decode_value(&headers, &payload).expect("readable");
            assert_eq!(value, serde_json::to_value(record).expect("JSON"));
        }
    }
    for (_, record) in operators::letter_records() {
        check_value(&record);
    }
    check_value(&operators::breaker_record());
    check_value(&operators::held_record());
    check_value(&operators::owner_record());
    check_value(&operators::backfill_record());
    check_value(&pairings::pairing().record(true, samples::AT));
    check_value(&approvals::record());
    check_value(&intents::record());
}

#[test]
fn what_agents_and_operators_read_is_frozen() {
    check("agent_request", &samples::agent_request());
    check("agent_reply", &samples::agent_reply());
    check("agent_reply-error", &samples::agent_error());
    check("agent_reply-waiting", &approvals::agent_waiting());
    check("dead_letter", &samples::dead_letter());
}

#[test]
fn tokens_of_accounts_are_frozen() {
    check(
        "account_tokens",
        &AccountTokens {
            seeds: vec!["9f3c2a1b4d5e6f70".to_owned()],
            generation: 2,
            renewed_at: samples::AT,
            expires_at: samples::AT.plus(43_200_000),
            sealed: "bm9uY2UgYW5kIGNpcGhlcnRleHQ=".to_owned(),
        },
    );
}

#[test]
fn threads_of_accounts_are_frozen() {
    check("begun_thread", &BegunThread { noted_at: samples::AT });
}

#[test]
fn coordination_is_frozen() {
    check("claim", &samples::claim());
    check("hook", &samples::hook());

    let mut asking = samples::hook();
    asking.metadata.allow_net = vec!["api.example.com".to_owned()];
    check("hook_allow", &asking);

    let mut needing = samples::hook();
    needing.metadata.needs_channels = vec!["webhook:owner".to_owned()];
    check("hook_needs", &needing);

    let accounts = [("sms".to_owned(), ["home".to_owned()].into())].into();
    check("channels", &ConfiguredChannels { accounts });
    check(
        "stopped_account",
        &StoppedAccount {
            token_hash: "9f3c2a1b4d5e6f70".to_owned(),
            since: samples::AT,
        },
    );
    check("pairing", &pairings::pairing());
    check("pairing_record", &pairings::pairing().record(true, samples::AT));
    check("hook_state", &hook::hook_state());

    let counted = HookState {
        trigger_count: 2,
        last_triggered: Some(samples::AT),
        counted: vec![samples::id()],
        ..HookState::default()
    };

    check("hook_state_counted", &counted);
    check("hook_spend", &hook::hook_spend());
    check("hook_results", &hook::stored_answers());
    check("hook_results-transcripts", &hook::answers_with_transcripts());
    check("hook_limit", &ledger::rate_window());
    check("breaker", &hook::breaker());
    check("invocations-passes", &samples::invocations_with_passes());
    check("lease", &samples::lease());
    check("member", &samples::member());
    check("partition_floors", &positions::partition_floors());
    check("partition_floors-named", &positions::named_floors());

    check("partition_floors-ranges", &positions::floors_with_ranges());
    check("session_mark", &samples::session_mark());
    check("settled_floor", &positions::settled_floor());
    check("settled_floor-named", &positions::named_floor());
    check("witnessed", &positions::witnessed());
    check("witnessed-settled", &positions::witnessed_settled());
    check("waiting", &positions::waiting());
    check("watermark", &positions::watermark());
    check("held", &positions::held());
    check("copy_mark", &samples::copy_mark());
    check("agent_away", &samples::agent_away());

    check("restore_hold", &order::restore_hold(HoldDecision::Waiting));
    check("restore_hold-sent", &order::restore_hold(HoldDecision::Send));

    let through = StreamPlace {
        sequence: 41,
        stored_at_ns: 1_790_000_000_123_000_000,
    };
    check(
        "restore_hold-dropped",
        &order::restore_hold(HoldDecision::Drop { through }),
    );
    check("approval", &samples::approval());
    check("schedule", &schedule::schedule());

    check("schedule_timer", &schedule::schedule_timer());
}

#[test]
fn approvals_are_frozen() {
    check("approval-asked_in", &approvals::request());
    check("confirmation-trail", &approvals::confirmation());
    check("confirmation-all", &approvals::asked_of_all());
    check("confirmation-record", &approvals::unaudited());
    check("session_decision", &approvals::decision());
    check("confirmation-taken", &approvals::taken());
    check("confirmation-shown", &approvals::shown());
    check("confirmation-used", &approvals::used());

    for timer in approvals::timers() {
        check(&format!("approval_timer-{:?}", timer.purpose).to_lowercase(), &timer);
    }

    check("approval_record", &approvals::record());
}

#[test]
fn intents_are_frozen() {
    for schedule in intents::schedules() {
        let value = serde_json::to_value(&schedule).expect("JSON");
        check(
            &format!("intent-{}", value["type"].as_str().expect("a type")),
            &intents::intent(schedule),
        );
    }

    check("intent-withdrawn", &intents::withdrawn());
    check("intent_record", &intents::record());

    for rejection in intents::rejections() {
        let mut record = intents::record();
        let code = rejection.code();
        record.rejection = Some(rejection);
        check(&format!("intent_record-{code}"), &record);
    }

    check("intent_book", &intents::book());
    check("intent_timer", &intents::timer());
    check("intent_mark", &intents::mark());

    let (mark, intent) = intents::placed();
    check("intent_mark-placed", &mark);
    check("intent-placed", &intent);
    check("confirmation", &intents::confirmation());
}
