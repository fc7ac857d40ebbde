//! Signal: plain text, and styles as ranges beside it. *Pure.*
//!
//! A body has at most 2 KiB of UTF-8 *bytes*: official clients drop larger ones without a word, although receipts come.
//! Styles are `start:length:STYLE` in UTF-16 units, as `textStyles` of signal-cli's JSON-RPC takes them.
//! Source: <https://github.com/AsamK/signal-cli/blob/master/man/signal-cli.1.adoc> (`--text-style`),
//! <https://github.com/mautrix/signal/issues/666>.

use super::document::Style;
use super::syntax::Syntax;
use crate::chunk::{ChunkLimit, LengthUnit};

/// Maximum size of a message.
pub const MESSAGE: ChunkLimit = ChunkLimit {
    max: 2_048,
    unit: LengthUnit::Bytes,
};

/// A style on a range of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StyleRange {
    /// Start of the range, in UTF-16 units.
    pub start: usize,
    /// Length of the range, in UTF-16 units.
    pub length: usize,
    /// Name of the style: `BOLD`, `ITALIC`, `STRIKETHROUGH` or `MONOSPACE`.
    pub style: &'static str,
}

impl std::fmt::Display for StyleRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}:{}", self.start, self.length, self.style)
    }
}

pub(crate) struct SignalText;

impl Syntax for SignalText {
    fn has_ranges(&self) -> bool {
        true
    }

    fn nests_quotes(&self) -> bool {
        true
    }
}

/// Name of preformatted text's style.
pub(crate) const MONOSPACE: &str = "MONOSPACE";

/// Returns the style that is named `name`; `None` if there is none.
pub(crate) fn known_style(name: &str) -> Option<&'static str> {
    ["BOLD", "ITALIC", "STRIKETHROUGH", MONOSPACE]
        .into_iter()
        .find(|known| *known == name)
}

/// Returns Signal's name of `style`; `None` for links, which clients recognise.
pub(crate) const fn style_name(style: &Style) -> Option<&'static str> {
    match style {
        Style::Bold => Some("BOLD"),
        Style::Italic => Some("ITALIC"),
        Style::Strike => Some("STRIKETHROUGH"),
        Style::Code => Some(MONOSPACE),
        Style::BareLink | Style::Link { .. } => None,
    }
}
