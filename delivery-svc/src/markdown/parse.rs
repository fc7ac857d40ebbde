//! Markdown → [`Document`]. *Pure.*
//!
//! CommonMark with tables, task lists and strikethrough of GitHub. HTML stays text, except that `<br>` ends a line. A
//! picture is a link to it. A link that clients cannot open (a relative path) shows its target behind its text.

mod builder;

use std::borrow::Cow;

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, LinkType, Options, Parser, Tag, TagEnd};

use self::builder::DocumentBuilder;
use super::document::{Block, BlockKind, Document, Marker, Style};
use super::url::urls_in;

/// Maximum size of a text that is read as Markdown, in bytes; a larger one is plain text. No message on the bus is as
/// large.
pub const MAX_SOURCE_BYTES: usize = 1024 * 1024;

/// Maximum number of times that a text is read to find emphasis in URLs.
const MAX_PROTECTIONS: usize = 8;

/// Parses `source`. A text without anything to see, for example one of link definitions alone, is taken as plain text.
#[must_use]
pub fn parse(source: &str) -> Document {
    if source.len() > MAX_SOURCE_BYTES {
        return plain_document(source);
    }

    let protected = protect_urls(source);
    let mut builder = DocumentBuilder::default();
    for event in Parser::new_ext(&protected, options()) {
        apply_event(&mut builder, event);
    }

    let document = builder.finish();
    if document.blocks.is_empty() {
        return plain_document(source);
    }
    document
}

fn options() -> Options {
    Options::ENABLE_TABLES | Options::ENABLE_TASKLISTS | Options::ENABLE_STRIKETHROUGH
}

/// Returns `source` with backslashes in the URLs that emphasis would tear: a URL is to stay whole. An escape can make
/// other marks emphasis, so it is done again, but not for ever.
fn protect_urls(source: &str) -> Cow<'_, str> {
    let mut protected = Cow::Borrowed(source);
    for _ in 0..MAX_PROTECTIONS {
        let places = emphasis_in_urls(&protected);
        if places.is_empty() {
            break;
        }

        let mut escaped = String::with_capacity(protected.len() + places.len());
        let mut from = 0;
        for at in places {
            escaped.push_str(&protected[from..at]);
            escaped.push('\\');
            from = at;
        }
        escaped.push_str(&protected[from..]);
        protected = Cow::Owned(escaped);
    }

    protected
}

/// Returns the places of the marks in those URLs of `source` in which emphasis begins or ends, in order.
fn emphasis_in_urls(source: &str) -> Vec<usize> {
    let mut urls = urls_in(source);
    urls.retain(|url| source[url.clone()].contains(['*', '_', '~']));
    if urls.is_empty() {
        return Vec::new();
    }

    let url_at = |at: usize| {
        let before = urls.partition_point(|url| url.start <= at);
        before.checked_sub(1).filter(|index| urls[*index].contains(&at))
    };
    let mut torn = vec![false; urls.len()];
    for (event, range) in Parser::new_ext(source, options()).into_offset_iter() {
        let Event::Start(Tag::Emphasis | Tag::Strong | Tag::Strikethrough) = event else {
            continue;
        };
        // Two marks at most begin, and end, one emphasis.
        let last = range.end.saturating_sub(1);
        for at in [range.start, range.start + 1, last.saturating_sub(1), last] {
            if let Some(index) = url_at(at) {
                torn[index] = true;
            }
        }
    }

    let torn = urls.into_iter().zip(torn).filter(|(_, is_torn)| *is_torn);
    let bytes = source.as_bytes();
    let is_bare = |at: &usize| matches!(bytes[*at], b'*' | b'_' | b'~') && bytes[*at - 1] != b'\\';
    torn.flat_map(|(url, _)| url.filter(is_bare)).collect()
}

fn plain_document(source: &str) -> Document {
    let text = source.trim().to_owned();
    let blocks = if text.is_empty() {
        Vec::new()
    } else {
        vec![Block {
            kind: BlockKind::Paragraph,
            containers: Vec::new(),
            is_tight: false,
            text,
            spans: Vec::new(),
        }]
    };
    Document { blocks }
}

fn apply_event(builder: &mut DocumentBuilder, event: Event<'_>) {
    match event {
        Event::Start(tag) => start_tag(builder, tag),
        Event::End(tag) => end_tag(builder, tag),
        Event::Text(text) => builder.push_text(&text),
        Event::Code(text) => builder.push_code(&text),
        Event::InlineHtml(html) if is_line_break(&html) => builder.push_text("\n"),
        Event::Html(html) | Event::InlineHtml(html) => builder.push_text(&html),
        Event::SoftBreak | Event::HardBreak => builder.push_text("\n"),
        Event::Rule => builder.push_rule(),
        Event::TaskListMarker(is_done) => builder.mark_item(Marker::Task(is_done)),
        // These are not switched on.
        Event::InlineMath(text) | Event::DisplayMath(text) | Event::FootnoteReference(text) => builder.push_text(&text),
    }
}

fn is_line_break(html: &str) -> bool {
    let name = html.trim_start_matches('<').trim_end_matches('>').trim_end_matches('/');
    name.trim().eq_ignore_ascii_case("br")
}

fn start_tag(builder: &mut DocumentBuilder, tag: Tag<'_>) {
    match tag {
        Tag::Paragraph | Tag::HtmlBlock => builder.begin_block(BlockKind::Paragraph),
        Tag::Heading { level, .. } => builder.begin_block(BlockKind::Heading(heading_level(level))),
        Tag::CodeBlock(kind) => {
            let language = match kind {
                CodeBlockKind::Fenced(info) => language_of(&info),
                CodeBlockKind::Indented => None,
            };
            builder.begin_block(BlockKind::Code { language });
        }
        Tag::BlockQuote(_) => builder.begin_quote(),
        Tag::List(first) => builder.begin_list(first),
        Tag::Item => builder.begin_item(),
        Tag::Table(alignments) => builder.begin_table(alignments),
        Tag::TableHead | Tag::TableRow => builder.begin_row(),
        Tag::TableCell => builder.begin_cell(),
        Tag::Strong => builder.begin_style(Style::Bold),
        Tag::Emphasis => builder.begin_style(Style::Italic),
        Tag::Strikethrough => builder.begin_style(Style::Strike),
        // A reader sees the address alone; clients recognise it.
        Tag::Link {
            link_type: LinkType::Email,
            ..
        } => builder.begin_link(""),
        Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => builder.begin_link(&dest_url),
        // These are not switched on.
        Tag::FootnoteDefinition(_)
        | Tag::DefinitionList
        | Tag::DefinitionListTitle
        | Tag::DefinitionListDefinition
        | Tag::MetadataBlock(_)
        | Tag::Superscript
        | Tag::Subscript => {}
    }
}

fn end_tag(builder: &mut DocumentBuilder, tag: TagEnd) {
    match tag {
        TagEnd::Paragraph | TagEnd::HtmlBlock | TagEnd::Heading(_) | TagEnd::CodeBlock => builder.end_block(),
        TagEnd::BlockQuote(_) | TagEnd::Item => builder.end_container(),
        TagEnd::List(_) => builder.end_list(),
        TagEnd::Table => builder.end_table(),
        TagEnd::Strong | TagEnd::Emphasis | TagEnd::Strikethrough => builder.end_style(),
        TagEnd::Link | TagEnd::Image => builder.end_link(),
        TagEnd::TableHead
        | TagEnd::TableRow
        | TagEnd::TableCell
        | TagEnd::FootnoteDefinition
        | TagEnd::DefinitionList
        | TagEnd::DefinitionListTitle
        | TagEnd::DefinitionListDefinition
        | TagEnd::MetadataBlock(_)
        | TagEnd::Superscript
        | TagEnd::Subscript => {}
    }
}

const fn heading_level(level: HeadingLevel) -> u8 {
    match level {
        HeadingLevel::H1 => 1,
        HeadingLevel::H2 => 2,
        HeadingLevel::H3 => 3,
        HeadingLevel::H4 => 4,
        HeadingLevel::H5 => 5,
        HeadingLevel::H6 => 6,
    }
}

/// Returns the language that the info string of a fence names. Other characters would end the platforms' own markup.
fn language_of(info: &str) -> Option<String> {
    let word = info.split([' ', ',', '\t', '{']).next().unwrap_or_default();
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_+#.-".contains(c);
    (!word.is_empty() && word.len() <= 32 && word.chars().all(is_name)).then(|| word.to_owned())
}
