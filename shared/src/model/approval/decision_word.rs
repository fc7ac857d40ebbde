//! The words with which a person decides an approval in a channel. *Pure.*
//!
//! The broker reads decisions by these words, and sources leave texts alone that begin with one: such a text may be
//! `approve CODE`, whose code is for no agent, so that it is not merged with other texts.

/// Returns whether `word`, the first one of a message, approves (`true`) or denies (`false`); `None` = it is no word of a
/// decision. A leading `/` and the case do not count.
///
/// ```
/// use shared::model::approval::read_decision_word;
///
/// assert_eq!(read_decision_word("/Approve"), Some(true));
/// assert_eq!(read_decision_word("reject"), Some(false));
/// assert_eq!(read_decision_word("approved"), None);
/// ```
#[must_use]
pub fn read_decision_word(word: &str) -> Option<bool> {
    match word.trim_start_matches('/').to_ascii_lowercase().as_str() {
        "approve" => Some(true),
        // People who mean no also write `reject`.
        "deny" | "reject" => Some(false),
        _ => None,
    }
}
