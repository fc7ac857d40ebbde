//! Bound against loops with other bots. *Pure.*
//!
//! Hops count our own dispatches: what another bot writes because of our answer comes as the beginning of a chain. A hook that
//! names the tag `from_bot` and answers where that bot reads would go on for ever at the speed of both. So few answers to
//! other bots go back to a conversation in a minute. The minute is that of the events' arrivals: events that waited are not
//! more than they were, and an event that is handled again counts once. The count is this process's own: the
//! conversation's next owner begins anew.

use std::collections::BTreeMap;

use shared::model::dispatch::DeliveryContext;
use shared::model::event::{DEFAULT_ACCOUNT, Event, EventId, FROM_BOT};
use shared::model::time::UnixMillis;

/// Maximum number of events of other bots in a conversation that are answered there in a minute.
const MAX_ANSWERED: usize = 10;
/// A minute, in milliseconds.
const MINUTE_MS: i64 = 60_000;
/// Number of conversations from which those without an answer within a minute are forgotten.
const MAX_CONVERSATIONS: usize = 1_024;

/// The events of other bots that were answered lately, by conversation.
#[derive(Debug, Default)]
pub(crate) struct BotLoops {
    answered: BTreeMap<[String; 3], Vec<(EventId, UnixMillis)>>,
}

impl BotLoops {
    /// Returns whether `event` may be answered at `place`, and counts it if another bot wrote it and the answer goes back to
    /// its conversation.
    pub(crate) fn may_answer(&mut self, event: &Event, place: &DeliveryContext) -> bool {
        let (channel, account, peer) = event.conversation();
        let is_back = place.channel == channel
            && place.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT) == account
            && place.peer_id.as_deref() == Some(peer);
        if !is_back || !event.tags.iter().any(|tag| tag == FROM_BOT) {
            return true;
        }

        let at = event.received_at;
        let is_near = |known: UnixMillis| at.since(known).abs() < MINUTE_MS;
        if self.answered.len() >= MAX_CONVERSATIONS {
            self.answered
                .retain(|_, answered| answered.iter().any(|(_, known)| is_near(*known)));
        }

        let key = [channel, account, peer].map(str::to_owned);
        let answered = self.answered.entry(key).or_default();
        if answered.iter().any(|(id, _)| *id == event.id) {
            return true;
        }
        answered.retain(|(_, known)| is_near(*known));
        if answered.len() >= MAX_ANSWERED {
            return false;
        }
        answered.push((event.id.clone(), at));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(peer: &str, number: usize, at: i64) -> Event {
        let id = EventId::parse(format!("discord:main/{peer}/{number}")).expect("an id");
        let mut event = Event::new(id, "discord", peer, UnixMillis(1_700_000_000_000 + at));
        event.account_id = Some("main".to_owned());
        event.add_tag(FROM_BOT);
        event
    }

    fn place(peer: &str) -> DeliveryContext {
        DeliveryContext {
            channel: "discord".to_owned(),
            account_id: Some("main".to_owned()),
            peer_id: Some(peer.to_owned()),
            ..DeliveryContext::default()
        }
    }

    #[test]
    fn a_minute_has_its_number_of_answers_to_other_bots() {
        let mut loops = BotLoops::default();
        for number in 0..MAX_ANSWERED {
            assert!(loops.may_answer(&event("C1", number, 0), &place("C1")), "{number}");
        }
        assert!(!loops.may_answer(&event("C1", 90, 59_999), &place("C1")));
        assert!(loops.may_answer(&event("C1", 0, 0), &place("C1")), "handled again");
        assert!(
            loops.may_answer(&event("C2", 91, 0), &place("C2")),
            "another conversation"
        );
        assert!(
            loops.may_answer(&event("C1", 92, 60_000), &place("C1")),
            "another minute"
        );
    }

    #[test]
    fn people_and_answers_elsewhere_have_no_bound() {
        let mut loops = BotLoops::default();
        for number in 0..3 * MAX_ANSWERED {
            let mut human = event("C1", number, 0);
            human.remove_tag(FROM_BOT);
            assert!(loops.may_answer(&human, &place("C1")));
            assert!(loops.may_answer(&event("C1", number, 0), &place("C9")));
            let other_account = DeliveryContext {
                account_id: Some("second".to_owned()),
                ..place("C1")
            };
            assert!(loops.may_answer(&event("C1", number, 0), &other_account));
        }
    }

    #[test]
    fn conversations_without_an_answer_are_forgotten() {
        let mut loops = BotLoops::default();
        for number in 0..MAX_CONVERSATIONS {
            let peer = format!("C{number}");
            assert!(loops.may_answer(&event(&peer, 0, 0), &place(&peer)));
        }
        assert_eq!(loops.answered.len(), MAX_CONVERSATIONS);
        assert!(loops.may_answer(&event("D", 0, MINUTE_MS), &place("D")));
        assert_eq!(loops.answered.len(), 1);
    }
}
