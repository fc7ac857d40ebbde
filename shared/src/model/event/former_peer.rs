//! Conversations that go on under another id. *Pure.*

use serde_json::Value;

use super::{Event, PeerKind};
use crate::model::origin::EventOrigin;

/// Key of the metadata that names the id which the event's conversation had before.
pub const MIGRATED_FROM: &str = "migrated_from";
/// Key of the metadata that names the id which the event's conversation has from then on.
pub const MIGRATED_TO: &str = "migrated_to";

impl Event {
    /// Returns the id that the event's group had before: its settings, its bindings and its session are still meant. `None` if
    /// it had none, or if the account did not bring the event itself: another publisher could name any group, and so speak in
    /// its session.
    ///
    /// ```
    /// use shared::model::event::{Event, EventId, MIGRATED_FROM, PeerKind};
    /// use shared::model::origin::EventOrigin;
    /// use shared::model::time::UnixMillis;
    ///
    /// let mut event = Event::new(EventId::parse("telegram:main/-1006/1")?, "telegram", "-1006", UnixMillis(1));
    /// event.peer.kind = PeerKind::Group;
    /// event.account_id = Some("main".to_owned());
    /// event.metadata.insert(MIGRATED_FROM.to_owned(), "-6".into());
    /// assert_eq!(event.former_peer(), None, "nobody proves who brought it");
    ///
    /// event.origin = EventOrigin::account("telegram", "main");
    /// assert_eq!(event.former_peer(), Some("-6"));
    /// # Ok::<(), shared::model::event::ParseEventIdError>(())
    /// ```
    #[must_use]
    pub fn former_peer(&self) -> Option<&str> {
        match self.peer.kind {
            PeerKind::Dm => return None,
            PeerKind::Group | PeerKind::Channel => {}
        }
        let former = self.metadata.get(MIGRATED_FROM).and_then(Value::as_str)?;
        let is_own = self.origin == EventOrigin::account(&self.channel, self.account());
        (is_own && !former.is_empty()).then_some(former)
    }
}
