//! Tags of events that are stored and searchable, and shown only to hooks that ask for them. *Pure.* Source:
//! `docs/design/hooks.md` §1; `docs/telegram.md`.

use super::Event;

/// The event is older than the age gate: its source read it late.
pub const BACKFILLED: &str = "backfilled";
/// The sender writes directly, and is not among those who may.
pub const UNPAIRED: &str = "unpaired";
/// The group, or the sender in it, is not among those that are received.
pub const UNLISTED: &str = "unlisted";
/// Another bot caused the event.
pub const FROM_BOT: &str = "from_bot";

/// The tags for which an event is withheld.
pub const WITHHELD_TAGS: [&str; 4] = [BACKFILLED, UNPAIRED, UNLISTED, FROM_BOT];

impl Event {
    /// Returns the tags for which the event is withheld: no binding routes it, and only hooks whose `@match` names each
    /// of them see it. Empty for any other event.
    ///
    /// ```
    /// use shared::model::event::{Event, EventId, UNPAIRED};
    /// use shared::model::time::UnixMillis;
    ///
    /// let id = EventId::parse("telegram:bot/7/1")?;
    /// let mut event = Event::new(id, "telegram", "7", UnixMillis(1));
    /// event.tags = vec!["urgent".to_owned(), UNPAIRED.to_owned()];
    /// assert_eq!(event.withheld_tags().collect::<Vec<_>>(), [UNPAIRED]);
    /// # Ok::<(), shared::model::event::ParseEventIdError>(())
    /// ```
    pub fn withheld_tags(&self) -> impl Iterator<Item = &str> {
        let tags = self.tags.iter().map(String::as_str);
        tags.filter(|tag| WITHHELD_TAGS.contains(tag))
    }

    /// Adds `tag`, if the event does not have it.
    pub fn add_tag(&mut self, tag: &str) {
        if !self.tags.iter().any(|own| own == tag) {
            self.tags.push(tag.to_owned());
        }
    }

    /// Removes `tag`, if the event has it.
    pub fn remove_tag(&mut self, tag: &str) {
        self.tags.retain(|own| own != tag);
    }
}
