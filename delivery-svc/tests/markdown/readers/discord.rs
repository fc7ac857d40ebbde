//! Discord's Markdown, as far as it is written here: a mark that begins nothing and is not escaped is a fault.

use super::url_length;

/// Returns what Discord shows.
pub(crate) fn read(text: &str) -> String {
    let mut seen = String::new();
    let mut fence: Option<usize> = None;
    for line in text.split('\n') {
        match &mut fence {
            Some(lines) if line == "```" => {
                assert!(*lines > 0, "an empty fence in {text:?}");
                fence = None;
            }
            Some(lines) => {
                assert!(!line.contains("```"), "a fence ends early in {text:?}");
                *lines += 1;
                seen.push_str(line);
                seen.push('\n');
            }
            None => match line.strip_prefix("```") {
                Some(language) => {
                    let is_name = |c: char| c.is_ascii_alphanumeric() || "_+#.-".contains(c);
                    assert!(language.chars().all(is_name), "{line:?}");
                    fence = Some(0);
                }
                None => {
                    read_line(line, text, &mut seen);
                    seen.push('\n');
                }
            },
        }
    }
    assert!(fence.is_none(), "a fence has no end in {text:?}");
    seen
}

fn read_line(mut line: &str, whole: &str, seen: &mut String) {
    while let Some(rest) = line.strip_prefix("> ").or((line == ">").then_some("")) {
        line = rest.trim_start_matches(' ');
    }
    for heading in ["# ", "## ", "### "] {
        line = line.strip_prefix(heading).unwrap_or(line);
    }
    let chars: Vec<char> = line.chars().collect();
    let is_free = chars.first().is_none_or(|first| !"#>+".contains(*first)) && !line.starts_with("-#");
    assert!(is_free, "{line:?} begins with markup in {whole:?}");
    let line = Line { chars: &chars, whole };
    line.read(seen);
}

/// A line, or what is in a style of it.
#[derive(Clone, Copy)]
struct Line<'a> {
    chars: &'a [char],
    whole: &'a str,
}

impl Line<'_> {
    fn read(self, seen: &mut String) {
        let mut at = 0;
        while at < self.chars.len() {
            at += self.read_at(at, seen);
        }
    }

    fn is_word(self, index: Option<usize>) -> bool {
        index
            .and_then(|index| self.chars.get(index))
            .is_some_and(|c| c.is_alphanumeric())
    }

    /// Reads what begins at `at`; returns its length.
    fn read_at(self, at: usize, seen: &mut String) -> usize {
        let Self { chars, whole } = self;
        let rest = &chars[at..];
        match rest[0] {
            '\\' => {
                seen.push(*rest.get(1).unwrap_or_else(|| panic!("a last backslash in {whole:?}")));
                2
            }
            '`' => {
                let end = find(&rest[1..], '`', whole);
                seen.extend(&rest[1..=end]);
                end + 2
            }
            '*' | '~' => {
                assert_eq!(rest.get(1), Some(&rest[0]), "a single {} in {whole:?}", rest[0]);
                self.read_style(at, &[rest[0], rest[0]], seen)
            }
            '_' if self.is_word(at.checked_sub(1)) && self.is_word(Some(at + 1)) => {
                seen.push('_');
                1
            }
            '_' => {
                let is_free = !self.is_word(at.checked_sub(1));
                assert!(is_free, "an italic that Discord does not show: {whole:?}");
                self.read_style(at, &['_'], seen)
            }
            '[' => self.read_link(at, seen),
            '<' => {
                let end = find(rest, '>', whole);
                let is_url = url_length(&rest[1..end]) > 0 && !rest[..end].iter().any(|c| c.is_whitespace());
                assert!(is_url, "<> is no URL in {whole:?}");
                seen.extend(&rest[1..end]);
                end + 1
            }
            ']' | '|' => panic!("a bare {} in {whole:?}", rest[0]),
            other => {
                let name: String = rest[1..].iter().take(8).collect();
                let calls = other == '@' && (name.starts_with("here") || name == "everyone");
                assert!(!calls, "everybody is called by {whole:?}");
                seen.push(other);
                1
            }
        }
    }

    fn read_style(self, at: usize, mark: &[char], seen: &mut String) -> usize {
        let inner = &self.chars[at + mark.len()..];
        let end = end_of(inner, mark, self.whole);
        let is_tight = end > 0 && !inner[0].is_whitespace() && !inner[end - 1].is_whitespace();
        assert!(is_tight, "a mark beside a blank in {:?}", self.whole);
        Line {
            chars: &inner[..end],
            ..self
        }
        .read(seen);
        end + 2 * mark.len()
    }

    fn read_link(self, at: usize, seen: &mut String) -> usize {
        let inner = &self.chars[at + 1..];
        let end = end_of(inner, &[']', '('], self.whole);
        Line {
            chars: &inner[..end],
            ..self
        }
        .read(seen);
        let target = &inner[end + 2..];
        let length = find(target, ')', self.whole);
        assert!(target[..length].iter().all(|c| !c.is_whitespace()), "{:?}", self.whole);
        1 + end + 2 + length + 1
    }
}

fn find(chars: &[char], wanted: char, whole: &str) -> usize {
    let found = chars.iter().position(|c| *c == wanted);
    found.unwrap_or_else(|| panic!("no {wanted} in {whole:?}"))
}

/// Returns the index of the next `mark` that is neither escaped nor in code, in a URL or in a word.
fn end_of(chars: &[char], mark: &[char], whole: &str) -> usize {
    let is_word = |index: usize| chars.get(index).is_some_and(|c| c.is_alphanumeric());
    let mut at = 0;
    while at < chars.len() {
        let in_word = mark == ['_'] && at > 0 && is_word(at - 1) && is_word(at + 1);
        at += match chars[at] {
            '\\' => 2,
            '<' => 1 + find(&chars[at..], '>', whole),
            '`' => 2 + find(&chars[at + 1..], '`', whole),
            _ if chars[at..].starts_with(mark) && !in_word => return at,
            _ => 1,
        };
    }
    panic!("{mark:?} has no end in {whole:?}")
}
