//! What is printed into a pipe that nobody reads any more: `nexus … | head`.

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
