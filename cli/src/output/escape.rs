//! Escaping of characters that control a terminal: text that commands print may be a stranger's. *Pure.*

/// Returns at most `most` characters of the first line of `text`, [escaped](escape_controls).
#[must_use]
pub fn brief_line(text: &str, most: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= most && line.len() == text.len() {
        return escape_controls(line);
    }
    let cut: String = line.chars().take(most.saturating_sub(1)).chain(['…']).collect();
    escape_controls(&cut)
}

/// Returns whether `c` can control a terminal, or reverse the direction of the text beside it.
pub(super) fn steers_terminal(c: char) -> bool {
    let turns_round =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns_round
}

/// Returns `text` as it is written to a terminal: every character that [`steers_terminal`] is escaped except line breaks
/// and tabs. [`escape_controls`] escapes these too, for text that must stay on its line.
pub(super) fn harmless(text: String) -> String {
    let is_bad = |c: char| steers_terminal(c) && !matches!(c, '\n' | '\t');
    if !text.contains(is_bad) {
        return text;
    }

    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_bad(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// Returns `text` with its control characters escaped, so that a stranger's text cannot control the terminal.
#[must_use]
pub fn escape_controls(text: &str) -> String {
    let escaped = text.chars().map(|c| {
        if steers_terminal(c) {
            c.escape_default().to_string()
        } else {
            c.to_string()
        }
    });
    escaped.collect()
}

/// Returns every line of `text`, [escaped](escape_controls), but with its tabs: for a source, or the place of an error.
#[must_use]
pub fn plain_lines(text: &str) -> String {
    let line = |line: &str| line.split('\t').map(escape_controls).collect::<Vec<_>>().join("\t");
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns `text`, which is JSON, with the characters escaped that [`escape_controls`] escapes and JSON leaves as they
/// are. They occur only within JSON strings, so a parser reads the same value.
pub(super) fn plain_json(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if steers_terminal(c) && !matches!(c, '\n' | '\t' | '\r') {
            out.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_and_escaped() {
        assert_eq!(brief_line("one\ntwo", 10), "one…");
        assert_eq!(brief_line("abcdef", 4), "abc…");
        assert_eq!(brief_line("abcd", 4), "abcd");
        assert_eq!(brief_line("a\u{1b}b\nc", 4), "a\\u{1b}b…");
        assert_eq!(
            escape_controls("é\u{1b}[2J\u{9b}\u{202e}ok"),
            "é\\u{1b}[2J\\u{9b}\\u{202e}ok"
        );
    }

    #[test]
    fn nothing_that_is_written_steers_the_terminal() {
        let check = |text: &str, expected: &str| assert_eq!(harmless(text.to_owned()), expected);
        check("a\tb\nc é 日本 🙂\n", "a\tb\nc é 日本 🙂\n");
        check(
            "\u{1b}[2J\u{9b}31m\r\u{8}\u{7}\0",
            "\\u{1b}[2J\\u{9b}31m\\r\\u{8}\\u{7}\\u{0}",
        );
        check(
            "\u{202e}evil\u{2066}\u{61c}\u{200f}",
            "\\u{202e}evil\\u{2066}\\u{61c}\\u{200f}",
        );

        // Text that was escaped before stays as it is.
        let once = escape_controls("\u{1b}[2J");
        check(&once, &once);
        for c in (0..=0x2100).filter_map(char::from_u32) {
            let written = harmless(c.to_string());
            assert!(
                !written.contains(|c| steers_terminal(c) && c != '\n' && c != '\t'),
                "{c:?}"
            );
        }
    }

    #[test]
    fn several_lines_and_json_cannot_steer_the_terminal_either() {
        let source = "if (x) {\n\treturn \"\u{1b}]0;mine\u{7}\";\r\n}";
        assert_eq!(plain_lines(source), "if (x) {\n\treturn \"\\u{1b}]0;mine\\u{7}\";\n}");
        assert_eq!(plain_lines("over\rwritten"), "over\\rwritten");

        let value = serde_json::json!({"text": "\u{1b}[2J\u{7f}\u{9b}31m\u{202e}é\n"});
        let text = super::super::json_text(&value).unwrap();
        assert!(!text.chars().any(|c| steers_terminal(c) && c != '\n'), "{text:?}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
