//! Owed evaluations begin in order, a few at once, and within their bounds.

use shared::clock::{Clock as _, SystemClock};
use shared::model::event::{Event, EventId};
use shared::model::time::UnixMillis;

use super::*;
use crate::evaluation::conversations::{ConversationQueues, MessagePlacement};
use crate::evaluation::order_gate::OrderGate;

fn owed(gate: &OrderGate, peer: &str, sequence: u64) -> DeferredEvent {
    owed_to(gate, peer, sequence, &["slow"])
}

fn owed_to(gate: &OrderGate, peer: &str, sequence: u64, hooks: &[&str]) -> DeferredEvent {
    let id = EventId::parse(format!("webchat:{peer}/{sequence}")).expect("valid");
    let event = Event::new(id, "webchat", peer, UnixMillis(0));

    DeferredEvent {
        conversation: ConversationHash::of_event(&event),
        numbers: MessageNumbers {
            sequence,
            handed: sequence,
        },
        place: gate.enter_event(&event),
        hooks: hooks.iter().map(|hook| (*hook).to_owned()).collect(),
        since: SystemClock.monotonic(),
        _waiting: WaitingEvent::start_waiting(),
    }
}

/// Records that the event of `conversation` at `sequence` owes no more evaluations.
fn whole(conversation: ConversationHash, sequence: u64) -> DeferredResult {
    DeferredResult {
        conversation,
        sequence,
        rest: None,
    }
}

/// Begins all events of `conversation` that may begin.
fn begin(all: &mut DeferredEvents, conversation: ConversationHash) -> Vec<DeferredEvent> {
    std::iter::from_fn(|| all.next(conversation)).collect()
}

#[test]
fn events_of_a_conversation_begin_in_order_and_a_few_at_once() {
    let gate = OrderGate::default();
    let mut all = DeferredEvents::default();
    let first = owed(&gate, "a", 1);
    let (conversation, most) = (first.conversation, ALWAYS as u64);
    let events = (2..=most + 2).rev().map(|sequence| owed(&gate, "a", sequence));
    events.chain([first]).for_each(|event| all.add(event));
    let other = owed(&gate, "b", 100);
    let beside = other.conversation;
    all.add(other);

    let begun: Vec<u64> = std::iter::from_fn(|| all.next(conversation).map(|event| event.numbers.sequence)).collect();
    assert_eq!(begun, (1..=most).collect::<Vec<_>>());
    assert!(all.next(beside).is_some(), "conversations do not wait for each other");

    all.note_made(whole(conversation, 1));
    assert_eq!(
        all.next(conversation).map(|event| event.numbers.sequence),
        Some(most + 1)
    );

    all.note_made(whole(beside, 100));
    assert_eq!(all.lanes.len(), 1);
}

#[test]
fn an_event_that_comes_late_begins_before_those_that_wait_for_it() {
    let gate = OrderGate::default();
    let mut all = DeferredEvents::default();
    let late = owed(&gate, "a", 1);
    let (conversation, most) = (late.conversation, ALWAYS as u64);
    (2..=most + 3).for_each(|sequence| all.add(owed(&gate, "a", sequence)));
    while all.next(conversation).is_some() {}

    all.add(late);
    assert_eq!(all.next(conversation).map(|event| event.numbers.sequence), Some(1));
    assert!(all.next(conversation).is_none(), "no more than that one");

    all.note_made(whole(conversation, 1));
    assert!(all.next(conversation).is_none());

    all.note_made(whole(conversation, 2));
    assert_eq!(
        all.next(conversation).map(|event| event.numbers.sequence),
        Some(most + 2)
    );
}

#[test]
fn those_who_wait_for_one_author_keep_nobody_from_another() {
    let gate = OrderGate::default();
    let mut all = DeferredEvents::default();
    let (most, crowd) = (ALWAYS as u64, 5 * ALWAYS as u64);

    // Events owe both hooks, one and the other in turn.
    let hooks = |sequence| match sequence % 3 {
        0 => &["still", "good"][..],
        1 => &["still"],
        _ => &["good"],
    };
    let events: Vec<DeferredEvent> = (0..crowd).map(|at| owed_to(&gate, "a", at, hooks(at))).collect();
    let conversation = events[0].conversation;
    events.into_iter().for_each(|event| all.add(event));

    let mut good = Vec::new();
    let mut under_way = begin(&mut all, conversation);
    assert!(under_way.len() < 2 * ALWAYS);

    // The good author gets places at once, the other never does.
    while let Some(at) = under_way
        .iter()
        .position(|event| event.hooks.iter().any(|hook| hook == "good"))
    {
        let mut event = under_way.remove(at);
        let sequence = event.numbers.sequence;
        good.push(sequence);
        event.hooks.retain(|hook| hook != "good");
        let rest = (!event.hooks.is_empty()).then_some(event);
        all.note_made(DeferredResult {
            rest,
            ..whole(conversation, sequence)
        });

        under_way.extend(begin(&mut all, conversation));
        let still = under_way
            .iter()
            .filter(|event| event.hooks.iter().any(|hook| hook == "still"));

        assert!(still.count() < 2 * ALWAYS);
    }

    assert_eq!(good, (0..crowd).filter(|at| at % 3 != 1).collect::<Vec<_>>());

    let (lane, owing) = (&all.lanes[&conversation], (0..crowd).filter(|at| at % 3 != 2).count());
    assert_eq!(
        (all.total, lane.len()),
        (owing, owing),
        "all others are kept for the other"
    );
    assert!(lane.running.len() as u64 >= most);

    let mut still = Vec::new();
    while !under_way.is_empty() {
        under_way.sort_by_key(|event| event.numbers.sequence);
        let event = under_way.remove(0);
        still.push(event.numbers.sequence);
        all.note_made(whole(conversation, event.numbers.sequence));
        under_way.extend(begin(&mut all, conversation));
    }

    assert_eq!(still, (0..crowd).filter(|at| at % 3 != 2).collect::<Vec<_>>());
    assert!(all.lanes.is_empty() && all.total == 0);
}

/// A partition whose every event owes evaluations.
struct Partition {
    gate: OrderGate,
    owed: DeferredEvents,
    lanes: ConversationQueues<(String, u64)>,
    /// Conversation of each message that is kept as numbers.
    peers: HashMap<u64, String>,
}

impl Partition {
    fn come(&mut self, peer: &str, sequence: u64) {
        let conversation = owed(&self.gate, peer, sequence).conversation;
        self.peers.insert(sequence, peer.to_owned());
        let numbers = MessageNumbers {
            sequence,
            handed: sequence,
        };

        let room = self.owed.room_for(conversation);
        if self.lanes.place_message(conversation, numbers, room) == MessagePlacement::Memory {
            self.lanes.hold_event(conversation, (peer.to_owned(), sequence));
        }

        self.go_on(conversation);
    }

    fn go_on(&mut self, conversation: ConversationHash) {
        loop {
            while let Some((peer, sequence)) = self.lanes.start(conversation) {
                self.owed.add(owed(&self.gate, &peer, sequence));
                self.lanes.note_ended(conversation);
            }

            let room = self.owed.room_for(conversation);
            let Some(numbers) = self.lanes.read_next(conversation, room) else {
                break;
            };

            self.lanes.was_read(conversation);
            let peer = self.peers[&numbers.sequence].clone();
            self.lanes.hold_event(conversation, (peer, numbers.sequence));
        }

        self.lanes.forget_idle(conversation);
    }

    fn of(&self, conversation: ConversationHash) -> usize {
        let lane = self.owed.lanes.get(&conversation);
        lane.map_or(0, Lane::len)
    }
}

#[test]
fn what_is_owed_is_bounded_and_all_of_it_is_made_in_order_all_the_same() {
    const CROWD: u64 = 3_000;
    const OTHERS: u64 = 9_000;

    let mut partition = Partition {
        gate: OrderGate::default(),
        owed: DeferredEvents::default(),
        lanes: ConversationQueues::new(64),
        peers: HashMap::new(),
    };

    let crowd = owed(&partition.gate, "crowd", 0).conversation;
    (1..=CROWD).for_each(|sequence| partition.come("crowd", sequence));
    assert_eq!(partition.of(crowd), MAX_OWED_PER_CONVERSATION);

    (1..=OTHERS).for_each(|number| partition.come(&number.to_string(), CROWD + number));
    assert_eq!(partition.owed.total, MAX_OWED);
    assert_eq!(partition.of(crowd), MAX_OWED_PER_CONVERSATION);

    let mut begun: VecDeque<DeferredEvent> = VecDeque::new();
    let conversations: Vec<ConversationHash> = partition.owed.lanes.keys().copied().collect();
    for conversation in conversations {
        begun.extend(std::iter::from_fn(|| partition.owed.next(conversation)));
    }

    let (mut made, mut of_crowd) = (HashSet::new(), Vec::new());
    while let Some(event) = begun.pop_front() {
        let (conversation, sequence) = (event.conversation, event.numbers.sequence);
        made.insert(sequence);

        if conversation == crowd {
            of_crowd.push(sequence);
        }

        partition.owed.note_made(whole(conversation, sequence));

        for conversation in [Some(conversation), partition.owed.wake_waiting()]
            .into_iter()
            .flatten()
        {
            partition.go_on(conversation);
            begun.extend(std::iter::from_fn(|| partition.owed.next(conversation)));
        }

        assert!(partition.owed.total <= MAX_OWED && partition.of(crowd) <= MAX_OWED_PER_CONVERSATION);
    }

    assert_eq!(made.len() as u64, CROWD + OTHERS, "none is lost");
    assert_eq!(of_crowd, (1..=CROWD).collect::<Vec<_>>());
    assert!(partition.owed.lanes.is_empty() && partition.owed.stopped.is_empty() && partition.owed.total == 0);
}
