//! The order of publishing within one partition: event k+1's dispatch of a hook goes out only after event k of
//! the same conversation is done with that hook. *Pure.*
//!
//! Events are evaluated in parallel, so their answers arrive in any order. What must keep event order is each
//! (hook, conversation): a slow hook holds back its own later dispatches and nobody else's. An entry is made for
//! every event in the order of the stream; it is *open* for a hook until the hook passed, failed, or its dispatch
//! is stored. Done is transitive by construction: a dispatch waits for *every* earlier entry of its conversation.
//!
//! Conversations are told apart by a hash. Two that collide wait for each other needlessly; order never suffers.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use shared::model::event::Event;

/// A conversation, by hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Conversation(u64);

impl Conversation {
    /// The conversation of `event`.
    #[must_use]
    pub fn of(event: &Event) -> Self {
        let mut hasher = DefaultHasher::new();
        event.conversation().hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// Where an event stands in its conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    conversation: Conversation,
    number: u64,
}

/// For which hooks an event is not done.
#[derive(Debug)]
enum Open {
    /// All but these: the silent ones are not known.
    AllBut(Vec<String>),
    /// These alone.
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
    number: u64,
    open: Open,
    /// Which hooks are called now, and which later, is decided.
    decided: bool,
    /// Hooks that are called later: the event stays open for them.
    owed: Vec<String>,
}

/// The events of one partition that are not done, by conversation, in the order of the stream.
#[derive(Debug, Default)]
pub struct Order {
    conversations: HashMap<Conversation, Vec<Entry>>,
    entered: u64,
}

impl Order {
    /// The next event of `conversation`, open for every hook. To be called in the order of the stream.
    pub fn enter(&mut self, conversation: Conversation) -> Ticket {
        self.entered += 1;
        let entry = Entry {
            number: self.entered,
            open: Open::AllBut(Vec::new()),
            decided: false,
            owed: Vec::new(),
        };
        self.conversations.entry(conversation).or_default().push(entry);
        Ticket {
            conversation,
            number: self.entered,
        }
    }

    /// Whether it is decided of every earlier event of the conversation which hooks are called later.
    #[must_use]
    pub fn is_turn(&self, ticket: Ticket) -> bool {
        self.earlier(ticket).all(|entry| entry.decided)
    }

    /// The hooks `owed` are called later, all others now.
    pub fn decide(&mut self, ticket: Ticket, owed: Vec<String>) {
        if let Some(entry) = self.entry(ticket) {
            entry.decided = true;
            entry.owed = owed;
        }
    }

    /// The hooks for which an earlier event of the conversation is open and called later.
    #[must_use]
    pub fn owed(&self, ticket: Ticket) -> Vec<String> {
        let mut owed: Vec<String> = self
            .earlier(ticket)
            .flat_map(|entry| entry.owed.iter().filter(|hook| entry.open.contains(hook)).cloned())
            .collect();
        owed.sort_unstable();
        owed.dedup();
        owed
    }

    /// From now on the event is open for these hooks alone (those it is already done with excepted), and for those that
    /// are called later.
    pub fn narrow(&mut self, ticket: Ticket, hooks: impl IntoIterator<Item = String>) {
        if let Some(entry) = self.entry(ticket) {
            let hooks = hooks.into_iter().chain(entry.owed.iter().cloned());
            let open = hooks.filter(|hook| entry.open.contains(hook)).collect();
            entry.open = Open::Only(open);
        }
    }

    /// The event is done with `hook`.
    pub fn done(&mut self, ticket: Ticket, hook: &str) {
        if let Some(entry) = self.entry(ticket) {
            match &mut entry.open {
                Open::AllBut(done) => done.push(hook.to_owned()),
                Open::Only(open) => open.retain(|id| id != hook),
            }
        }
    }

    /// The event is done with every hook.
    pub fn leave(&mut self, ticket: Ticket) {
        if let Some(entries) = self.conversations.get_mut(&ticket.conversation) {
            entries.retain(|entry| entry.number != ticket.number);
            if entries.is_empty() {
                self.conversations.remove(&ticket.conversation);
            }
        }
    }

    /// Whether the event's dispatch of `hook` may go out: no earlier event of the conversation is open for it.
    #[must_use]
    pub fn is_clear(&self, ticket: Ticket, hook: &str) -> bool {
        !self.earlier(ticket).any(|entry| entry.open.contains(hook))
    }

    fn earlier(&self, ticket: Ticket) -> impl Iterator<Item = &Entry> {
        let entries = self.conversations.get(&ticket.conversation).into_iter().flatten();
        entries.take_while(move |entry| entry.number < ticket.number)
    }

    /// Whether no event is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.conversations.is_empty()
    }

    fn entry(&mut self, ticket: Ticket) -> Option<&mut Entry> {
        let entries = self.conversations.get_mut(&ticket.conversation)?;
        entries.iter_mut().find(|entry| entry.number == ticket.number)
    }
}

#[cfg(test)]
mod tests {
    use shared::model::event::EventId;
    use shared::model::time::UnixMillis;

    use super::*;

    fn conversation(peer: &str) -> Conversation {
        let id = EventId::parse("webchat:1").expect("valid");
        Conversation::of(&Event::new(id, "webchat", peer, UnixMillis(0)))
    }

    fn hooks(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn the_first_is_clear_and_the_second_waits() {
        let mut order = Order::default();
        let (first, second) = (order.enter(conversation("a")), order.enter(conversation("a")));
        assert!(order.is_clear(first, "h"));
        assert!(!order.is_clear(second, "h"));
        order.done(first, "h");
        assert!(order.is_clear(second, "h"));
        assert!(
            !order.is_clear(second, "slow"),
            "other hooks of the first are still open"
        );
    }

    #[test]
    fn conversations_do_not_wait_for_each_other() {
        let mut order = Order::default();
        let _first = order.enter(conversation("a"));
        let other = order.enter(conversation("b"));
        assert!(order.is_clear(other, "h"));
    }

    #[test]
    fn a_slow_hook_holds_back_its_own_dispatches_alone() {
        let mut order = Order::default();
        let (first, second) = (order.enter(conversation("a")), order.enter(conversation("a")));
        order.narrow(first, hooks(&["slow"]));
        assert!(order.is_clear(second, "quick"));
        assert!(!order.is_clear(second, "slow"));
        order.done(first, "slow");
        assert!(order.is_clear(second, "slow"));
    }

    #[test]
    fn narrowing_does_not_reopen() {
        let mut order = Order::default();
        let (first, second) = (order.enter(conversation("a")), order.enter(conversation("a")));
        order.done(first, "h");
        order.narrow(first, hooks(&["h", "g"]));
        assert!(order.is_clear(second, "h"));
        assert!(!order.is_clear(second, "g"));
    }

    #[test]
    fn a_hook_that_is_called_later_is_owed_to_those_behind_until_it_is_done() {
        let mut order = Order::default();
        let tickets = [(); 3].map(|()| order.enter(conversation("a")));
        assert!(order.is_turn(tickets[0]) && !order.is_turn(tickets[1]));
        order.decide(tickets[0], hooks(&["slow"]));
        order.narrow(tickets[0], Vec::new());
        assert!(order.is_turn(tickets[1]) && !order.is_turn(tickets[2]));
        assert_eq!(order.owed(tickets[1]), hooks(&["slow"]));
        order.decide(tickets[1], hooks(&["slow"]));
        assert!(order.is_clear(tickets[1], "quick") && !order.is_clear(tickets[1], "slow"));
        order.done(tickets[0], "slow");
        assert!(order.is_clear(tickets[1], "slow"));
        assert_eq!(order.owed(tickets[2]), hooks(&["slow"]), "of the second");
        order.leave(tickets[1]);
        assert_eq!(order.owed(tickets[2]), hooks(&[]));
    }

    #[test]
    fn a_dispatch_waits_for_every_earlier_event() {
        let mut order = Order::default();
        let tickets = [(); 3].map(|()| order.enter(conversation("a")));
        order.leave(tickets[1]);
        assert!(!order.is_clear(tickets[2], "h"), "the first is still open");
        order.leave(tickets[0]);
        assert!(order.is_clear(tickets[2], "h"));
        order.leave(tickets[2]);
        assert!(order.is_empty());
    }
}
