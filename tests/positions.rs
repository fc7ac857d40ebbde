//! Places in streams that are stored: each is named here with how it is checked, so that none counts a stream that was put
//! back, cut or made anew without anybody noticing.

use std::path::{Path, PathBuf};

/// How a place in a stream is kept from counting another stream.
enum Checked {
    /// It stands beside a [`shared::model::position::Position`], which the leader is asked about.
    ByPosition,
    /// It is one.
    IsPosition,
    /// It is looked up among the records themselves before anything follows from it.
    ByRecord(&'static str),
    /// Nothing is decided by it alone.
    Told(&'static str),
}

use Checked::{ByPosition, ByRecord, IsPosition, Told};

/// File under `shared/src`, field, and how it is checked.
const PLACES: &[(&str, &str, Checked)] = &[
    (
        "model/approval.rs",
        "audited",
        ByRecord("AUDIT is walked for the record's number"),
    ),
    (
        "model/dispatch.rs",
        "event_seq",
        ByRecord("a lower one is looked up by its id"),
    ),
    (
        "model/intent.rs",
        "audited",
        ByRecord("AUDIT is walked for the record's number"),
    ),
    ("model/intent.rs", "events_from", ByPosition),
    ("model/intent.rs", "events_position", IsPosition),
    ("model/intent/mark.rs", "from", ByPosition),
    ("model/intent/mark.rs", "position", IsPosition),
    (
        "model/invocation.rs",
        "event_seq",
        Told("done is asked by the event's id"),
    ),
    ("model/ledger.rs", "floor", ByPosition),
    ("model/ledger.rs", "above", ByPosition),
    ("model/ledger.rs", "newest", IsPosition),
    (
        "model/ledger.rs",
        "event_seq",
        ByRecord("what is not above it is looked up by its id"),
    ),
    (
        "model/ledger.rs",
        "sequence",
        Told("the ledger says what was consumed by ids as well"),
    ),
    ("model/ledger.rs", "through", Told("a fold is read with its own ledger")),
    ("model/position.rs", "sequence", IsPosition),
    ("model/position.rs", "first", IsPosition),
    (
        "model/position.rs",
        "through",
        Told("a part of what a position is judged by"),
    ),
    ("model/restore.rs", "through", IsPosition),
    ("wire/dead_letter.rs", "sequence", Told("where it was")),
    ("wire/held.rs", "sequence", Told("what is held is named by its id")),
    ("wire/session_mark.rs", "in_progress", IsPosition),
    ("wire/session_mark.rs", "claim", IsPosition),
    ("wire/session_mark.rs", "sequence", ByPosition),
    ("wire/session_mark.rs", "position", IsPosition),
    ("wire/session_mark.rs", "floors", ByPosition),
    ("wire/session_mark.rs", "read", ByPosition),
    ("wire/settled.rs", "at", IsPosition),
    ("wire/settled.rs", "read", IsPosition),
    ("wire/witness.rs", "position", IsPosition),
];

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("readable").flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// Fields of records in `text` that hold a place in a stream: a number that its comment calls a sequence, or a position.
fn places(text: &str) -> Vec<String> {
    let (mut comment, mut found) = (String::new(), Vec::new());
    for line in text.lines().map(str::trim) {
        if let Some(said) = line.strip_prefix("///") {
            comment.push_str(said);
            continue;
        }

        if line.starts_with("#[") {
            continue;
        }

        let field = line.strip_prefix("pub ").unwrap_or(line).split_once(": ");
        let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        if let Some((name, of)) = field.filter(|(name, _)| is_name(name)) {
            let of = of.trim_end_matches(',');
            let is_number = ["u64", "Option<u64>", "Vec<u64>"].contains(&of) && comment.contains("equence");
            let is_position = ["Position", "Option<Position>", "Place", "Option<Place>"].contains(&of);
            if is_number || is_position {
                found.push(name.to_owned());
            }
        }

        comment.clear();
    }

    found
}

#[test]
fn every_place_in_a_stream_that_is_stored_is_named_with_how_it_is_checked() {
    let root = tests::world::root().join("shared/src");
    let (mut all, mut found) = (Vec::new(), Vec::new());
    for room in ["model", "wire"] {
        files(&root.join(room), &mut all);
    }

    for path in all {
        let name = path.strip_prefix(&root).expect("below it").display().to_string();
        let text = std::fs::read_to_string(&path).expect("readable");
        found.extend(places(&text).into_iter().map(|field| (name.clone(), field)));
    }

    let is_named = |(file, field): &&(String, String)| PLACES.iter().any(|(f, n, _)| f == file && n == field);
    let unnamed: Vec<_> = found.iter().filter(|place| !is_named(place)).collect();
    assert!(unnamed.is_empty(), "nobody says how these are checked: {unnamed:?}");

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
            IsPosition => {}
            ByRecord(why) | Told(why) => assert!(!why.is_empty()),
        }
    }
}

#[test]
fn a_place_is_found_by_its_type_or_its_comment() {
    let text = "/// Its sequence.\n#[serde(default)]\npub at: u64,\n/// How many.\npub many: u64,\nplace: Option<Position>,\nlast: Place,\n";
    assert_eq!(places(text), ["at", "place", "last"]);
}
