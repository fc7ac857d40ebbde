//! Requests of operators to the services, and the records in `AUDIT` of their changes. *Pure.* Source:
//! `docs/design/wire.md` §2.3.
//!
//! The server decides which users may ask: it lets a user publish on a service's subject or not. The name in a request
//! is for the record, and gives no right.

pub mod audit;
pub mod backfill;
pub mod breakers;
pub mod held_messages;
pub mod letters;
pub mod owner;
pub mod status;
pub mod tail;

/// Maximum length of the operator's name, in bytes.
pub const MAX_SPEAKER_BYTES: usize = 128;

/// Checks the name `by` of the operator that asks for a change, which is kept in `AUDIT`.
///
/// # Errors
/// Returns the fault of the field.
pub fn check_speaker(by: &str) -> Result<(), String> {
    if by.is_empty() {
        return Err("by: must not be empty: it says in AUDIT who asked".to_owned());
    }
    if by.len() > MAX_SPEAKER_BYTES {
        let size = by.len();
        return Err(format!("by: {size} bytes, at most {MAX_SPEAKER_BYTES} are allowed"));
    }

    match by.chars().find(|c| c.is_control()) {
        Some(control) => Err(format!("by: control character U+{:04X}", u32::from(control))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_would_spoil_the_record_is_refused() {
        assert_eq!(check_speaker("anna"), Ok(()));
        for (by, told) in [
            (String::new(), "by: must not be empty"),
            ("x".repeat(129), "by: 129 bytes, at most 128"),
            ("a\u{1b}[2J".to_owned(), "by: control character U+001B"),
        ] {
            let fault = check_speaker(&by).expect_err("it is wrong");
            assert!(fault.starts_with(told), "{fault}");
        }
    }
}
