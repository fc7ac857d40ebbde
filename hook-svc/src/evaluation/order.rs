//! Order of publishing within one partition: event k+1's dispatch of a hook is published only after event k of the same
//! conversation is done with that hook. *Pure.*
//!
//! Events are evaluated in parallel, so their answers arrive in any order. Each (hook, conversation) must keep event
//! order: a slow hook holds back only its own later dispatches. An entry is made for every event in the order of the
//! stream; it is *open* for a hook until the hook passed, failed, or its dispatch is stored. Done is transitive by
//! construction: a dispatch waits for *every* earlier entry of its conversation.
//!
//! Conversations are identified by a hash. Two that collide wait for each other needlessly, but stay in order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use shared::model::event::Event;

/// A conversation, identified by a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConversationHash(u64);

impl ConversationHash {
    /// Returns the conversation of `event`.
    #[must_use]
    pub fn of_event(event: &Event) -> Self {
        let mut hasher = DefaultHasher::new();
        event.conversation().hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// An item, identified by a hash: the item's first event and all its changes have one id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ItemHash(u64);

impl ItemHash {
    /// Returns the item of `event`.
    #[must_use]
    pub fn of_event(event: &Event) -> Self {
        let mut hasher = DefaultHasher::new();
        event.id.as_str().hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// Position of an event in its conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderTicket {
    conversation: ConversationHash,
    item: ItemHash,
    number: u64,
}

/// Hooks for which an event is not done.
#[derive(Debug)]
enum Open {
    /// All hooks but these: hooks that pass are not known one by one.
    AllBut(Vec<String>),
    /// Only these hooks, by id.
    Only(Vec<String>),
}

impl Open {
    fn contains(&self, hook: &str) -> bool {
        match self {
            Self::AllBut(done) => !done.iter().any(|id| id == hook),
            Self::Only(open) => open.iter().any(|id| id == hook),
        }
    }
}

#[derive(Debug)]
struct Entry {
    open: Open,
    /// Hooks that are called later, for which the event stays open.
    owed: Vec<String>,
}

/// Numbers of events, by hook.
#[derive(Debug, Default)]
pub(crate) struct ByHook(HashMap<String, BTreeSet<u64>>);

impl ByHook {
    pub(crate) fn add(&mut self, hook: &str, number: u64) {
        match self.0.get_mut(hook) {
            Some(numbers) => {
                numbers.insert(number);
            }
            None => {
                self.0.insert(hook.to_owned(), BTreeSet::from([number]));
            }
        }
    }

    pub(crate) fn remove(&mut self, hook: &str, number: u64) {
        let Some(numbers) = self.0.get_mut(hook) else { return };
        numbers.remove(&number);
        if numbers.is_empty() {
            self.0.remove(hook);
        }
    }

    /// Returns whether `hook` has a number below `number`.
    pub(crate) fn has_before(&self, hook: &str, number: u64) -> bool {
        self.0.get(hook).is_some_and(|numbers| is_before(numbers, number))
    }

    /// Returns the count of `hook`'s numbers.
    pub(crate) fn count(&self, hook: &str) -> usize {
        self.0.get(hook).map_or(0, BTreeSet::len)
    }

    /// Returns each hook's lowest number.
    pub(crate) fn lowest_by_hook(&self) -> impl Iterator<Item = (&str, u64)> {
        let all = self.0.iter();
        all.filter_map(|(hook, numbers)| Some((hook.as_str(), *numbers.first()?)))
    }
}

/// Returns whether the first of `numbers` comes before `number`.
fn is_before(numbers: &BTreeSet<u64>, number: u64) -> bool {
    numbers.first().is_some_and(|first| *first < number)
}

/// Events of one conversation that are not done. Queries about earlier events use indices by hook, because there may be
/// many: an author's hooks may be called later for a thousand of them.
#[derive(Debug, Default)]
struct Line {
    entries: BTreeMap<u64, Entry>,
    /// Numbers of events for which it is not decided which hooks are called now or later.
    undecided: BTreeSet<u64>,
    /// Numbers of events that are open for all hooks but some: those being evaluated, which are few.
    wide: BTreeSet<u64>,
    /// Numbers of events that are open for certain hooks alone, by hook.
    narrow: ByHook,
    /// Numbers of events that are open for a hook that is called later, by hook.
    owed: ByHook,
    /// Numbers of events for which later changes of their items wait, by item.
    unsettled: BTreeSet<(ItemHash, u64)>,
}

/// Events of one partition that are not done, by conversation, in the order of the stream.
#[derive(Debug, Default)]
pub struct ConversationOrder {
    conversations: HashMap<ConversationHash, Line>,
    entered: u64,
}

impl ConversationOrder {
    /// Enters the next event of `conversation`, which is about `item`, open for every hook. Must be called in the order of
    /// the stream.
    pub fn enter_event(&mut self, conversation: ConversationHash, item: ItemHash) -> OrderTicket {
        self.entered += 1;
        let number = self.entered;
        let entry = Entry {
            open: Open::AllBut(Vec::new()),
            owed: Vec::new(),
        };

        let line = self.conversations.entry(conversation).or_default();
        line.entries.insert(number, entry);
        line.undecided.insert(number);
        line.wide.insert(number);
        line.unsettled.insert((item, number));

        OrderTicket {
            conversation,
            item,
            number,
        }
    }

    /// Returns whether every earlier event of the conversation has decided which hooks are called later.
    #[must_use]
    pub fn is_turn(&self, ticket: OrderTicket) -> bool {
        let line = self.conversations.get(&ticket.conversation);
        !line.is_some_and(|line| is_before(&line.undecided, ticket.number))
    }

    /// Returns whether every earlier event of the same item is settled.
    #[must_use]
    pub fn is_item_free(&self, ticket: OrderTicket) -> bool {
        let earlier = (ticket.item, 0)..(ticket.item, ticket.number);
        let line = self.conversations.get(&ticket.conversation);
        line.is_none_or(|line| line.unsettled.range(earlier).next().is_none())
    }

    /// Settles the event for its item before it is done: later changes of the item need not wait for it.
    pub fn settle_item(&mut self, ticket: OrderTicket) {
        if let Some(line) = self.conversations.get_mut(&ticket.conversation) {
            line.unsettled.remove(&(ticket.item, ticket.number));
        }
    }

    /// Decides that the hooks `owed` are called later, and all others now.
    pub fn decide_owed(&mut self, ticket: OrderTicket, owed: Vec<String>) {
        let number = ticket.number;
        let Some(line) = self.conversations.get_mut(&ticket.conversation) else {
            return;
        };

        let Some(entry) = line.entries.get_mut(&number) else {
            return;
        };

        line.undecided.remove(&number);

        for hook in std::mem::replace(&mut entry.owed, owed) {
            line.owed.remove(&hook, number);
        }

        for hook in entry.owed.iter().filter(|hook| entry.open.contains(hook)) {
            line.owed.add(hook, number);
        }
    }

    /// Returns the hooks that are called later for an earlier, open event of the conversation.
    #[must_use]
    pub fn owed_hooks(&self, ticket: OrderTicket) -> Vec<String> {
        let Some(line) = self.conversations.get(&ticket.conversation) else {
            return Vec::new();
        };
        let earlier = line.owed.lowest_by_hook().filter(|(_, first)| *first < ticket.number);
        let mut owed: Vec<String> = earlier.map(|(hook, _)| hook.to_owned()).collect();
        owed.sort_unstable();
        owed
    }

    /// Keeps the event open only for `hooks` (except those it is already done with), and for the hooks that are called
    /// later.
    pub fn narrow_to(&mut self, ticket: OrderTicket, hooks: impl IntoIterator<Item = String>) {
        let number = ticket.number;
        let Some(line) = self.conversations.get_mut(&ticket.conversation) else {
            return;
        };

        let Some(entry) = line.entries.get_mut(&number) else {
            return;
        };
        let hooks = hooks.into_iter().chain(entry.owed.iter().cloned());
        let mut open: Vec<String> = hooks.filter(|hook| entry.open.contains(hook)).collect();
        open.sort_unstable();
        open.dedup();

        line.wide.remove(&number);

        // The former entries are removed first, so that a hook is counted once.
        if let Open::Only(former) = &entry.open {
            former.iter().for_each(|hook| line.narrow.remove(hook, number));
        }

        open.iter().for_each(|hook| line.narrow.add(hook, number));
        entry.open = Open::Only(open);
    }

    /// Records that the event is done with `hook`.
    pub fn mark_done(&mut self, ticket: OrderTicket, hook: &str) {
        let number = ticket.number;
        let Some(line) = self.conversations.get_mut(&ticket.conversation) else {
            return;
        };

        let Some(entry) = line.entries.get_mut(&number) else {
            return;
        };
        match &mut entry.open {
            Open::AllBut(done) => done.push(hook.to_owned()),
            Open::Only(open) => open.retain(|id| id != hook),
        }

        line.narrow.remove(hook, number);
        line.owed.remove(hook, number);
    }

    /// Records that the event is done with every hook.
    pub fn leave_order(&mut self, ticket: OrderTicket) {
        let number = ticket.number;
        let Some(line) = self.conversations.get_mut(&ticket.conversation) else {
            return;
        };

        let Some(entry) = line.entries.remove(&number) else {
            return;
        };

        line.undecided.remove(&number);
        line.wide.remove(&number);
        line.unsettled.remove(&(ticket.item, number));

        if let Open::Only(open) = &entry.open {
            open.iter().for_each(|hook| line.narrow.remove(hook, number));
        }

        entry.owed.iter().for_each(|hook| line.owed.remove(hook, number));

        if line.entries.is_empty() {
            self.conversations.remove(&ticket.conversation);
        }
    }

    /// Returns whether the event's dispatch of `hook` may be published: no earlier event of the conversation is open
    /// for it.
    #[must_use]
    pub fn is_clear(&self, ticket: OrderTicket, hook: &str) -> bool {
        let Some(line) = self.conversations.get(&ticket.conversation) else {
            return true;
        };
        let is_open = |number: &u64| line.entries.get(number).is_some_and(|entry| entry.open.contains(hook));
        !line.narrow.has_before(hook, ticket.number) && !line.wide.range(..ticket.number).any(is_open)
    }

    /// Returns the number of earlier events of the conversation that are under way and have no hooks that are called later, at
    /// most `most`.
    #[must_use]
    pub fn earlier_under_way(&self, ticket: OrderTicket, most: usize) -> usize {
        let Some(line) = self.conversations.get(&ticket.conversation) else {
            return 0;
        };
        let earlier = line.entries.range(..ticket.number);
        earlier.filter(|(_, entry)| entry.owed.is_empty()).take(most).count()
    }

    /// Returns whether no event is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.conversations.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use shared::clock::{Clock as _, SystemClock};
    use shared::model::event::EventId;
    use shared::model::time::UnixMillis;

    use super::*;

    /// Enters the next event of the conversation with `peer`, all of one item.
    fn enter(order: &mut ConversationOrder, peer: &str) -> OrderTicket {
        enter_item(order, peer, "webchat:1")
    }

    fn enter_item(order: &mut ConversationOrder, peer: &str, id: &str) -> OrderTicket {
        let id = EventId::parse(id).expect("valid");
        let event = Event::new(id, "webchat", peer, UnixMillis(0));
        order.enter_event(ConversationHash::of_event(&event), ItemHash::of_event(&event))
    }

    fn hooks(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn the_first_is_clear_and_the_second_waits() {
        let mut order = ConversationOrder::default();
        let (first, second) = (enter(&mut order, "a"), enter(&mut order, "a"));
        assert!(order.is_clear(first, "h"));
        assert!(!order.is_clear(second, "h"));

        order.mark_done(first, "h");
        assert!(order.is_clear(second, "h"));
        assert!(
            !order.is_clear(second, "slow"),
            "other hooks of the first are still open"
        );
    }

    #[test]
    fn conversations_do_not_wait_for_each_other() {
        let mut order = ConversationOrder::default();
        let _first = enter(&mut order, "a");
        let other = enter(&mut order, "b");
        assert!(order.is_clear(other, "h"));
    }

    #[test]
    fn a_slow_hook_holds_back_its_own_dispatches_alone() {
        let mut order = ConversationOrder::default();
        let (first, second) = (enter(&mut order, "a"), enter(&mut order, "a"));
        order.narrow_to(first, hooks(&["slow"]));
        assert!(order.is_clear(second, "quick"));
        assert!(!order.is_clear(second, "slow"));
        order.mark_done(first, "slow");
        assert!(order.is_clear(second, "slow"));
    }

    #[test]
    fn narrowing_does_not_reopen() {
        let mut order = ConversationOrder::default();
        let (first, second) = (enter(&mut order, "a"), enter(&mut order, "a"));
        order.mark_done(first, "h");
        order.narrow_to(first, hooks(&["h", "g"]));
        assert!(order.is_clear(second, "h"));
        assert!(!order.is_clear(second, "g"));
    }

    #[test]
    fn a_hook_that_is_called_later_is_owed_to_those_behind_until_it_is_done() {
        let mut order = ConversationOrder::default();
        let tickets = [(); 3].map(|()| enter(&mut order, "a"));
        assert!(order.is_turn(tickets[0]) && !order.is_turn(tickets[1]));

        order.decide_owed(tickets[0], hooks(&["slow"]));
        order.narrow_to(tickets[0], Vec::new());
        assert!(order.is_turn(tickets[1]) && !order.is_turn(tickets[2]));
        assert_eq!(order.owed_hooks(tickets[1]), hooks(&["slow"]));

        order.decide_owed(tickets[1], hooks(&["slow"]));
        assert!(order.is_clear(tickets[1], "quick") && !order.is_clear(tickets[1], "slow"));

        order.mark_done(tickets[0], "slow");
        assert!(order.is_clear(tickets[1], "slow"));
        assert_eq!(order.owed_hooks(tickets[2]), hooks(&["slow"]), "of the second");

        order.leave_order(tickets[1]);
        assert_eq!(order.owed_hooks(tickets[2]), hooks(&[]));
    }

    #[test]
    fn an_event_behind_a_hundred_thousand_that_are_called_later_costs_what_one_behind_ten_does() {
        const EVENTS: usize = 100_000;

        let clock = SystemClock;
        let begun = clock.monotonic();
        let mut order = ConversationOrder::default();

        let tickets: Vec<OrderTicket> = (0..EVENTS)
            .map(|_| {
                let ticket = enter(&mut order, "a");
                assert!(order.is_turn(ticket) && order.owed_hooks(ticket).len() < 2);
                order.decide_owed(ticket, hooks(&["slow"]));
                assert!(order.is_clear(ticket, "quick"));
                order.narrow_to(ticket, Vec::new());
                ticket
            })
            .collect();

        // The last one leaves first, so that each search passes all others.
        let (first, others) = tickets.split_first().expect("some");
        for ticket in others.iter().rev() {
            assert!(!order.is_clear(*ticket, "slow"));
            order.mark_done(*ticket, "slow");
            order.leave_order(*ticket);
        }

        assert!(order.is_clear(*first, "slow"));

        order.leave_order(*first);
        assert!(order.is_empty());

        let took = clock.monotonic().duration_since(begun);
        assert!(took < Duration::from_secs(20), "{took:?}");
    }

    #[test]
    fn earlier_events_are_counted_that_wait_for_no_hook_which_is_called_later() {
        let mut order = ConversationOrder::default();
        let tickets = [(); 4].map(|()| enter(&mut order, "a"));
        let other = enter(&mut order, "b");
        assert_eq!(tickets.map(|ticket| order.earlier_under_way(ticket, 2)), [0, 1, 2, 2]);
        assert_eq!(order.earlier_under_way(other, 2), 0);

        order.decide_owed(tickets[0], hooks(&["slow"]));
        order.narrow_to(tickets[0], Vec::new());
        order.narrow_to(tickets[1], hooks(&["reads"]));
        order.leave_order(tickets[2]);
        assert_eq!(order.earlier_under_way(tickets[3], 9), 1, "the second");
    }

    #[test]
    fn a_change_waits_for_the_earlier_events_of_its_item_alone() {
        let mut order = ConversationOrder::default();
        let (first, _other) = (
            enter_item(&mut order, "a", "webchat:1"),
            enter_item(&mut order, "a", "webchat:2"),
        );
        let changes = [(); 2].map(|()| enter_item(&mut order, "a", "webchat:1"));
        let free = |order: &ConversationOrder| changes.map(|change| order.is_item_free(change));
        assert!(order.is_item_free(first));
        assert_eq!(free(&order), [false, false]);

        order.narrow_to(first, Vec::new());
        assert_eq!(free(&order), [false, false], "its record is not stored yet");

        order.leave_order(first);
        assert_eq!(free(&order), [true, false]);

        order.settle_item(changes[0]);
        assert_eq!(free(&order), [true, true], "its own hooks are still under way");
        for change in changes {
            order.leave_order(change);
        }
        assert!(!order.is_empty(), "the other item's event is under way");
    }

    #[test]
    fn a_dispatch_waits_for_every_earlier_event() {
        let mut order = ConversationOrder::default();
        let tickets = [(); 3].map(|()| enter(&mut order, "a"));
        order.leave_order(tickets[1]);
        assert!(!order.is_clear(tickets[2], "h"), "the first is still open");
        order.leave_order(tickets[0]);
        assert!(order.is_clear(tickets[2], "h"));
        order.leave_order(tickets[2]);
        assert!(order.is_empty());
    }
}
