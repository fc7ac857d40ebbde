//! Cost of ten thousand bindings per event: `cargo run --release -p hook-svc --example bindings`.

use std::fmt::Write as _;
use std::time::Duration;

use hook_svc::routing::bindings::BindingTable;
use shared::clock::{Clock as _, SystemClock};
use shared::model::event::{Event, EventId, PeerKind};
use shared::model::time::UnixMillis;

const BINDINGS: usize = 10_000;
const EVENTS: usize = 100_000;

fn main() {
    let mut file = String::from("bindings:\n  - { persona: default }\n");
    for n in 0..BINDINGS {
        let matches = match n % 4 {
            0 => format!("channel: discord, guild: g{}, peer: {{ id: room{n} }}", n % 100),
            1 => format!("channel: whatsapp, account: biz, peer: {{ kind: dm, id: \"+1555{n:07}\" }}"),
            2 => format!("guild: g{n}, roles: [admin, mod]"),
            _ => format!("channel: imessage, peer: {{ id: \"+1666{n:05}*\" }}"),
        };

        writeln!(file, "  - {{ persona: p{n}, match: {{ {matches} }} }}").expect("a text grows");
    }

    let begun = SystemClock.monotonic();
    let table = BindingTable::parse(&file).expect("a file");
    println!(
        "{} bindings read and compiled in {:?}",
        table.len(),
        SystemClock.monotonic() - begun
    );

    let events: Vec<Event> = (0..1_000).map(event).collect();
    let mut taken: Vec<Duration> = (0..EVENTS)
        .map(|n| {
            let begun = SystemClock.monotonic();
            assert!(table.decide_route(&events[n % events.len()]).is_some());
            SystemClock.monotonic() - begun
        })
        .collect();

    taken.sort();
    let mean = taken.iter().sum::<Duration>() / u32::try_from(EVENTS).expect("it fits");
    println!(
        "an event: mean {mean:?}, p50 {:?}, p99 {:?}, most {:?}",
        taken[EVENTS / 2],
        taken[EVENTS / 100 * 99],
        taken[EVENTS - 1]
    );
}

fn event(n: usize) -> Event {
    let id = EventId::parse(format!("x:{n}")).expect("valid");
    let binding = n * 10;
    let (channel, peer) = match binding % 4 {
        0 => ("discord", format!("room{binding}")),
        1 => ("whatsapp", format!("+1555{binding:07}")),
        2 => ("discord", "elsewhere".to_owned()),
        _ => ("imessage", format!("+1666{binding:05}99")),
    };

    let mut event = Event::new(id, channel, &peer, UnixMillis(1));
    event.account_id = (channel == "whatsapp").then(|| "biz".to_owned());

    if channel == "discord" {
        event.peer.kind = PeerKind::Channel;
        event.peer.guild_id = Some(format!("g{}", binding % 100));
        event.from.roles = vec!["mod".to_owned()];
    }

    event.content = "Hi there, this is a message of the usual length of a chat message, and nothing of note".to_owned();
    event
}
