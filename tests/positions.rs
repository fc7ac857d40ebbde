//! Places in streams that are stored or sent, in the whole workspace: each is named here with how it is checked, so that none
//! counts a stream that was put back, cut or made anew without anybody noticing.

use std::path::{Path, PathBuf};

/// How a place in a stream is kept from counting another stream.
enum Checked {
    /// It stands beside a [`shared::model::position::StreamPosition`], which the leader is asked about.
    ByPosition,
    /// It is one.
    IsPosition,
    /// It is looked up among the records themselves before anything follows from it.
    ByRecord(&'static str),
    /// The file that it is in is made anew where one of the file's positions is void.
    OfFile,
    /// Nothing is decided by it alone.
    Told(&'static str),
}

use Checked::{ByPosition, ByRecord, IsPosition, OfFile, Told};

/// File, field or column, and how it is checked.
const PLACES: &[(&str, &str, Checked)] = &[
    (
        "adapter-svc/src/source/discord/link.rs",
        "seq",
        Told("a number of Discord's own sessions, which Discord checks; an older one only brings more again"),
    ),
    (
        "adapter-svc/src/source/webchat/protocol.rs",
        "before",
        Told("a page asks for older items of its own thread; nothing is decided by it"),
    ),
    (
        "adapter-svc/src/source/webchat/protocol.rs",
        "sequence",
        Told("a page asks for older items of its own thread; nothing is decided by it"),
    ),
    (
        "cli/src/backup/later.rs",
        "sequence",
        Told(
            "a message of a backup beside its stream's snapshot, in the manifest's checksum; it only decides what a restore publishes again",
        ),
    ),
    (
        "shared/src/model/approval.rs",
        "audited",
        ByRecord("AUDIT is walked for the record's number"),
    ),
    (
        "shared/src/model/dispatch.rs",
        "event_seq",
        ByRecord("a lower one is looked up by its id"),
    ),
    (
        "shared/src/model/intent.rs",
        "audited",
        ByRecord("AUDIT is walked for the record's number"),
    ),
    ("shared/src/model/intent.rs", "events_from", ByPosition),
    ("shared/src/model/intent.rs", "events_position", IsPosition),
    ("shared/src/model/intent/mark.rs", "from", ByPosition),
    ("shared/src/model/intent/mark.rs", "position", IsPosition),
    (
        "shared/src/model/invocation.rs",
        "event_seq",
        Told("done is asked by the event's id"),
    ),
    ("shared/src/model/ledger.rs", "floor", ByPosition),
    ("shared/src/model/ledger.rs", "above", ByPosition),
    ("shared/src/model/ledger.rs", "newest", IsPosition),
    (
        "shared/src/model/ledger.rs",
        "event_seq",
        ByRecord("what is not above it is looked up by its id"),
    ),
    (
        "shared/src/model/ledger.rs",
        "sequence",
        Told("the ledger says what was consumed by ids as well"),
    ),
    (
        "shared/src/model/ledger.rs",
        "through",
        Told("a fold is read with its own ledger"),
    ),
    ("shared/src/model/position.rs", "sequence", IsPosition),
    ("shared/src/model/position.rs", "first", IsPosition),
    (
        "shared/src/model/position.rs",
        "through",
        Told("a part of what a position is judged by"),
    ),
    ("shared/src/model/restore.rs", "through", IsPosition),
    ("shared/src/wire/dead_letter.rs", "sequence", Told("where it was")),
    (
        "shared/src/wire/held.rs",
        "sequence",
        Told("what is held is named by its id"),
    ),
    ("shared/src/wire/session_mark.rs", "in_progress", IsPosition),
    ("shared/src/wire/session_mark.rs", "claim", IsPosition),
    ("shared/src/wire/session_mark.rs", "sequence", ByPosition),
    ("shared/src/wire/session_mark.rs", "position", IsPosition),
    ("shared/src/wire/session_mark.rs", "floors", ByPosition),
    ("shared/src/wire/session_mark.rs", "read", ByPosition),
    ("shared/src/wire/settled.rs", "at", IsPosition),
    ("shared/src/wire/settled.rs", "read", IsPosition),
    ("shared/src/wire/witness.rs", "position", IsPosition),
    (
        "shared/src/projection/api.rs",
        "sequence",
        Told("answered to whoever asks, and not kept"),
    ),
    (
        "shared/src/projection/api.rs",
        "before",
        Told("a page of an answer begins there"),
    ),
    (
        "hook-svc/src/read_model/peer_api.rs",
        "at_least",
        Told("a copy compares it with its own position"),
    ),
    (
        "hook-svc/src/read_model/peer_api.rs",
        "beyond",
        Told("a copy compares it with its own position"),
    ),
    (
        "hook-svc/src/read_model/peer_api.rs",
        "position",
        Told("bounds later answers for the same event, and is not kept"),
    ),
    (
        "hook-svc/src/read_model/peer_api.rs",
        "reached",
        Told("a copy compares it with its own position"),
    ),
    (
        "hook-svc/src/read_model/peer_api.rs",
        "sequence",
        Told("answered to whoever asks, and not kept"),
    ),
    ("hook-svc/src/read_model/peer_api.rs", "mark", IsPosition),
    (
        "shared/src/projection/script_query.rs",
        "sequence",
        Told("answered to whoever asks, and not kept"),
    ),
    ("shared/src/projection/schema.sql", "events.sequence", OfFile),
    ("shared/src/projection/schema.sql", "nexus_dispatches.sequence", OfFile),
    ("shared/src/projection/schema.sql", "embeddings.sequence", OfFile),
    ("shared/src/projection/schema.sql", "nexus_reembed.sequence", OfFile),
    (
        "shared/src/model/receipt.rs",
        "pieces",
        ByRecord("the pieces are compared with the plan's hash"),
    ),
    ("shared/src/projection/schema.sql", "nexus_positions.sequence", OfFile),
    ("shared/src/projection/schema.sql", "nexus_marks.sequence", IsPosition),
    (
        "adapter-svc/src/source/webchat/protocol.rs",
        "seq",
        Told("counts the parts of an answer to a page"),
    ),
    (
        "broker-svc/src/admin.rs",
        "sequence",
        Told("answered to whoever asks, and not kept"),
    ),
    (
        "broker-svc/src/admin.rs",
        "last_sequence",
        Told("answered to whoever asks, and not kept"),
    ),
    (
        "broker-svc/src/ledger/state.rs",
        "last_sequence",
        Told("a fold is read with its own ledger"),
    ),
    (
        "broker-svc/src/ledger/state.rs",
        "sequence",
        Told("a beat names the dispatch by it; nothing is read there"),
    ),
    (
        "broker-svc/src/agent/live.rs",
        "seq",
        Told("counts the parts of an answer"),
    ),
    ("delivery-svc/src/calls.rs", "copy", IsPosition),
    (
        "shared/src/wire/operator/letters.rs",
        "sequence",
        Told("answered to whoever asks, and not kept"),
    ),
    (
        "shared/src/wire/operator/letters.rs",
        "number",
        ByRecord("an operator names with it the time at which the letter was stored"),
    ),
    ("shared/src/wire/operator/letters.rs", "letter", IsPosition),
    ("shared/src/wire/operator/letters.rs", "position", IsPosition),
    (
        "shared/src/wire/operator/held_messages.rs",
        "sequence",
        Told("answered to whoever asks, and not kept"),
    ),
    (
        "shared/src/wire/operator/audit.rs",
        "sequence",
        Told("answered to whoever asks, and not kept"),
    ),
    (
        "shared/src/wire/operator/audit.rs",
        "before",
        Told("a page of an answer begins there"),
    ),
    (
        "shared/src/wire/operator/status.rs",
        "evaluated",
        Told("answered to whoever asks, and not kept"),
    ),
    (
        "shared/src/wire/operator/status.rs",
        "last",
        Told("answered to whoever asks, and not kept"),
    ),
    (
        "shared/src/wire/operator/tail.rs",
        "next",
        Told("a reader asks for what comes after it; nothing is decided by it"),
    ),
    (
        "shared/src/wire/operator/tail.rs",
        "whole_until",
        Told("a reader asks for what comes after it; nothing is decided by it"),
    ),
    (
        "shared/src/wire/operator/tail.rs",
        "sequence",
        Told("answered to whoever asks, and not kept"),
    ),
];

/// Crates whose records are kept or sent.
const CRATES: [&str; 7] = [
    "shared",
    "adapter-svc",
    "hook-svc",
    "broker-svc",
    "delivery-svc",
    "scheduler-svc",
    "cli",
];
/// Rooms of which all types are looked at, and not only those that serde writes.
const RECORDS: [&str; 2] = ["shared/src/model/", "shared/src/wire/"];

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("readable").flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs" || ending == "sql") {
            found.push(path);
        }
    }
}

/// Fields of records in `text` that hold a place in a stream: a number that its comment or its name calls a sequence, or a
/// position. Of types that serde does not write only where `all` are records.
fn places(text: &str, all: bool) -> Vec<String> {
    let (mut comment, mut found) = (String::new(), Vec::new());
    let (mut is_written, mut is_record) = (false, all);
    for line in text.lines() {
        let code = line.trim();
        if code.starts_with("#[cfg(test)]") {
            break;
        }
        if let Some(said) = code.strip_prefix("///") {
            comment.push_str(said);
            continue;
        }
        if code.starts_with("#[") {
            is_written |= code.starts_with("#[derive(") && code.contains("Serialize");
            continue;
        }

        let mut words = code.split_whitespace().skip_while(|word| word.starts_with("pub"));
        if matches!(
            words.next(),
            Some("struct" | "enum" | "fn" | "impl" | "const" | "async")
        ) {
            is_record = all || is_written;
            is_written = false;
            comment.clear();
            continue;
        }

        let field = code.split_once(": ").filter(|_| is_record);
        let field = field.map(|(name, of)| (name.rsplit(' ').next().unwrap_or(name), of.trim_end_matches(',')));
        let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        if let Some((name, of)) = field.filter(|(name, _)| is_name(name)) {
            let is_called_so = comment.contains("equence") || name.split('_').any(|part| part.starts_with("seq"));
            let is_number = ["u64", "Option<u64>", "Vec<u64>"].contains(&of) && is_called_so;
            let mut parts = of.split(|c: char| !c.is_ascii_alphanumeric());
            if is_number || parts.any(|part| ["StreamPosition", "StreamPlace"].contains(&part)) {
                found.push(name.to_owned());
            }
        }

        comment.clear();
    }

    found
}

/// Columns of the tables in `text` that hold a sequence, as `table.column`.
fn columns(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for table in text.split("CREATE TABLE ").skip(1) {
        let (name, rest) = table.split_once('(').expect("a table has columns");
        let rest = rest.split(';').next().unwrap_or_default();
        let columns = rest
            .split([',', '(', '\n'])
            .filter_map(|column| column.split_whitespace().next());
        let sequences = columns.filter(|column| column.split('_').any(|part| part.starts_with("seq")));
        found.extend(sequences.map(|column| format!("{}.{column}", name.trim())));
    }
    found
}

#[test]
fn every_place_in_a_stream_that_is_stored_is_named_with_how_it_is_checked() {
    let root = tests::world::root();
    let (mut all, mut found) = (Vec::new(), Vec::new());
    for name in CRATES {
        files(&root.join(name).join("src"), &mut all);
    }

    for path in all {
        let name = path.strip_prefix(&root).expect("below it").display().to_string();
        if name.contains("/tests/") || name.ends_with("/tests.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("readable");
        let is_record = RECORDS.iter().any(|room| name.starts_with(room));
        let fields = if name.ends_with(".sql") {
            columns(&text)
        } else {
            places(&text, is_record)
        };
        found.extend(fields.into_iter().map(|field| (name.clone(), field)));
    }

    let is_named = |(file, field): &&(String, String)| PLACES.iter().any(|(f, n, _)| f == file && n == field);
    let unnamed: Vec<_> = found.iter().filter(|place| !is_named(place)).collect();
    assert!(unnamed.is_empty(), "nobody says how these are checked: {unnamed:#?}");

    for (file, field, how) in PLACES {
        let is_there = found.iter().any(|(f, n)| f == file && n == field);
        assert!(is_there, "{file} has no place {field}");

        match how {
            // Each file of bare numbers holds the position that they stand beside.
            ByPosition => {
                let text = std::fs::read_to_string(root.join(file)).expect("readable");
                assert!(
                    text.contains("Position") || text.contains("stored_at_ns"),
                    "{file}: {field} is checked by no position"
                );
            }
            IsPosition | OfFile => {}
            ByRecord(why) | Told(why) => assert!(!why.is_empty()),
        }
    }
}

#[test]
fn a_place_is_found_by_its_type_or_its_comment_or_its_name() {
    let text = "#[derive(Serialize)]\npub struct Record {\n/// Its sequence.\n#[serde(default)]\npub at: u64,\n/// How many.\n\
                pub many: u64,\nevent_seq: u64,\nplace: Option<StreamPosition>,\nlast: Vec<StreamPlace>,\n}\nstruct Other {\n\
                /// Its sequence.\nmine: u64,\n}\n";
    assert_eq!(places(text, false), ["at", "event_seq", "place", "last"]);
    assert_eq!(places(text, true), ["at", "event_seq", "place", "last", "mine"]);
}

#[test]
fn a_column_is_found_by_its_name() {
    let text =
        "CREATE TABLE a(\n  sequence INTEGER PRIMARY KEY, of TEXT);\nCREATE TABLE b(id TEXT, event_seq INTEGER);";
    assert_eq!(columns(text), ["a.sequence", "b.event_seq"]);
}
