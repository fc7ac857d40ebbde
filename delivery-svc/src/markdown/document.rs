//! The intermediate form of a Markdown text: a sequence of blocks, each with its text and the styles in it. *Pure.*
//!
//! The tree of the source is flat here: a block names the quotes and list items that it lies in. So a text can be cut
//! between any two blocks, and inside each of them.

use std::ops::Range;

/// Maximum number of quotes and list items around a block; deeper ones are left out, their text is not.
pub const MAX_CONTAINERS: usize = 8;

/// Maximum number of styles on one place of a text; further ones are left out.
pub const MAX_STYLES: usize = 8;

/// A Markdown text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Document {
    /// Blocks in the order of the source. Only that of an empty list item has no text.
    pub blocks: Vec<Block>,
}

/// A block of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Block {
    /// Kind of the block.
    pub kind: BlockKind,
    /// Quotes and list items around the block, from outside to inside, at most [`MAX_CONTAINERS`].
    pub containers: Vec<Container>,
    /// Whether no blank line separates it from the block before.
    pub is_tight: bool,
    /// Text as a reader sees it; lines are separated by `\n`.
    pub text: String,
    /// Styles of the text, properly nested, sorted by start; outer ones come before inner ones.
    pub spans: Vec<Span>,
}

/// The kind of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockKind {
    /// Running text.
    Paragraph,
    /// Heading of a level from 1 to 6.
    Heading(u8),
    /// Preformatted text; a table is one, with aligned columns.
    Code {
        /// Name of the language: letters, digits and `_+#.-`, at most 32 bytes.
        language: Option<String>,
    },
    /// Line between two sections; its text is [`RULE`].
    Rule,
}

/// Text of a [`BlockKind::Rule`].
pub const RULE: &str = "———";

/// A quote or list item around a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// Quote.
    Quote {
        /// Number of the quote in the document.
        id: u32,
    },
    /// List item.
    Item {
        /// Number of the list in the document.
        list: u32,
        /// Sign before the item.
        marker: Marker,
        /// Whether the block is the item's first.
        is_first: bool,
    },
}

/// The sign before a list item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    /// Item of a list without numbers.
    Bullet,
    /// Number of an item, counted from the list's first one.
    Number(u64),
    /// Item of a task list, and whether it is done.
    Task(bool),
}

/// A style on a range of a block's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Range in bytes, never empty.
    pub range: Range<usize>,
    /// Style of the range.
    pub style: Style,
}

/// A style of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Style {
    /// Bold.
    Bold,
    /// Italic.
    Italic,
    /// Struck through.
    Strike,
    /// Inline code.
    Code,
    /// Link whose text is the URL itself.
    BareLink,
    /// Link with a text of its own.
    Link {
        /// URL with a scheme that clients open, without white space and `<>"`.
        url: String,
    },
}

impl Style {
    /// Returns whether the style is a link of either kind.
    #[must_use]
    pub const fn is_link(&self) -> bool {
        match self {
            Self::BareLink | Self::Link { .. } => true,
            Self::Bold | Self::Italic | Self::Strike | Self::Code => false,
        }
    }
}
