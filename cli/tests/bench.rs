//! What `nexus bench read-model` and `nexus bench queries` measure, on few events, and what `nexus bench` refuses.

use std::process::Command;

use serde_json::Value;

#[test]
fn the_read_model_is_measured_and_finds_a_rare_word() {
    let ended = Command::new(env!("CARGO_BIN_EXE_nexus"))
        .args(["bench", "read-model", "--events", "100,1000", "--json"])
        .output()
        .expect("nexus runs");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{}: {said}", ended.status);

    let rows: Vec<Value> = serde_json::from_slice(&ended.stdout).expect("JSON");
    let events: Vec<_> = rows.iter().map(|row| row["events"].as_u64()).collect();
    assert_eq!(events, [Some(100), Some(1_000)]);

    for row in &rows {
        for figure in [
            "/rows_per_s",
            "/two_words/p50_ms",
            "/five_words/p50_ms",
            "/filtered/p95_ms",
            "/file_mib",
        ] {
            let value = row.pointer(figure).and_then(Value::as_f64);
            assert!(value.is_some_and(|value| value > 0.0), "{figure} in {row}");
        }

        assert!(
            row["model_per_s"].is_null() && row["embedded_per_s"].is_null(),
            "no model was named: {row}"
        );
    }
}

#[test]
fn queries_are_measured_over_the_protocol_and_on_the_file() {
    let ended = Command::new(env!("CARGO_BIN_EXE_nexus"))
        .args(["bench", "queries", "--counts", "0,2", "--history", "100"])
        .args(["--seconds", "0.2", "--json"])
        .output()
        .expect("nexus runs");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{}: {said}", ended.status);

    // A hook that does not find its events fails, and so does the command.
    let rows: Vec<Value> = serde_json::from_slice(&ended.stdout).expect("JSON");
    let counts: Vec<_> = rows.iter().map(|row| row["queries"].as_u64()).collect();
    assert_eq!(counts, [Some(0), Some(2)]);

    for row in &rows {
        for way in ["file", "protocol"] {
            for figure in ["events_per_s", "p50_us", "p99_us"] {
                let value = row[way][figure].as_f64();
                assert!(value.is_some_and(|value| value > 0.0), "{way} {figure} in {row}");
            }
        }
    }
}

#[test]
fn numbers_that_cannot_be_measured_are_refused() {
    for (arguments, named) in [
        (["--replicas", "0"].as_slice(), "--replicas"),
        (&["--replicas", "1,many"], "--replicas"),
        (&["--runs", "5"], "--replicas"),
        (&["--backlog"], "--replicas"),
        (&["--backlog", "--replicas", "1", "--steady", "1"], "--steady"),
        (&["--steady", "0"], "--steady"),
        (&["queries", "--history", "0"], "--history"),
        (&["--replicas", "1", "--durability", "some"], "--durability some"),
    ] {
        let ended = Command::new(env!("CARGO_BIN_EXE_nexus"))
            .arg("bench")
            .args(arguments)
            .output()
            .expect("nexus runs");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(named), "{arguments:?}: {said}");
    }
}
