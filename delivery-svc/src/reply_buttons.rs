//! The buttons of a reply. *Pure.*

use serde::Deserialize;
use shared::model::reply::Reply;

/// The part of a reply's `interactive` that is used.
#[derive(Debug, Default, Deserialize)]
struct Interactive {
    #[serde(default)]
    buttons: Vec<ReplyButton>,
}

/// A button, with the words that a press says.
#[derive(Debug, Deserialize)]
pub(crate) struct ReplyButton {
    /// Words on the button.
    pub(crate) label: String,
    /// Words that a press says.
    pub(crate) say: String,
}

/// Returns the buttons of `reply`; none if their form is another channel's.
pub(crate) fn read_buttons(reply: &Reply) -> Vec<ReplyButton> {
    let interactive = reply.interactive.as_ref();
    let interactive = interactive.and_then(|interactive| Interactive::deserialize(interactive).ok());
    interactive.unwrap_or_default().buttons
}
