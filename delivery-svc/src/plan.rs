//! Splitting of replies into parts, in the form in which an account takes text. *Pure.* Source:
//! `docs/design/channels.md` §2.2.

use serde::{Deserialize, Serialize};
use shared::model::reply::Reply;

use crate::chunk::{ChunkLimit, split};
use crate::markdown::signal::StyleRange;
use crate::markdown::{TextMarkup, render_parts};
use crate::part_file::PartFile;

/// A form of text that an account can ask for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextFormat {
    /// The reply's own text, which models write in Markdown.
    #[default]
    Markdown,
    /// Plain text.
    Plain,
    /// Slack's mrkdwn.
    Slack,
    /// Discord's Markdown.
    Discord,
    /// Telegram's HTML.
    TelegramHtml,
    /// WhatsApp's marks.
    Whatsapp,
    /// Plain text with styles beside it, as Signal takes them.
    Signal,
    /// HTML of an e-mail.
    EmailHtml,
}

impl TextFormat {
    /// Returns the name in configuration and receipts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Markdown => "markdown",
            Self::Plain => "plain",
            Self::Slack => "slack",
            Self::Discord => "discord",
            Self::TelegramHtml => "telegram_html",
            Self::Whatsapp => "whatsapp",
            Self::Signal => "signal",
            Self::EmailHtml => "email_html",
        }
    }

    /// Returns the markup to render; `None` if the text stays as it is.
    #[must_use]
    pub const fn markup(self) -> Option<TextMarkup> {
        match self {
            Self::Markdown => None,
            Self::Plain => Some(TextMarkup::Plain),
            Self::Slack => Some(TextMarkup::Slack),
            Self::Discord => Some(TextMarkup::Discord),
            Self::TelegramHtml => Some(TextMarkup::TelegramHtml),
            Self::Whatsapp => Some(TextMarkup::Whatsapp),
            Self::Signal => Some(TextMarkup::Signal),
            Self::EmailHtml => Some(TextMarkup::EmailHtml),
        }
    }
}

/// The form and size of an account's parts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PartLayout {
    /// Form of the text.
    pub format: TextFormat,
    /// Maximum size of a part; `None` = unlimited.
    pub limit: Option<ChunkLimit>,
    /// Maximum number of lines of a part; `None` = unlimited. The text's own Markdown is not cut by lines.
    pub max_lines: Option<usize>,
}

impl PartLayout {
    /// Returns the layout of one part of any size, in the same form.
    #[must_use]
    pub const fn whole(self) -> Self {
        Self {
            format: self.format,
            limit: None,
            max_lines: None,
        }
    }

    /// Returns the layout of parts of the reply's own text, at most `limit` large.
    #[must_use]
    pub const fn markdown(limit: Option<ChunkLimit>) -> Self {
        Self {
            format: TextFormat::Markdown,
            limit,
            max_lines: None,
        }
    }
}

/// One message on the platform.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessagePart {
    /// Index of the part, from 0.
    pub index: u32,
    /// Text of the part, in the account's form.
    pub content: String,
    /// Form of `content`.
    pub format: TextFormat,
    /// The part as plain text, for a platform that refuses the markup; `None` if the text is the reply's own.
    pub plain: Option<String>,
    /// Styles of the text, on platforms that take them beside it.
    pub styles: Vec<StyleRange>,
    /// File that the part is; it has no text then.
    pub file: Option<PartFile>,
}

impl MessagePart {
    /// Returns the part without a platform's markup.
    #[must_use]
    pub fn plain_text(&self) -> &str {
        self.plain.as_deref().unwrap_or(&self.content)
    }

    /// Returns the same part as plain text, for a platform that could not read its markup; `None` if it has none.
    #[must_use]
    pub fn without_markup(&self) -> Option<Self> {
        let plain = self.plain.clone()?;
        Some(Self {
            index: self.index,
            content: plain,
            format: TextFormat::Plain,
            plain: None,
            styles: Vec::new(),
            file: None,
        })
    }
}

/// Returns the parts of `reply` in order: one, or as many as `layout` requires. They follow from the two alone.
#[must_use]
pub fn plan_parts(reply: &Reply, layout: PartLayout) -> Vec<MessagePart> {
    let format = layout.format;
    let parts: Vec<MessagePart> = match (format.markup(), layout.limit) {
        (Some(markup), limit) => {
            let rendered = render_parts(&reply.content, markup, limit, layout.max_lines).into_iter();
            let parts = rendered.map(|part| MessagePart {
                index: 0,
                content: part.text,
                format,
                plain: Some(part.plain),
                styles: part.styles,
                file: None,
            });
            parts.collect()
        }
        (None, Some(limit)) => split(&reply.content, limit).into_iter().map(own_text).collect(),
        (None, None) => vec![own_text(reply.content.clone())],
    };

    (0..)
        .zip(parts)
        .map(|(index, part)| MessagePart { index, ..part })
        .collect()
}

fn own_text(content: String) -> MessagePart {
    MessagePart {
        content,
        ..MessagePart::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::LengthUnit;
    use crate::examples::reply;
    use crate::markdown::telegram;

    #[track_caller]
    fn check(content: &str, layout: PartLayout, expected: &[(u32, &str)]) {
        let parts = plan_parts(&reply(content), layout);
        let told: Vec<_> = parts.iter().map(|part| (part.index, part.content.as_str())).collect();
        assert_eq!(told, expected);
    }

    const fn characters(max: usize) -> Option<ChunkLimit> {
        Some(ChunkLimit {
            max,
            unit: LengthUnit::Characters,
        })
    }

    #[test]
    fn one_part_without_a_limit() {
        check("first\n\nsecond", PartLayout::default(), &[(0, "first\n\nsecond")]);
        check("", PartLayout::default(), &[(0, "")]);
    }

    #[test]
    fn numbered_parts_within_the_limit() {
        let layout = PartLayout::markdown(characters(7));
        check("first\n\nsecond", layout, &[(0, "first\n\n"), (1, "second")]);
    }

    #[test]
    fn a_form_with_markup_has_its_plain_text_beside_it() {
        let layout = PartLayout {
            format: TextFormat::TelegramHtml,
            limit: Some(telegram::MESSAGE),
            max_lines: None,
        };
        let parts = plan_parts(&reply("**1 < 2**"), layout);
        assert_eq!(parts.len(), 1);
        assert_eq!(parts[0].content, "<b>1 &lt; 2</b>");
        assert_eq!(parts[0].plain_text(), "1 < 2");

        let plain = parts[0].without_markup().expect("it has markup");
        assert_eq!((plain.content.as_str(), plain.format), ("1 < 2", TextFormat::Plain));
        assert_eq!(plain.without_markup(), None);
    }

    #[test]
    fn an_empty_reply_has_one_part_in_any_form() {
        let layout = PartLayout {
            format: TextFormat::Slack,
            ..PartLayout::default()
        };
        check("", layout, &[(0, "")]);
    }
}
