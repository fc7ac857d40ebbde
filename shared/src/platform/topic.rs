//! The topic of a group in which something happened, as an account's settings name it. *Pure.*

use super::telegram::{GENERAL_TOPIC, TELEGRAM};
use crate::model::event::{Event, PlatformIds};

/// Returns the topic in which `event` happened: its thread, and on Telegram that of a message or a pressed button without one,
/// which is in the general topic. `None` = in none, or the platform does not say it, as of Telegram's reactions: the group's
/// settings hold.
#[must_use]
pub fn topic_of(event: &Event) -> Option<&str> {
    let is_message = || PlatformIds::from_event(event).is_some();
    let is_press = || event.content_types.iter().any(|kind| kind == "press");
    let is_general = || event.channel == TELEGRAM && (is_message() || is_press());
    event
        .thread_id
        .as_deref()
        .or_else(|| is_general().then_some(GENERAL_TOPIC))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::event::EventId;
    use crate::model::time::UnixMillis;

    #[test]
    fn what_is_at_a_message_of_telegram_without_a_topic_is_in_the_general_one() {
        let event = |channel: &str| Event::new(EventId::parse("x:1").expect("an id"), channel, "-5", UnixMillis(1));
        let topic = |channel: &str, thread: Option<&str>, is_message: bool| {
            let mut event = event(channel);
            event.thread_id = thread.map(str::to_owned);
            if is_message {
                let ids = PlatformIds {
                    ids: vec!["-5/1".to_owned()],
                    part: 0,
                };
                ids.write_to(&mut event);
            }
            topic_of(&event).map(str::to_owned)
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(topic("telegram", Some("7"), true), some("7"));
        assert_eq!(topic("telegram", Some("7"), false), some("7"));
        assert_eq!(topic("telegram", None, true), some("1"));
        assert_eq!(topic("telegram", None, false), None, "a reaction");
        assert_eq!(topic("discord", Some("9"), true), some("9"));
        assert_eq!(topic("discord", None, true), None);

        // The buttons of a topic are pressed by those who may write there.
        for (channel, thread, expected) in [
            ("telegram", None, some("1")),
            ("telegram", Some("7"), some("7")),
            ("discord", None, None),
        ] {
            let mut press = event(channel);
            press.content_types = vec!["press".to_owned()];
            press.thread_id = thread.map(str::to_owned);
            assert_eq!(topic_of(&press).map(str::to_owned), expected, "{channel} {thread:?}");
        }
    }
}
