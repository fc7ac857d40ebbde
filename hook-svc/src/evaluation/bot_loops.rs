//! Bound against loops with other bots. *Pure.*
//!
//! Hops count our own dispatches: a message that another bot writes because of our answer comes as the beginning of a chain. A
//! hook that names the tag `from_bot` and answers in a place that this bot reads would go on for ever at the speed of both.
//!
//! Such a loop shows in the conversation as rounds: the bot, then Nexus, then the bot again. Ten of them in a minute are a loop. A
//! burst of messages from a bot that has not read our answers is none, but a bot that answers each answer twice would double them
//! with each round: so the messages of other bots are bounded too, far above the rate of messages for people. Both are counted in
//! the conversation's events before this one in `EVENTS`, so that every replica counts the same, even one that has just started.
//! The minute is measured by the events' arrivals, so that a backlog that is evaluated at once is no burst.

use std::collections::BTreeSet;

use shared::model::dispatch::DeliveryContext;
use shared::model::event::{DEFAULT_ACCOUNT, Event, EventDirection, FROM_BOT};
use shared::model::origin::EventOrigin;

/// Length of the time in which rounds and messages are counted, in milliseconds.
pub(crate) const COUNTED_MS: i64 = 60_000;
/// Number of rounds from which an answer would go on with a loop.
const MAX_ROUNDS: usize = 10;
/// Maximum number of messages of other bots in a conversation that are answered there in a minute.
const MAX_MESSAGES: usize = 100;

/// Returns whether an answer to `event` at `place` goes back to the conversation in which another bot wrote the event.
pub(crate) fn answers_bot(event: &Event, place: &DeliveryContext) -> bool {
    let (channel, account, peer) = event.conversation();
    let is_back = place.channel == channel
        && place.account_id.as_deref().unwrap_or(DEFAULT_ACCOUNT) == account
        && place.peer_id.as_deref() == Some(peer);
    is_back && is_of_bot(event)
}

/// Returns whether one more answer to `event`, which another bot wrote, would go on with a loop. `earlier` are the events of its
/// conversation before it, oldest first.
pub(crate) fn is_loop(event: &Event, earlier: &[Event]) -> bool {
    let is_near = |said: &&Event| event.received_at.since(said.received_at).abs() < COUNTED_MS;
    // A bot that edits its answer as it grows writes one message, unless it is edits that are answered.
    let version = |said: &Event| said.edited_at.filter(|_| event.edited_at.is_some());
    let (mut messages, mut rounds, mut is_answered) = (BTreeSet::new(), 0, false);
    for said in earlier.iter().filter(is_near).chain([event]) {
        if is_own(said) {
            is_answered = !messages.is_empty();
        } else if is_of_bot(said) && messages.insert((said.id.as_str(), version(said))) {
            rounds += usize::from(is_answered);
            is_answered = false;
        }
    }
    rounds >= MAX_ROUNDS || messages.len() > MAX_MESSAGES
}

fn is_of_bot(event: &Event) -> bool {
    event.tags.iter().any(|tag| tag == FROM_BOT)
}

/// Returns whether Nexus has sent `event`.
fn is_own(event: &Event) -> bool {
    event.direction == EventDirection::Sent && event.origin == EventOrigin::System
}

#[cfg(test)]
mod tests {
    use shared::model::event::EventId;
    use shared::model::time::UnixMillis;

    use super::*;

    fn said(id: &str, at: i64) -> Event {
        let id = EventId::parse(id).expect("an id");
        let mut event = Event::new(id, "discord", "C1", UnixMillis(1_700_000_000_000 + at));
        event.account_id = Some("main".to_owned());
        event
    }

    /// Message `number` of another bot, which came at `at`.
    fn bot(number: usize, at: i64) -> Event {
        let mut event = said(&format!("discord:main/C1/{number}"), at);
        event.add_tag(FROM_BOT);
        event
    }

    /// Part `number` of an answer of Nexus.
    fn own(number: usize, at: i64) -> Event {
        let mut event = said(&format!("out:01HV0000000000000000000000/{number}"), at);
        event.direction = EventDirection::Sent;
        event.origin = EventOrigin::System;
        event
    }

    /// The beginning of a talk with `rounds` rounds, each `step` milliseconds long, in which Nexus answers in two parts.
    fn talk(rounds: usize, step: i64) -> Vec<Event> {
        let round = |number: usize| {
            let at = step * i64::try_from(number).expect("small");
            [bot(number, at), own(2 * number, at), own(2 * number + 1, at)]
        };
        (0..rounds).flat_map(round).collect()
    }

    #[test]
    fn ten_rounds_in_a_minute_are_a_loop() {
        assert!(!is_loop(&bot(0, 0), &[]));
        assert!(!is_loop(&bot(90, 900), &talk(9, 100)));
        assert!(is_loop(&bot(90, 1_000), &talk(10, 100)));
        assert!(!is_loop(&bot(90, 100_000), &talk(10, 10_000)), "six in a minute");
        assert!(!is_loop(&bot(90, 70_000), &talk(10, 100)), "another minute");
    }

    #[test]
    fn a_burst_is_no_loop_and_is_bounded_all_the_same() {
        let burst = |count: usize| (0..count).map(|number| bot(number, 5)).collect::<Vec<_>>();
        let mut answered = burst(50);
        answered.extend((0..50).map(|number| own(number, 50)));
        assert!(!is_loop(&bot(900, 60), &answered), "one round");

        assert!(!is_loop(&bot(900, 60), &burst(MAX_MESSAGES - 1)));
        assert!(is_loop(&bot(900, 60), &burst(MAX_MESSAGES)));
        let again = [burst(MAX_MESSAGES - 1), burst(MAX_MESSAGES - 1)].concat();
        assert!(
            !is_loop(&bot(900, 60), &again),
            "a message that is stored twice counts once"
        );
    }

    #[test]
    fn edits_count_and_people_do_not() {
        let edited = |number: i64| {
            let mut event = bot(1, number);
            event.direction = EventDirection::Updated;
            event.edited_at = Some(UnixMillis(number));
            event
        };
        let edits: Vec<Event> = (0..10).flat_map(|number| [edited(number), own(1, number)]).collect();
        assert!(is_loop(&edited(11), &edits));
        assert!(!is_loop(&bot(900, 60), &edits), "one message, which grows");
        let growing: Vec<Event> = (0..200).map(edited).collect();
        assert!(!is_loop(&bot(900, 300), &growing));

        let human = |number: usize| said(&format!("discord:main/C1/human{number}"), 5);
        let talk: Vec<Event> = (0..30).flat_map(|number| [human(number), own(number, 5)]).collect();
        assert!(!is_loop(&bot(900, 60), &talk));

        // A sender that claims to be Nexus is not Nexus.
        let claimed = |number: usize| {
            let mut event = own(number, 5);
            event.origin = EventOrigin::Open;
            event
        };
        let claims: Vec<Event> = (0..30).flat_map(|number| [bot(number, 5), claimed(number)]).collect();
        assert!(!is_loop(&bot(900, 60), &claims));
    }

    #[test]
    fn only_answers_where_the_bot_wrote_count() {
        let place = |peer: &str, account: &str| DeliveryContext {
            channel: "discord".to_owned(),
            account_id: Some(account.to_owned()),
            peer_id: Some(peer.to_owned()),
            ..DeliveryContext::default()
        };
        assert!(answers_bot(&bot(1, 0), &place("C1", "main")));
        assert!(!answers_bot(&bot(1, 0), &place("C9", "main")));
        assert!(!answers_bot(&bot(1, 0), &place("C1", "second")));
        assert!(!answers_bot(&said("discord:main/C1/1", 0), &place("C1", "main")));
    }
}
