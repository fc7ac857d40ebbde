//! HTML of an e-mail: one document a reply, never cut. *Pure.*
//!
//! Lists, quotes and preformatted text are elements; a table is preformatted text with aligned columns, as in the plain
//! text beside it. No style sheet, no picture, no script: a reader sees the text alone.
//! Source: RFC 2046 §5.1.4 (`multipart/alternative`), <https://html.spec.whatwg.org/multipage/grouping-content.html>.

use std::fmt::Write as _;

use super::document::{Block, BlockKind, Container, Document, Marker, Span, Style};
use super::syntax::write_entities;

/// Returns `document` as the content of an HTML body.
pub(crate) fn render_html(document: &Document) -> String {
    let mut html = String::new();
    let mut open: Vec<OpenElement> = Vec::new();

    for block in &document.blocks {
        enter_containers(block, &mut open, &mut html);
        write_block(block, &mut html);
    }

    close_elements(&mut open, 0, &mut html);
    html
}

/// An element around blocks; a list is open together with its item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenElement {
    Quote { id: u32 },
    List { id: u32, is_ordered: bool },
}

/// Opens and closes elements until `block` lies in its containers.
fn enter_containers(block: &Block, open: &mut Vec<OpenElement>, html: &mut String) {
    let goes_on = |(element, container): (&OpenElement, &Container)| match (element, container) {
        (OpenElement::Quote { id }, Container::Quote { id: wanted }) => id == wanted,
        (OpenElement::List { id, .. }, Container::Item { list, is_first, .. }) => id == list && !is_first,
        (OpenElement::Quote { .. }, Container::Item { .. }) | (OpenElement::List { .. }, Container::Quote { .. }) => {
            false
        }
    };
    let shared = open
        .iter()
        .zip(&block.containers)
        .take_while(|pair| goes_on(*pair))
        .count();

    // A further item of a list that is open.
    let next_item = match (open.get(shared), block.containers.get(shared)) {
        (Some(OpenElement::List { id, .. }), Some(Container::Item { list, marker, .. })) if id == list => Some(*marker),
        (Some(_) | None, Some(_) | None) => None,
    };

    let mut from = shared;
    if let Some(marker) = next_item {
        close_elements(open, shared + 1, html);
        html.push_str("</li>\n");
        open_item(marker, html);
        from += 1;
    } else {
        close_elements(open, shared, html);
    }

    for container in &block.containers[from..] {
        match container {
            Container::Quote { id } => {
                html.push_str("<blockquote>\n");
                open.push(OpenElement::Quote { id: *id });
            }
            Container::Item { list, marker, .. } => {
                let is_ordered = match marker {
                    Marker::Number(first) => {
                        // Writing to a string cannot fail.
                        let _ = writeln!(html, "<ol start=\"{first}\">");
                        true
                    }
                    Marker::Bullet | Marker::Task(_) => {
                        html.push_str("<ul>\n");
                        false
                    }
                };
                open_item(*marker, html);
                open.push(OpenElement::List { id: *list, is_ordered });
            }
        }
    }
}

fn open_item(marker: Marker, html: &mut String) {
    html.push_str(match marker {
        Marker::Bullet | Marker::Number(_) => "<li>",
        Marker::Task(true) => "<li>☑ ",
        Marker::Task(false) => "<li>☐ ",
    });
}

/// Closes the elements but the first `kept`.
fn close_elements(open: &mut Vec<OpenElement>, kept: usize, html: &mut String) {
    while open.len() > kept {
        html.push_str(match open.pop() {
            Some(OpenElement::Quote { .. }) => "</blockquote>\n",
            Some(OpenElement::List { is_ordered: true, .. }) => "</li>\n</ol>\n",
            Some(OpenElement::List { is_ordered: false, .. }) => "</li>\n</ul>\n",
            None => "",
        });
    }
}

fn write_block(block: &Block, html: &mut String) {
    match &block.kind {
        BlockKind::Paragraph => {
            // Right behind an item's sign, a paragraph would begin a new line.
            let begins_item = matches!(block.containers.last(), Some(Container::Item { is_first: true, .. }));
            let (open, close) = if begins_item || block.is_tight {
                ("", "")
            } else {
                ("<p>", "</p>\n")
            };
            html.push_str(open);
            write_styled(block, html);
            html.push_str(close);
        }
        BlockKind::Heading(level) => {
            // Writing to a string cannot fail.
            let _ = write!(html, "<h{level}>");
            write_styled(block, html);
            let _ = writeln!(html, "</h{level}>");
        }
        BlockKind::Code { language } => {
            html.push_str("<pre><code");
            if let Some(language) = language {
                let _ = write!(html, " class=\"language-{language}\"");
            }
            html.push('>');
            write_entities(&block.text, html);
            html.push_str("</code></pre>\n");
        }
        BlockKind::Rule => html.push_str("<hr>\n"),
    }
}

/// Writes the text of `block` with its styles.
fn write_styled(block: &Block, html: &mut String) {
    let mut open: Vec<&Span> = Vec::new();
    let mut at = 0;

    for span in &block.spans {
        while let Some(last) = open.pop_if(|last| last.range.end <= span.range.start) {
            at = write_up_to(block, at, last.range.end, html);
            close_style(&last.style, html);
        }
        at = write_up_to(block, at, span.range.start, html);
        open_style(span, &block.text, html);
        open.push(span);
    }

    while let Some(last) = open.pop() {
        at = write_up_to(block, at, last.range.end, html);
        close_style(&last.style, html);
    }
    write_up_to(block, at, block.text.len(), html);
}

/// Writes the text from `at` to `end`; returns `end`.
fn write_up_to(block: &Block, at: usize, end: usize, html: &mut String) -> usize {
    for (index, line) in block.text[at..end].split('\n').enumerate() {
        if index > 0 {
            html.push_str("<br>\n");
        }
        write_entities(line, html);
    }
    end
}

fn open_style(span: &Span, text: &str, html: &mut String) {
    let target = match &span.style {
        Style::Bold => return html.push_str("<b>"),
        Style::Italic => return html.push_str("<i>"),
        Style::Strike => return html.push_str("<s>"),
        Style::Code => return html.push_str("<code>"),
        Style::BareLink => &text[span.range.clone()],
        Style::Link { url } => url,
    };

    html.push_str("<a href=\"");
    write_entities(target, html);
    html.push_str("\">");
}

fn close_style(style: &Style, html: &mut String) {
    html.push_str(match style {
        Style::Bold => "</b>",
        Style::Italic => "</i>",
        Style::Strike => "</s>",
        Style::Code => "</code>",
        Style::BareLink | Style::Link { .. } => "</a>",
    });
}
