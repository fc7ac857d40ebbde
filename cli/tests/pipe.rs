//! Output that nobody reads any more (`nexus … | head`), and output that cannot be written.

use std::process::{Command, Stdio};

#[test]
fn a_reader_that_goes_ends_the_command_in_good_order() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let ended = Command::new(env!("CARGO_BIN_EXE_nexus"))
        .args(["config", "show"])
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .expect("nexus runs");

    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && said.is_empty(), "{}: {said}", ended.status);
}

#[test]
fn a_command_with_effects_ends_them_although_its_reader_has_gone() {
    let directory = tempfile::tempdir().expect("a directory");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);

    let ended = Command::new(env!("CARGO_BIN_EXE_nexus"))
        .arg("init")
        .arg(directory.path())
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()
        .expect("nexus runs");

    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success() && said.is_empty(), "{}: {said}", ended.status);
    assert!(directory.path().join("nexus.toml").is_file());
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .expect("/dev/full");

    let ended = Command::new(env!("CARGO_BIN_EXE_nexus"))
        .arg("init")
        .arg(directory.path())
        .stdout(full)
        .stderr(Stdio::piped())
        .output()
        .expect("nexus runs");

    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("write to the standard output"), "{said}");
}
