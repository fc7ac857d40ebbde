//! `approve CODE` and `deny CODE` as a message of a channel. *Pure.*
//!
//! A message of a conversation that some hook dispatches is a decision if it has exactly this form and the code names
//! an approval. Then it is no message to the agent, in any queue mode of the session (a mode that steers would
//! withdraw the very question that the message answers). Any other text is an ordinary message. Source:
//! `docs/design/sessions.md` §8.4 (reply code).

use shared::model::approval::read_decision_word;

/// Number of characters of a code, without its dash.
const CODE_LETTERS: usize = 8;
/// Number of digits of the arguments' hash on a card's button.
pub const SHOWN_DIGITS: usize = 16;
/// Maximum length of a message that is read as a decision, bytes.
const MAX_BYTES: usize = 512;

/// A decision that was written in a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelReply {
    /// Whether the call is approved or denied.
    pub approve: bool,
    /// Reply code in upper case, without its dash.
    pub code: String,
    /// Beginning of the hash of the arguments that the person was shown, if a card's button contains it.
    pub shown: Option<String>,
    /// Text that the person wrote after the code.
    pub note: Option<String>,
}

/// Returns the decision in `text`, if it is one.
#[must_use]
pub fn read(text: &str) -> Option<ChannelReply> {
    let text = text.trim();
    // A long text is a message that happens to start with the word.
    if text.len() > MAX_BYTES {
        return None;
    }

    let mut words = text.split_whitespace();
    let approve = read_decision_word(words.next()?)?;

    let code = words.next()?.to_ascii_uppercase();
    let code = match code.split_once('-') {
        Some((first, rest)) if first.len() == CODE_LETTERS / 2 => format!("{first}{rest}"),
        Some(_) => return None,
        None => code,
    };

    // The letters that a reader can confuse with digits are not used in codes.
    let is_letter = |letter: char| letter.is_ascii_digit() || (letter.is_ascii_uppercase() && !"ILOU".contains(letter));
    if code.len() != CODE_LETTERS || !code.chars().all(is_letter) {
        return None;
    }

    // A card's button adds the hash of the arguments that it shows.
    let mut words = words.peekable();
    let shown = words
        .peek()
        .and_then(|word| word.strip_prefix('#'))
        .filter(|digits| digits.len() == SHOWN_DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit()));

    let shown = shown.map(str::to_ascii_lowercase);
    if shown.is_some() {
        words.next();
    }

    let note = words.collect::<Vec<_>>().join(" ");
    Some(ChannelReply {
        approve,
        code,
        shown,
        note: Some(note).filter(|note| !note.is_empty()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_is_said_word_for_word() {
        let heard = |text: &str| read(text).map(|heard| (heard.approve, heard.code, heard.note));
        let code = "K7Q2M9PX".to_owned();
        assert_eq!(heard("approve K7Q2-M9PX"), Some((true, code.clone(), None)));
        assert_eq!(
            heard(" Deny k7q2m9px  too much "),
            Some((false, code.clone(), Some("too much".to_owned())))
        );
        assert_eq!(heard("/reject K7Q2-M9PX"), Some((false, code.clone(), None)));
        assert_eq!(
            heard("approve K7Q2-M9PX #9f3c2a1b4d5e6f70 fine"),
            Some((true, code, Some("fine".to_owned())))
        );

        let shown = |text: &str| read(text).and_then(|heard| heard.shown);
        let button = shown("approve K7Q2-M9PX #9F3c2a1b4d5e6f70");
        assert_eq!(button.as_deref(), Some("9f3c2a1b4d5e6f70"), "a button's");
        assert_eq!(shown("approve K7Q2-M9PX #1"), None, "a note");

        for ordinary in [
            "approve",
            "please approve K7Q2-M9PX",
            "approve K7Q2-M9P",
            "approve K7-Q2M9PX",
            "deny absolute",
            "",
        ] {
            assert_eq!(heard(ordinary), None, "{ordinary}");
        }
    }
}
