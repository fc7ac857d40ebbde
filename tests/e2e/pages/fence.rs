//! The fenced blocks of a page, and what their attributes ask for. *Pure.*

/// Attributes that a block may have, and the languages that may have them; every block may say `norun`.
const ATTRIBUTES: [(&str, &[&str]); 8] = [
    ("up", &["sh"]),
    ("stays", &["sh"]),
    ("file", &["ts", "toml", "yaml"]),
    ("append", &["toml", "yaml"]),
    ("as", &["yaml"]),
    ("output", &["", "json"]),
    ("loads", &["ts"]),
    ("body", &["ts"]),
];
/// Languages that a block may be in. Python is for programs outside of Nexus and is not looked at.
const LANGUAGES: [&str; 7] = ["", "sh", "ts", "toml", "yaml", "json", "python"];

/// A fenced block of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fence {
    /// Line of the opening fence, from one.
    pub line: usize,
    /// The first word behind the fence; empty if there is none.
    pub language: String,
    /// `name="value"` or `name`, in order; the latter has an empty value.
    pub attributes: Vec<(String, String)>,
    /// What stands between the fences.
    pub text: String,
}

impl Fence {
    /// The value of attribute `name`.
    pub(crate) fn attribute(&self, name: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Returns what is wrong with the first line of the block.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        if !LANGUAGES.contains(&self.language.as_str()) {
            faults.push(format!("unknown language `{}`", self.language));
        }

        for (name, value) in &self.attributes {
            let known = ATTRIBUTES.iter().find(|(known, _)| known == name);
            let fits = known.is_some_and(|(_, languages)| languages.contains(&self.language.as_str()));
            if name != "norun" && !fits {
                faults.push(format!("unknown attribute `{name}` of a block `{}`", self.language));
            }

            let is_plain = matches!(name.as_str(), "up" | "output" | "loads" | "body");
            if value.trim().is_empty() != is_plain {
                faults.push(format!(
                    "attribute `{name}` without a value, or with one that it cannot have"
                ));
            }
        }

        let decides = ["norun", "file", "append", "as"];
        if self.language == "yaml" && !decides.iter().any(|name| self.attribute(name).is_some()) {
            faults.push("a block `yaml` says which file it is: `as`, `file`, `append` or `norun`".to_owned());
        }

        faults
    }
}

/// Returns the blocks of `page`, or the line of a block that is not closed or cannot be read.
pub(crate) fn fences(page: &str) -> Result<Vec<Fence>, String> {
    let mut found = Vec::new();
    let mut open: Option<Fence> = None;
    for (index, line) in page.lines().enumerate() {
        if let Some(mut fence) = open.take() {
            if line == "```" {
                found.push(fence);
            } else {
                fence.text.push_str(line);
                fence.text.push('\n');
                open = Some(fence);
            }
        } else if let Some(first) = line.trim_start().strip_prefix("```") {
            let at = index + 1;
            let (language, rest) = first.split_once(' ').unwrap_or((first, ""));
            open = Some(Fence {
                line: at,
                language: language.to_owned(),
                attributes: attributes(rest).ok_or(format!("line {at}: cannot read `{rest}`"))?,
                text: String::new(),
            });
        }
    }

    match open {
        Some(fence) => Err(format!("line {}: the block is not closed", fence.line)),
        None => Ok(found),
    }
}

/// Reads `name="value" name …`; none if it is something else.
fn attributes(text: &str) -> Option<Vec<(String, String)>> {
    let mut rest = text.trim();
    let mut found = Vec::new();
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let (name, behind) = rest.split_at(end);
        let (value, behind) = match behind.strip_prefix("=\"") {
            Some(quoted) => quoted.split_once('"')?,
            None => ("", behind),
        };
        if name.is_empty() || !(behind.is_empty() || behind.starts_with(' ')) {
            return None;
        }

        found.push((name.to_owned(), value.to_owned()));
        rest = behind.trim_start();
    }

    Some(found)
}

/// Returns the first line of `shown` that `printed` does not have in this order. Numbers, times and ids count as equal
/// to each other, `…` stands for any words.
pub(crate) fn missing<'a>(shown: &'a str, printed: &str) -> Option<&'a str> {
    let mut lines = printed.lines().map(words);
    let mut shown = shown.lines().filter(|line| !line.trim().is_empty());
    shown.find(|line| {
        let wanted = words(line);
        !lines.any(|printed| fits(&wanted, &printed))
    })
}

fn fits(wanted: &[String], printed: &[String]) -> bool {
    match wanted.split_first() {
        None => printed.is_empty(),
        Some((first, rest)) if first == "…" => (0..=printed.len()).any(|skip| fits(rest, &printed[skip..])),
        Some((first, rest)) => printed.first() == Some(first) && fits(rest, &printed[1..]),
    }
}

/// The words of a line, with `#` for each number, time or id, whatever its unit.
fn words(line: &str) -> Vec<String> {
    let words = line.split_whitespace().map(|word| match word {
        "s" | "ms" | "us" | "µs" => "ms".to_owned(),
        _ => without_numbers(word),
    });
    words.collect()
}

fn without_numbers(word: &str) -> String {
    let mut made = String::new();
    for run in word.split_inclusive(|c: char| !c.is_alphanumeric()) {
        let body = run.trim_end_matches(|c: char| !c.is_alphanumeric());
        if body.contains(|c: char| c.is_ascii_digit()) {
            made.push('#');
            made.push_str(&run[body.len()..]);
        } else {
            made.push_str(run);
        }
    }

    while made.contains("#.#") || made.contains("#:#") {
        made = made.replace("#.#", "#").replace("#:#", "#");
    }

    made
}

#[test]
fn blocks_are_found_with_their_attributes() {
    let page = "a\n```sh stays=\"it is up\" up\nnexus up\n```\n\n```\nx\n```\n";
    let found = fences(page).expect("a page");
    let stays = ("stays".to_owned(), "it is up".to_owned());
    assert_eq!((found[0].line, found[0].language.as_str()), (2, "sh"));
    assert_eq!(found[0].attributes, [stays, ("up".to_owned(), String::new())]);
    assert_eq!((found[0].text.as_str(), found[1].text.as_str()), ("nexus up\n", "x\n"));
    assert_eq!((found.len(), found[0].faults()), (2, Vec::<String>::new()));
}

#[test]
fn a_block_without_a_reason_or_with_an_unknown_attribute_is_a_fault() {
    for first in [
        "sh norun",
        "sh norun=\"\"",
        "sh norun=\" \"",
        "sh no-run=\"x\"",
        "sh skip=\"x\"",
        "sh skip",
        "sh up=\"x\"",
        "sh file=\"x\"",
        "console",
        "yaml",
        "bash",
        "sh norun=\"x\"up",
    ] {
        let found = fences(&format!("```{first}\nx\n```\n"));
        assert!(
            found.is_err() || !found.as_ref().is_ok_and(|all| all[0].faults().is_empty()),
            "{first}"
        );
    }

    assert!(fences("```sh\nx\n").is_err(), "not closed");
}

#[test]
fn output_is_compared_without_its_numbers() {
    let shown = "+54 ms   0.1 ms hook pears fired: 01M8…  (sequence 6)\n… complete\n";
    let printed = "x\n+1.2 s 12 ms hook pears fired: 01AB…  (sequence 71)\nand is complete\n";
    assert_eq!(missing(shown, printed), None);
    assert_eq!(missing("hook pears", "hook apples\n"), Some("hook pears"));
    assert_eq!(missing("b\na", "a\nb\n"), Some("a"), "in this order");

    let accepted = "{\"accepted\":1,\"ids\":[\"x:a-1\"]}";
    assert_eq!(missing(accepted, "{\"accepted\":2,\"ids\":[\"x:a-17\"]}"), None);
    assert_eq!(missing(accepted, "{\"error\":\"x\"}"), Some(accepted));
}
