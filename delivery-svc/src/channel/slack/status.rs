//! The status of a thread, by which it shows that the app writes. *Pure.* Slack shows it for two minutes, or until the app's
//! next message there. Source: <https://docs.slack.dev/reference/methods/assistant.threads.setStatus>.

use serde_json::{Value, json};
use shared::platform::slack_api::{is_conversation_id, parse_stamp};

use crate::channel::TypingPlace;

/// Text that Slack shows behind the name of the app.
pub(super) const WRITING: &str = "is writing…";

/// Returns the body of the call that sets the status of `place` to `words`; none of them take it back. `None` if `place` is no
/// thread: only those have a status.
pub(super) fn status_body(place: &TypingPlace<'_>, words: &str) -> Option<Value> {
    let thread = place.thread.filter(|thread| parse_stamp(thread).is_some())?;
    is_conversation_id(place.peer).then(|| json!({"channel_id": place.peer, "thread_ts": thread, "status": words}))
}

#[cfg(test)]
mod tests {
    use shared::model::time::UnixMillis;

    use super::*;

    #[test]
    fn threads_alone_have_a_status() {
        let body = |peer, thread| {
            let place = TypingPlace {
                account: "app",
                peer,
                thread,
                now: UnixMillis(1),
            };
            status_body(&place, WRITING)
        };
        let thread = Some("1767326125.870439");
        let expected = json!({"channel_id": "C1", "thread_ts": "1767326125.870439", "status": "is writing…"});
        assert_eq!(body("C1", thread), Some(expected));
        for (peer, thread) in [("D1", None), ("C1", Some("7")), ("general", thread)] {
            assert_eq!(body(peer, thread), None, "{peer} {thread:?}");
        }
    }
}
