//! An agent that asks for its own future by tools: asked once though its broker dies, moved, refused, withdrawn while it
//! runs, and fired at its local time.

use cli::launch::service::signal;
use serde_json::{Value, json};
use shared::clock::{Clock as _, SystemClock};
use shared::model::intent::service::{GetIntent, IntentHistory, IntentList, ListIntents};
use shared::model::intent::{Intent, IntentStatus};
use shared::model::ledger::{LedgerEntry, LedgerRecord};
use shared::model::time::UnixMillis;
use shared::testing::ModelServer;
use shared::testing::model_server::{
    AnswerEnding, CutPoint, ModelWire, RecordedRequest, ScriptedAnswer, ScriptedCall, ScriptedSpeech,
};
use shared::wire::subject;
use shared::wire::topology::streams;
use tests::eventually::eventually;
use tests::world::{Setup, World};

use crate::approval::ANSWER;
use crate::intents::{ask, at};
use crate::story::{PATIENCE, delivered, delivers, event, send, session};

const PERSONAS: &str = "personas: {default: {runner: llm}}";
const HOUR_MS: i64 = 3_600_000;
/// A zone that never changes its clocks, this far ahead of UTC.
const ZONE: (&str, i64) = ("Asia/Tokyo", 9 * HOUR_MS);

/// `hour` o'clock of tomorrow in [`ZONE`], as people there write it, and when that is.
fn tomorrow(hour: i64) -> (String, UnixMillis) {
    let days = (SystemClock.now().0 + ZONE.1).div_euclid(24 * HOUR_MS) + 1;
    // Years that begin in March, so that the leap day is their last.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;

    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let due = UnixMillis(days * 24 * HOUR_MS + hour * HOUR_MS - ZONE.1);

    (format!("{year:04}-{month:02}-{day:02}T{hour:02}:00"), due)
}

fn wish(kind: &str, parameters: &Value, schedule: &Value) -> Value {
    json!({"kind": kind, "parameters": parameters, "schedule": schedule, "reason": "the interview"})
}

/// The name of the intent that a tool's answer tells of.
fn named(told: &str) -> &str {
    let (_, rest) = told.split_once(r#""id":""#).unwrap_or_default();
    rest.split('"').next().unwrap_or_default()
}

/// What the model does in each of the turns of the story.
fn model(request: &RecordedRequest) -> ScriptedAnswer {
    let (said, told) = (request.last_user_text(), request.tool_results());
    let last = told.last().map_or("", String::as_str);
    let call = |name: &str, arguments: Value| {
        ScriptedAnswer::calls([ScriptedCall::new(&format!("c{}", told.len() + 1), name, &arguments)])
    };
    let schedule = |hour| json!({"type": "at", "local": tomorrow(hour).0, "zone": ZONE.0});
    let interview = json!({"subject": "interview", "message": "good luck", "target": "here"});

    let is = |part| said.contains(part);
    match told.len() {
        0 if is("remind me") => call("schedule_intent", wish("remind", &interview, &schedule(8))),
        0 if is("dance") => call("schedule_intent", wish("dance", &json!({}), &schedule(8))),
        0 if is("ask me soon") => {
            let soon = json!({"type": "after", "seconds": 1});
            call(
                "schedule_intent",
                wish("follow_up", &json!({"prompt": "how was it"}), &soon),
            )
        }
        0 if is("make it nine") => call("list_intents", json!({"status": "pending"})),
        0 if is("stop it") => call("list_intents", json!({"status": "running"})),
        1 if is("make it nine") => {
            let moved = json!({"id": named(last), "schedule": schedule(9), "reason": "the interview was moved"});
            call("reschedule_intent", moved)
        }
        1 if is("stop it") => call("cancel_intent", json!({"id": named(last), "reason": "nobody wants it"})),
        0 if is("how was it") => half_an_answer(),
        0 if is("Reminder: interview") => ScriptedAnswer::text("Good luck!"),
        _ => ScriptedAnswer::text(&format!("the tool says: {last}")),
    }
}

/// An answer that does not come to its end.
fn half_an_answer() -> ScriptedAnswer {
    let speech = ScriptedSpeech {
        text: vec!["half of".to_owned(), " an answer".to_owned()],
        ..ScriptedSpeech::default()
    };
    let mut bytes = ModelWire::OpenAi.stream(&speech);
    bytes.truncate(bytes.len() / 2);

    ScriptedAnswer::Raw {
        bytes,
        cut: CutPoint::Whole,
        ending: AnswerEnding::Held,
    }
}

struct Story {
    world: World,
    model: ModelServer,
}

impl Story {
    async fn begin() -> Self {
        let server = ModelServer::ruled(|request, _| model(request)).await;
        let sections = format!(
            "[llm]\nprovider = \"openai\"\nmodel = \"any\"\nprices.any = {{ input = 0, output = 0 }}\nbase_url = {:?}\n[scheduler]\nclock_offset_ms = 0\n",
            server.base_url("openai")
        );

        let world = World::start(Setup {
            hooks: vec![("answer.ts", ANSWER.to_owned())],
            personas: PERSONAS.to_owned(),
            adapter: sections,
            ..Setup::default()
        })
        .await;

        Self { world, model: server }
    }

    async fn says(&self, number: u32, peer: &str, content: &str) {
        send(&self.world, &event(&format!("e2e:{peer}/{number}"), peer, content)).await;
    }

    /// Waits until an entry that `is` wanted stands in the ledger of `peer`'s session.
    async fn noted(&self, peer: &str, what: &str, is: fn(&LedgerEntry) -> bool) {
        eventually(what, PATIENCE, async || {
            let subject = subject::ledger(&session(peer));
            let ledger = self.world.bus.read_history(streams::LEDGER, &subject, 1, 1_000).await;
            let stored = ledger.map_err(|error| error.to_string())?;
            let records = stored.iter().filter_map(|stored| stored.decode::<LedgerRecord>().ok());
            let entries: Vec<LedgerEntry> = records.flat_map(|record| record.entries).collect();

            if entries.iter().any(is) {
                return Ok(());
            }
            Err(format!("{entries:?}\n{}", self.world.logs()))
        })
        .await;
    }

    /// The scheduler begins anew, with its clock `ahead_ms` before the host's.
    async fn goes_on_at(&mut self, ahead_ms: i64) {
        let path = self.world.stack.config_path();
        let config = std::fs::read_to_string(&path).expect("the configuration");
        let config = config.replace("clock_offset_ms = 0", &format!("clock_offset_ms = {ahead_ms}"));
        std::fs::write(&path, config).expect("written");
        self.world.stack.service("scheduler-svc", 0).expect("it runs").kill();
        self.world
            .stack
            .launch("scheduler-svc", 0)
            .expect("the scheduler starts");

        self.world.stack.ready().await.expect("it comes up again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_asks_moves_and_withdraws_by_tools() {
    let mut story = Story::begin().await;
    let due = asked_once(&mut story).await;

    story.says(2, "p", "make it nine").await;
    let moved = eventually("it has another time", PATIENCE, async || {
        let pending = at(&story.world.bus, IntentStatus::Pending).await;
        (pending.due == Some(tomorrow(9).1))
            .then_some(pending)
            .ok_or_else(|| format!("due at {due}"))
    })
    .await;

    let lineage = &moved.lineage[0];
    assert_eq!((lineage.by.as_str(), lineage.old_due), ("agent:default", Some(due)));
    assert_eq!(lineage.why, "the interview was moved");

    story.says(3, "p", "dance for me tomorrow").await;
    delivers(&story.world, "unknown_kind").await;

    withdrawn_while_it_runs(&story).await;
    fires_at_its_time(&mut story, &moved).await;
    story.world.stack.stop().await;
}

/// The broker dies while the scheduler, which was asked, does not answer: there is one intent. When it is due.
async fn asked_once(story: &mut Story) -> UnixMillis {
    let scheduler = story.world.stack.service("scheduler-svc", 0).expect("it runs").pid();
    signal(scheduler, "STOP");
    story.says(1, "p", "remind me tomorrow").await;
    let begun = |entry: &LedgerEntry| matches!(entry, LedgerEntry::ToolStarted { .. });
    story.noted("p", "the scheduler is asked", begun).await;
    story.world.stack.service("broker-svc", 0).expect("it runs").kill();
    story.world.stack.launch("broker-svc", 0).expect("it starts again");
    signal(scheduler, "CONT");
    story.world.stack.ready().await.expect("it comes up again");

    let over = |entry: &LedgerEntry| matches!(entry, LedgerEntry::TurnCompleted { .. });
    story.noted("p", "the turn is over", over).await;
    let all: IntentList = ask(&story.world.bus, "list", &ListIntents::default()).await;
    let due: Vec<_> = all.intents.iter().map(|intent| intent.due).collect();

    assert_eq!(due, [Some(tomorrow(8).1)], "asked twice, there once");
    tomorrow(8).1
}

/// A turn of another session withdraws one whose own turn is at the model: that is interrupted, and says nothing.
async fn withdrawn_while_it_runs(story: &Story) {
    story.says(4, "p", "ask me soon").await;
    let running = at(&story.world.bus, IntentStatus::Running).await;
    eventually("the model is asked", PATIENCE, async || {
        let asked = story.model.requests();
        let asked = asked
            .iter()
            .any(|request| request.last_user_text().contains("how was it"));
        asked.then_some(()).ok_or_else(|| story.world.logs())
    })
    .await;

    story.says(1, "q", "stop it").await;
    delivers(&story.world, r#""status":"canceled""#).await;
    let interrupted = |entry: &LedgerEntry| matches!(entry, LedgerEntry::TurnInterrupted { .. });
    story.noted("p", "its turn is interrupted", interrupted).await;
    let canceled = at(&story.world.bus, IntentStatus::Canceled).await;

    assert_eq!(canceled.intent.id, running.intent.id);

    let sent = delivered(&story.world).await;
    assert!(!sent.iter().any(|text| text.contains("half")), "{sent:?}");
}

/// Tomorrow has come: the reminder goes out once, with its lineage in the history.
async fn fires_at_its_time(story: &mut Story, moved: &Intent) {
    let ahead = moved.due.expect("a time").since(SystemClock.now()) + 2 * 60_000;
    story.goes_on_at(ahead).await;
    delivers(&story.world, "Good luck!").await;
    let own = GetIntent {
        id: moved.intent.id,
        agent: None,
    };

    let told: IntentHistory = ask(&story.world.bus, "get", &own).await;
    assert_eq!(told.intent.fired, 1);

    let ways: Vec<IntentStatus> = told.history.iter().map(|record| record.to).collect();
    let expected = [
        IntentStatus::Proposed,
        IntentStatus::Pending,
        IntentStatus::Rescheduled,
        IntentStatus::Pending,
        IntentStatus::Running,
    ];

    assert_eq!(ways[..expected.len()], expected);

    let sent = delivered(&story.world).await;
    assert_eq!(sent.iter().filter(|text| *text == "Good luck!").count(), 1, "{sent:?}");
}
