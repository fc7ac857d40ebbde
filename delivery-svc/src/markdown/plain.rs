//! Plain text. *Pure.*
//!
//! The text without any markup: signs before list items, `> ` before quoted lines, the URL of a link
//! behind its text. It is also sent if a platform refuses the markup of a part.

use super::syntax::Syntax;

pub(crate) struct PlainText;

impl Syntax for PlainText {
    fn is_markup(&self) -> bool {
        false
    }

    fn bullet(&self) -> &'static str {
        "-"
    }

    fn nests_quotes(&self) -> bool {
        true
    }
}
