//! The strict parser for the wire form of an intent in a model's answer. *Pure.* Source: `docs/design/schedules.md`
//! §3.1.
//!
//! A `<hook-intent>…</hook-intent>` element must be alone in its block (lines between blank lines), and its text must
//! be one JSON object: an [`IntentWish`]. If the block contains anything else (attributes, comments, code fences,
//! prose, a second root, unknown or duplicate fields), the whole element is refused with a reason. Admitted or
//! refused, the element is removed from the text that the user reads.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize as DeserializeDerive, Serialize};
use serde_json::{Map, Value};

use super::{IntentWish, MAX_PARAMETER_BYTES};

/// Maximum number of elements in one answer; further ones are refused.
pub const MAX_ELEMENTS: usize = 8;
/// Maximum length of an element's text, in bytes.
pub const MAX_ELEMENT_BYTES: usize = 2 * MAX_PARAMETER_BYTES;
/// Maximum length of the excerpt of a refused element that the agent receives, in bytes.
const MAX_EXCERPT_BYTES: usize = 160;

/// Start of an element. No further name character may follow.
pub const NAME: &str = "<hook-intent";
const OPENING: &str = "<hook-intent>";
/// End of an element.
pub const CLOSING: &str = "</hook-intent>";
const FENCES: [&str; 2] = ["```", "~~~"];

/// The reason for refusing an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, DeserializeDerive)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// The opening tag is not exactly `<hook-intent>`.
    Attributes,
    /// The block has no closing tag, or only a closing tag.
    Unclosed,
    /// The element is in a code fence, or contains one.
    CodeFence,
    /// The element contains a comment.
    Comment,
    /// The block contains other text.
    Prose,
    /// The block contains more than one element, or the element more than one value.
    SecondRoot,
    /// The element's text is not a JSON object.
    NotAnObject,
    /// A name occurs twice in an object.
    DuplicateField,
    /// The object is not an [`IntentWish`].
    BadFields,
    /// The element is too long, or the answer has too many.
    TooMuch,
}

/// A refused element.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, DeserializeDerive)]
pub struct ExtractRefusal {
    /// Typed reason for the refusal.
    pub code: RefusalCode,
    /// Reason in words, for the agent.
    pub why: String,
    /// Beginning of the element, at most 160 bytes.
    pub excerpt: String,
}

impl fmt::Display for ExtractRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (`{}`)", self.why, self.excerpt)
    }
}

/// A model's answer without its elements, and the elements' content.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExtractedIntents {
    /// Text that the user reads.
    pub text: String,
    /// Requested intents, in order.
    pub proposals: Vec<IntentWish>,
    /// Refused elements, in order.
    pub refusals: Vec<ExtractRefusal>,
}

/// Extracts the elements of `answer`. An answer without any is returned unchanged.
///
/// ```
/// use shared::model::intent::extract::extract_wishes;
///
/// let plain = extract_wishes("See you tomorrow.");
/// assert_eq!(plain.text, "See you tomorrow.");
/// assert!(plain.proposals.is_empty() && plain.refusals.is_empty());
/// ```
#[must_use]
pub fn extract_wishes(answer: &str) -> ExtractedIntents {
    // Most answers have no intent, and need no search for blocks.
    if !answer.contains(NAME) && !answer.contains(CLOSING) {
        return ExtractedIntents {
            text: answer.to_owned(),
            ..ExtractedIntents::default()
        };
    }

    let mut found = ExtractedIntents::default();
    let mut fenced = false;

    let mut elements = 0;
    for block in split_blocks(answer) {
        // Fences are counted block by block, because an intent inside of code is an example.
        let fences = block.lines().filter(|line| is_fence(line)).count();
        if !block.contains(NAME) && !block.contains(CLOSING) {
            found.text.push_str(block);
            fenced ^= fences % 2 == 1;
            continue;
        }

        elements += 1;
        let wish = if elements > MAX_ELEMENTS {
            // Elements beyond the limit and elements in code are refused without being parsed.
            Err((RefusalCode::TooMuch, format!("an answer holds at most {MAX_ELEMENTS}")))
        } else if fenced || fences > 0 {
            Err((RefusalCode::CodeFence, "the element is in a code fence".to_owned()))
        } else {
            read(block)
        };

        match wish {
            Ok(wish) => found.proposals.push(wish),
            Err((code, why)) => {
                found.text.push_str(&without_elements(block));
                found.refusals.push(ExtractRefusal {
                    code,
                    why,
                    excerpt: block_excerpt(block),
                });
            }
        }

        fenced ^= fences % 2 == 1;
    }

    found.text = found.text.trim().to_owned();
    found
}

fn is_fence(line: &str) -> bool {
    FENCES.iter().any(|fence| line.trim_start().starts_with(fence))
}

/// Splits `text` into blocks: runs of nonblank lines, each with the blank lines after it. No text is lost. A blank
/// line within an element does not end its block.
fn split_blocks(text: &str) -> Vec<&str> {
    let mut blocks = Vec::new();
    let (mut begun, mut at, mut blank, mut open) = (0, 0, false, false);
    for line in text.split_inclusive('\n') {
        let is_blank = line.trim().is_empty();
        if blank && !is_blank && !open {
            blocks.push(&text[begun..at]);
            begun = at;
        }

        blank = is_blank;
        let last = |what: &str| line.rfind(what);
        // The last tag of the line decides whether an element is still open.
        open = match (last(NAME), last(CLOSING)) {
            (Some(opened), Some(closed)) => opened > closed,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => open,
        };

        at += line.len();
    }

    if begun < text.len() {
        blocks.push(&text[begun..]);
    }

    blocks
}

/// Parses the wish that must be the whole of `block`.
fn read(block: &str) -> Result<IntentWish, (RefusalCode, String)> {
    // Strict, because the text is written by a model: a doubtful element must not become an action.
    let refuse = |code, why: &str| Err((code, why.to_owned()));
    let block = block.trim();
    let opened = block.matches(NAME).count();

    let closed = block.matches(CLOSING).count();
    if opened > 1 || closed > 1 {
        return refuse(RefusalCode::SecondRoot, "a block holds one element");
    }

    if opened == 0 || closed == 0 {
        return refuse(RefusalCode::Unclosed, "the element is not opened and closed");
    }

    if block.contains("<!--") || block.contains("-->") {
        return refuse(RefusalCode::Comment, "the block contains a comment");
    }

    let Some(from) = block.find(OPENING) else {
        return refuse(RefusalCode::Attributes, "the opening tag takes no attributes");
    };
    let Some(to) = block.find(CLOSING).filter(|to| *to >= from + OPENING.len()) else {
        return refuse(RefusalCode::Unclosed, "it is closed before it is opened");
    };

    if from > 0 || to + CLOSING.len() < block.len() {
        return refuse(RefusalCode::Prose, "the block contains other text");
    }

    let text = &block[OPENING.len()..to];
    if text.len() > MAX_ELEMENT_BYTES {
        return Err((
            RefusalCode::TooMuch,
            format!("{} bytes, at most {MAX_ELEMENT_BYTES} are read", text.len()),
        ));
    }

    parse(text.trim())
}

fn parse(text: &str) -> Result<IntentWish, (RefusalCode, String)> {
    if !text.starts_with('{') {
        let why = "its text is not a JSON object and nothing else".to_owned();
        return Err((RefusalCode::NotAnObject, why));
    }

    let value = serde_json::from_str::<StrictBlock>(text).map_err(|error| {
        let why = error.to_string();
        // serde passes the visitor's error on as text only.
        let code = if why.contains(TWICE) {
            RefusalCode::DuplicateField
        } else if why.starts_with("trailing characters") {
            RefusalCode::SecondRoot
        } else {
            RefusalCode::NotAnObject
        };

        (code, why)
    })?;

    serde_json::from_value(value.0).map_err(|error| (RefusalCode::BadFields, error.to_string()))
}

/// Returns `block` without text that looks like an element, complete or not, and without fences that would be left
/// empty.
fn without_elements(block: &str) -> String {
    let mut rest = block;
    let mut kept = String::new();
    while let Some(from) = rest.find(NAME) {
        kept.push_str(&rest[..from]);
        // An element without an end takes the rest of the block with it.
        rest = rest[from..]
            .find(CLOSING)
            .map_or("", |to| &rest[from + to + CLOSING.len()..]);
    }

    kept.push_str(rest);
    let kept = kept.replace(CLOSING, "");
    if kept.lines().all(|line| line.trim().is_empty() || is_fence(line)) {
        return String::new();
    }

    kept
}

fn block_excerpt(block: &str) -> String {
    let from = block.find(NAME).or_else(|| block.find(CLOSING)).unwrap_or(0);
    let mut to = block.len().min(from + MAX_EXCERPT_BYTES);
    while !block.is_char_boundary(to) {
        to -= 1;
    }
    block[from..to].trim().to_owned()
}

/// Marker in [`StrictBlock`]'s error message for a duplicate name.
const TWICE: &str = "is given twice";

/// A JSON value in which no object, at any depth, has the same name twice.
struct StrictBlock(Value);

impl<'de> Deserialize<'de> for StrictBlock {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(StrictVisitor).map(Self)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(StrictBlock(value)) = from.next_element()? {
            list.push(value);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((name, StrictBlock(value))) = from.next_entry::<String, StrictBlock>()? {
            if object.contains_key(&name) {
                return Err(A::Error::custom(format!("`{name}` {TWICE}")));
            }
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests;
