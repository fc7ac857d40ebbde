//! The document while it is being read. *Pure.*

use pulldown_cmark::Alignment;

use crate::markdown::document::{
    Block, BlockKind, Container, Document, MAX_CONTAINERS, MAX_STYLES, Marker, RULE, Span, Style,
};
use crate::markdown::table::Table;
use crate::markdown::url::{add_bare_links, openable_url};

/// A document that is being read.
#[derive(Debug, Default)]
pub(super) struct DocumentBuilder {
    document: Document,
    /// Quotes and items that are open, from outside to inside.
    open: Vec<OpenContainer>,
    /// Lists that are open: number of the list, number of the next item.
    lists: Vec<(u32, Option<u64>)>,
    /// Block that is being read.
    block: Option<OpenBlock>,
    table: Option<Table>,
    /// Start and target of a link in a table's cell.
    cell_link: Option<(usize, String)>,
    last_id: u32,
    /// Whether the last block was text without a paragraph of its own.
    is_compact: bool,
}

#[derive(Debug)]
struct OpenContainer {
    container: Container,
    /// Whether a block of it was read.
    has_block: bool,
}

#[derive(Debug)]
struct OpenBlock {
    block: Block,
    /// Styles that are open, from outside to inside.
    styles: Vec<OpenStyle>,
}

#[derive(Debug)]
struct OpenStyle {
    start: usize,
    kind: OpenKind,
}

#[derive(Debug, PartialEq, Eq)]
enum OpenKind {
    Style(Style),
    Link(String),
    /// A style that is there already, or one too many.
    Ignored,
}

impl DocumentBuilder {
    pub(super) fn finish(mut self) -> Document {
        self.end_block();
        self.document
    }

    pub(super) fn begin_quote(&mut self) {
        self.end_block();
        let id = self.next_id();
        self.open_container(Container::Quote { id });
    }

    pub(super) fn begin_list(&mut self, first: Option<u64>) {
        self.end_block();
        let id = self.next_id();
        self.lists.push((id, first));
    }

    pub(super) fn end_list(&mut self) {
        self.end_block();
        self.lists.pop();
    }

    pub(super) fn begin_item(&mut self) {
        self.end_block();
        let (list, marker) = match self.lists.last_mut() {
            Some((list, Some(next))) => {
                let number = *next;
                *next = next.saturating_add(1);
                (*list, Marker::Number(number))
            }
            Some((list, None)) => (*list, Marker::Bullet),
            None => (0, Marker::Bullet),
        };

        self.open_container(Container::Item {
            list,
            marker,
            is_first: true,
        });
    }

    pub(super) fn mark_item(&mut self, told: Marker) {
        // The item may be one of those that are left out.
        if self.open.len() > MAX_CONTAINERS {
            return;
        }

        let open = self.open.iter_mut().map(|open| &mut open.container);
        let read = self.block.iter_mut().flat_map(|open| open.block.containers.iter_mut());
        for containers in [open.last(), read.last()] {
            if let Some(Container::Item { marker, .. }) = containers {
                *marker = told;
            }
        }
    }

    pub(super) fn end_container(&mut self) {
        self.end_block();
        let is_empty_item = self
            .open
            .last()
            .is_some_and(|open| !open.has_block && matches!(open.container, Container::Item { .. }));
        // Its number is visible, so it is a block all the same.
        if is_empty_item {
            self.begin_block(BlockKind::Paragraph);
            self.keep_block();
        }
        self.open.pop();
    }

    fn open_container(&mut self, container: Container) {
        self.open.push(OpenContainer {
            container,
            has_block: false,
        });
    }

    const fn next_id(&mut self) -> u32 {
        self.last_id = self.last_id.saturating_add(1);
        self.last_id
    }

    pub(super) fn begin_block(&mut self, kind: BlockKind) {
        self.end_block();
        // In a list without blank lines, the blocks of an item have none before them either.
        let in_item = matches!(self.open.last(), Some(open) if matches!(open.container, Container::Item { .. }));
        let is_tight = self.is_compact && in_item && matches!(kind, BlockKind::Code { .. });
        self.is_compact = false;
        self.block = Some(self.new_block(kind, is_tight));
    }

    /// Returns the containers of a block that begins now.
    fn containers(&self) -> Vec<Container> {
        let open = self.open.iter().take(MAX_CONTAINERS);
        let told = open.map(|open| match open.container {
            Container::Quote { id } => Container::Quote { id },
            Container::Item { list, marker, .. } => Container::Item {
                list,
                marker,
                is_first: !open.has_block,
            },
        });
        told.collect()
    }

    /// Returns the block that is being read. Text without a paragraph of its own is that of a list whose items follow
    /// one another without blank lines.
    fn running_block(&mut self) -> &mut OpenBlock {
        let open = match self.block.take() {
            Some(open) => open,
            None => {
                let last = self.document.blocks.last();
                let begins_list = self.lists.len() <= 1 && last.is_none_or(|last| !self.is_in_list(last));
                self.is_compact = true;
                self.new_block(BlockKind::Paragraph, !begins_list)
            }
        };
        self.block.insert(open)
    }

    /// Returns a block that begins now.
    fn new_block(&self, kind: BlockKind, is_tight: bool) -> OpenBlock {
        OpenBlock {
            block: Block {
                kind,
                containers: self.containers(),
                is_tight,
                text: String::new(),
                spans: Vec::new(),
            },
            styles: Vec::new(),
        }
    }

    /// Returns whether `block` lies in the outermost list that is open.
    fn is_in_list(&self, block: &Block) -> bool {
        let outermost = self.lists.first().map(|(id, _)| *id);
        block.containers.iter().any(|container| match container {
            Container::Item { list, .. } => Some(*list) == outermost,
            Container::Quote { .. } => false,
        })
    }

    pub(super) fn push_rule(&mut self) {
        self.begin_block(BlockKind::Rule);
        self.push_text(RULE);
        self.end_block();
    }

    pub(super) fn push_text(&mut self, text: &str) {
        if let Some(table) = &mut self.table {
            if let Some(cell) = table.cell() {
                cell.push_str(text);
            }
            return;
        }

        let open = self.running_block();
        match open.block.kind {
            // A heading is one line, because platforms end it with the line.
            BlockKind::Heading(_) => open.block.text.push_str(&text.replace('\n', " ")),
            BlockKind::Paragraph | BlockKind::Code { .. } | BlockKind::Rule => open.block.text.push_str(text),
        }
    }

    pub(super) fn push_code(&mut self, text: &str) {
        if self.table.is_some() {
            self.push_text(text);
        } else {
            self.begin_style(Style::Code);
            self.push_text(text);
            self.end_style();
        }
    }

    pub(super) fn begin_style(&mut self, style: Style) {
        if self.table.is_some() {
            return;
        }
        self.open_style(OpenKind::Style(style));
    }

    fn open_style(&mut self, kind: OpenKind) {
        let open = self.running_block();
        // A picture in a link leads where the link leads.
        let is_there = |style: &OpenStyle| match (&style.kind, &kind) {
            (OpenKind::Link(_), OpenKind::Link(_)) => true,
            (there, kind) => there == kind,
        };
        let is_superfluous = open.styles.len() >= MAX_STYLES || open.styles.iter().any(is_there);
        open.styles.push(OpenStyle {
            start: open.block.text.len(),
            kind: if is_superfluous { OpenKind::Ignored } else { kind },
        });
    }

    pub(super) fn end_style(&mut self) {
        let Some(open) = self.block.as_mut().filter(|_| self.table.is_none()) else {
            return;
        };
        let Some(OpenStyle { start, kind }) = open.styles.pop() else {
            return;
        };

        let end = open.block.text.len();
        if start < end
            && let OpenKind::Style(style) = kind
        {
            open.block.spans.push(Span {
                range: start..end,
                style,
            });
        }
    }

    pub(super) fn begin_link(&mut self, target: &str) {
        match &mut self.table {
            Some(table) => {
                let start = table.cell().map_or(0, |cell| cell.len());
                self.cell_link.get_or_insert((start, target.to_owned()));
            }
            None => self.open_style(OpenKind::Link(target.to_owned())),
        }
    }

    pub(super) fn end_link(&mut self) {
        if let Some(table) = &mut self.table {
            if let (Some((start, target)), Some(cell)) = (self.cell_link.take(), table.cell()) {
                show_target(cell, start, &target);
            }
            return;
        }

        let Some(open) = &mut self.block else { return };
        let Some(OpenStyle { start, kind }) = open.styles.pop() else {
            return;
        };
        if let OpenKind::Link(target) = kind {
            end_link(&mut open.block, start, &target);
        }
    }

    pub(super) fn begin_table(&mut self, alignments: Vec<Alignment>) {
        self.end_block();
        self.table = Some(Table::new(alignments));
    }

    pub(super) fn begin_row(&mut self) {
        if let Some(table) = &mut self.table {
            table.begin_row();
        }
    }

    pub(super) fn begin_cell(&mut self) {
        if let Some(table) = &mut self.table {
            table.begin_cell();
        }
    }

    pub(super) fn end_table(&mut self) {
        let Some(table) = self.table.take() else { return };
        self.cell_link = None;
        self.begin_block(BlockKind::Code { language: None });
        self.push_text(&table.to_text());
        self.end_block();
    }

    /// Ends the block that is being read. A block without text is left out.
    pub(super) fn end_block(&mut self) {
        let has_text = |open: &OpenBlock| !open.block.text.trim().is_empty();
        if self.block.as_ref().is_some_and(has_text) {
            self.keep_block();
        } else {
            self.block = None;
        }
    }

    fn keep_block(&mut self) {
        let Some(OpenBlock { mut block, .. }) = self.block.take() else {
            return;
        };

        trim_block(&mut block);
        // The inner one of two spans ended first; here the outer one comes first.
        block.spans.reverse();
        block
            .spans
            .sort_by_key(|span| (span.range.start, std::cmp::Reverse(span.range.end)));
        match block.kind {
            BlockKind::Paragraph | BlockKind::Heading(_) => add_bare_links(&block.text, &mut block.spans),
            BlockKind::Code { .. } | BlockKind::Rule => {}
        }

        for open in &mut self.open {
            open.has_block = true;
        }
        self.document.blocks.push(block);
    }
}

/// Removes white space around the text; of code, line breaks alone.
fn trim_block(block: &mut Block) {
    match block.kind {
        BlockKind::Code { .. } => {
            let text = block.text.trim_end();
            // Blank lines before the first one; its indentation stays.
            let blank = text.len() - text.trim_start().len();
            let start = text[..blank].rfind('\n').map_or(0, |at| at + 1);
            block.text = text[start..].to_owned();
        }
        BlockKind::Paragraph | BlockKind::Heading(_) | BlockKind::Rule => {
            block.text.truncate(block.text.trim_end().len());
            let end = block.text.len();
            let start = end - block.text.trim_start().len();
            block.text.drain(..start);
            for span in &mut block.spans {
                span.range = span.range.start.saturating_sub(start)..span.range.end.min(end).saturating_sub(start);
            }
            block.spans.retain(|span| !span.range.is_empty());
        }
    }
}

/// Ends the link to `target` whose text begins at `start`.
fn end_link(block: &mut Block, start: usize, target: &str) {
    let url = openable_url(target);
    if block.text[start..].trim().is_empty() {
        block.text.truncate(start);
        remove_spans_from(block, start);
        block.text.push_str(url.as_deref().unwrap_or(target));
    } else if block.text[start..].contains('\n') {
        // A link stands on one line. The text keeps its length, so that spans in it stay right.
        let label = block.text.split_off(start).replace('\n', " ");
        block.text.push_str(&label);
    }

    let range = start..block.text.len();
    match url {
        _ if range.is_empty() => {}
        Some(url) if block.text[range.clone()] == url => {
            // Styles inside it would end the URL.
            remove_spans_from(block, start);
            block.spans.push(Span {
                range,
                style: Style::BareLink,
            });
        }
        Some(url) => block.spans.push(Span {
            range,
            style: Style::Link { url },
        }),
        None => show_target(&mut block.text, start, target),
    }
}

/// Removes the spans that begin at `start` or behind it; they were read last.
fn remove_spans_from(block: &mut Block, start: usize) {
    while block.spans.last().is_some_and(|span| span.range.start >= start) {
        block.spans.pop();
    }
}

/// Adds `target` behind the link's text, unless it is the same or a place in the same document.
fn show_target(text: &mut String, start: usize, target: &str) {
    let is_told = target.is_empty() || target.starts_with('#') || text.get(start..) == Some(target);
    if !is_told {
        text.push_str(" (");
        text.push_str(target);
        text.push(')');
    }
}
