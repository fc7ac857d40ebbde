//! Cuts a long result without splitting a character. *Pure.* Source: seed 002 §4.

use serde_json::Value;

/// Returns `result` cut to `max_chars` characters and marked; `None` if it is not longer. Other values than text are
/// cut as their JSON.
#[must_use]
pub fn truncate_value(result: &Value, max_chars: usize) -> Option<Value> {
    let rendered;
    let text = match result {
        Value::String(text) => text.as_str(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            rendered = result.to_string();
            rendered.as_str()
        }
    };

    // A text has at least as many bytes as characters.
    if text.len() <= max_chars {
        return None;
    }

    let all = text.chars().count();
    if all <= max_chars {
        return None;
    }

    let (at, _) = text.char_indices().nth(max_chars)?;
    let kept = whole_prefix(text, at);
    let left = kept.chars().count();

    Some(Value::from(format!("{kept}… [cut: {left} of {all} characters]")))
}

/// Returns the beginning of `text` up to `at`, without splitting a character as a reader sees it: marks, joiners and
/// skin tones stay with the character they belong to, or go with it.
fn whole_prefix(text: &str, at: usize) -> &str {
    let mut at = at;
    while let (Some(before), Some(after)) = (text[..at].chars().next_back(), text[at..].chars().next()) {
        let flags = || text[..at].chars().rev().take_while(|&c| is_flag_letter(c)).count() % 2 == 1;
        let joined = continues_character(after) || before == JOINER || (is_flag_letter(after) && flags());
        if !joined {
            break;
        }
        at -= before.len_utf8();
    }

    &text[..at]
}

const JOINER: char = '\u{200D}';

/// Returns whether `c` belongs to the character before it.
const fn continues_character(c: char) -> bool {
    matches!(c,
        '\u{0300}'..='\u{036F}' | '\u{0483}'..='\u{0489}' | '\u{0591}'..='\u{05BD}' | '\u{064B}'..='\u{065F}'
        | '\u{0900}'..='\u{0903}' | '\u{093A}'..='\u{094F}' | '\u{0E31}' | '\u{0E34}'..='\u{0E3A}' | '\u{0E47}'..='\u{0E4E}'
        | '\u{1AB0}'..='\u{1AFF}' | '\u{1DC0}'..='\u{1DFF}' | '\u{200C}'..='\u{200D}' | '\u{20D0}'..='\u{20FF}'
        | '\u{3099}'..='\u{309A}' | '\u{FE00}'..='\u{FE0F}' | '\u{FE20}'..='\u{FE2F}' | '\u{1F3FB}'..='\u{1F3FF}'
        | '\u{E0020}'..='\u{E007F}' | '\u{E0100}'..='\u{E01EF}')
}

const fn is_flag_letter(c: char) -> bool {
    matches!(c, '\u{1F1E6}'..='\u{1F1FF}')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(text: &str, max_chars: usize, kept: &str) {
        let all = text.chars().count();
        let left = kept.chars().count();
        let expected = format!("{kept}… [cut: {left} of {all} characters]");
        assert_eq!(truncate_value(&json!(text), max_chars), Some(json!(expected)), "{text}");
    }

    #[test]
    fn a_long_result_is_cut_and_marked() {
        assert_eq!(truncate_value(&json!("x".repeat(8_000)), 8_000), None);
        assert_eq!(
            truncate_value(&json!("ü".repeat(8_000)), 8_000),
            None,
            "characters count, not bytes"
        );
        check(&"x".repeat(8_001), 8_000, &"x".repeat(8_000));
        assert_eq!(truncate_value(&json!({"a": 1}), 7), None);
        assert_eq!(
            truncate_value(&json!({"a": 12}), 7),
            Some(json!("{\"a\":12… [cut: 7 of 8 characters]"))
        );
    }

    #[test]
    fn no_character_is_split() {
        check("e\u{301}e\u{301}", 3, "e\u{301}");
        check("ab\u{1F468}\u{200D}\u{1F469}\u{200D}\u{1F467}!", 4, "ab");
        check("a\u{1F44B}\u{1F3FD}!", 2, "a");
        check("\u{1F1E9}\u{1F1EA}\u{1F1EB}\u{1F1F7}", 3, "\u{1F1E9}\u{1F1EA}");
        check("日本語です", 2, "日本");
    }
}
