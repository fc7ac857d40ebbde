//! Tests against a real server and real workers.

use hook_svc::runner::NoHost;
use shared::bus::OutgoingMessage;
use shared::model::event::EventId;
use shared::model::origin::EventOrigin;
use shared::model::time::UnixMillis;
use shared::testing::nats::NatsServer;
use shared::wire::topology::topology;

use super::*;

use crate::complain;

/// Number of events in the long form of the test.
const LONG: u64 = 100_000;

/// Starts a server with `count` events, every tenth of them on channel `sms`.
async fn history(count: u64) -> (NatsServer, Bus) {
    let (server, bus) = shared::testing::world().await;
    let published = stream::iter(0..count).map(|number| {
        let bus = &bus;
        async move {
            let channel = if number % 10 == 0 { "sms" } else { "webchat" };
            let id = EventId::parse(format!("{channel}:{number}")).expect("valid");
            let at = UnixMillis(1_769_000_000_000 + i64::try_from(number).expect("small") * 1_000);
            let mut event = Event::new(id, channel, &format!("p{}", number % 100), at);
            event.content = format!("message {number}");
            let out = OutgoingMessage::event(&event, bus.trust());
            bus.publish(out).await.expect("published");
        }
    });

    published.buffer_unordered(256).collect::<Vec<()>>().await;
    (server, bus)
}

fn question(source: &str) -> Question {
    Question {
        source: source.to_owned(),
        since: None,
        channel: None,
        limit: u64::MAX,
        identities: Identities::default(),
    }
}

async fn run(bus: &Bus, question: Question) -> Report {
    let bar = ProgressBar::hidden();
    replay(bus, &HooksConfig::default(), Arc::new(NoHost), &question, &bar)
        .await
        .expect("replayed")
}

const SEVENS: &str =
    "export default ({ event, now }) => ({ fire: event.content.endsWith('7') && now.getTime() === event.timestamp });";

#[tokio::test(flavor = "multi_thread")]
async fn history_says_when_a_hook_would_have_fired_and_nothing_moves() {
    let (_server, bus) = history(300).await;
    let before = sequences(&bus).await;
    let report = run(&bus, question(SEVENS)).await;

    assert_eq!((report.events, report.fires, report.failures), (300, 30, 0));
    assert_eq!(report.by_channel.get("webchat"), Some(&30));

    let sms = Question {
        channel: Some("sms".to_owned()),
        ..question("export default () => ({ fire: true });")
    };
    assert_eq!(run(&bus, sms.clone()).await.fires, 30);

    let recent = Question {
        since: Some(SystemClock.now().plus(-3_600_000)),
        limit: 7,
        ..sms
    };
    assert_eq!(run(&bus, recent).await.events, 7);

    let matching = "/** @match channel=sms */\nexport default () => ({ fire: true });";
    let report = run(&bus, question(matching)).await;
    assert_eq!(
        (report.events, report.fires),
        (300, 30),
        "it sees the events that it would have seen then"
    );

    let absent = Question {
        channel: Some("nowhere".to_owned()),
        ..question(SEVENS)
    };
    assert_eq!(run(&bus, absent).await.events, 0);
    assert_eq!(
        sequences(&bus).await,
        before,
        "nothing is published, nothing is consumed"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_counts_retires_or_fails_is_replayed_as_it_would_have_run() {
    let (_server, bus) = history(120).await;
    // One event per second, and ten seconds between fires.
    let beat = "export default ({ event, hook }) => ({ fire: event.timestamp - (hook.last_triggered ?? 0) >= 10000 });";
    assert_eq!(run(&bus, question(beat)).await.fires, 12);

    let once = format!("/** @mode one-shot */\n{SEVENS}");
    let report = run(&bus, question(&once)).await;
    assert_eq!((report.fires, report.disabled_by.is_some()), (1, true));

    let throws = "export default ({ event }) => { if (event.channel === 'sms') throw new Error('boom'); return { fire: false }; };";
    assert_eq!(run(&bus, question(throws)).await.failures, 12);

    let reads = "import Database from 'better-sqlite3';
        export default ({ event, dbPath }) => {
            const db = new Database(dbPath, { readonly: true });
            const row = db.prepare('SELECT count(*) AS n FROM events WHERE id = ?').get(event.id);
            db.close();
            return { fire: row.n === 1 };
        };";

    let some = Question {
        limit: 20,
        ..question(reads)
    };
    let report = run(&bus, some).await;
    assert_eq!((report.fires, report.failures), (20, 0), "{:?}", report.failed);
}

/// Script of the older spelling that asks for the writer, and for the number of messages so far.
const FAMILY: &str = "import Database from 'better-sqlite3';
export default ({ event, dbPath }) => {
  const db = new Database(dbPath, { readonly: true });
  const { n } = db.prepare('SELECT count(*) AS n FROM events').get();
  const person = db.prepare(`SELECT p.relationship_type AS kind FROM event_participants ep
    JOIN person_contact_links l ON ep.contact_id = l.contact_id JOIN persons p ON p.id = l.person_id
    WHERE ep.event_id = ? AND ep.role = 'sender'`).get(event.id);
  db.close();
  if (n !== Number(event.content.split(' ')[1]) + 1) throw new Error(`${n} events at ${event.content}`);
  return { fire: person?.kind === 'family' };
};";

/// Asserts that of forty events every fourth fires, those of Mom.
fn fires_for_mom(report: &Report) {
    assert_eq!(
        (report.events, report.fires, report.failures),
        (40, 10, 0),
        "{:?}",
        report.failed
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_that_reads_the_read_model_sees_what_was_there_then_and_who_is_who() {
    let (_server, bus) = history(0).await;
    let last = 40_u32;
    for number in 0..last {
        let at = UnixMillis(1_769_000_000_000 + i64::from(number));
        let id = EventId::parse(format!("sms:{number}")).expect("valid");
        let mut event = Event::new(id, "sms", "p", at);
        event.from.id = if number % 4 == 0 { "+1mom" } else { "+1else" }.to_owned();
        event.content = format!("message {number}");
        event.origin = EventOrigin::account("sms", event.account());
        let out = OutgoingMessage::event(&event, bus.trust());
        bus.publish(out).await.expect("published");
    }

    let known = "persons:\n  - {id: mom, relationship: family, addresses: {sms: ['+1mom']}}\n";
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("identities.yaml");
    std::fs::write(&path, known).expect("written");
    let (identities, _) = identities::load(&path.to_string_lossy(), "").expect("sound");

    let report = run(
        &bus,
        Question {
            identities: identities.clone(),
            ..question(FAMILY)
        },
    )
    .await;

    fires_for_mom(&report);
    // A hook that is shown only some events knows of the others all the same.
    let matching = format!("/** @match from=+1mom */\n{FAMILY}");
    let report = run(
        &bus,
        Question {
            identities,
            ..question(&matching)
        },
    )
    .await;

    fires_for_mom(&report);
    assert_eq!(run(&bus, question(FAMILY)).await.fires, 0, "nobody is known");
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::disallowed_methods, reason = "the long form is asked for by a variable")]
async fn a_hundred_thousand_events_take_less_than_half_a_minute() {
    let long = std::env::var_os("NEXUS_BACKTEST").is_some();
    let count = if long { LONG } else { LONG / 20 };
    let (_server, bus) = history(count).await;
    let report = run(&bus, question(SEVENS)).await;
    complain!("{count} events in {:.2} s", report.seconds);
    assert_eq!(report.fires, count / 10);
    assert!(report.seconds < 30.0, "{} s", report.seconds);
}

/// Returns the last sequence of every stream.
async fn sequences(bus: &Bus) -> Vec<(String, u64)> {
    let mut all = Vec::new();
    for stream in topology(1).streams {
        let state = bus.stream_state(&stream.name).await.expect("its state");
        all.push((stream.name.to_string(), state.last));
    }
    all
}
