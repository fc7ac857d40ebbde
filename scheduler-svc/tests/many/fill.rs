//! Pending intents as admission leaves them, written without asking for each: values, records, timers and books.

use serde_json::{Value, json};
use shared::bus::{Bus, OutgoingMessage};
use shared::clock::{Clock as _, SystemClock};
use shared::model::dispatch::DeliveryContext;
use shared::model::intent::IntentSchedule;
use shared::model::intent::book::{AgentBook, IntentBooking};
use shared::model::intent::timer::TimerPurpose;
use shared::model::permission::PermissionSet;
use shared::model::position::StreamPosition;
use shared::model::time::UnixMillis;
use shared::wire::subject::intent_audit;
use tokio::task::JoinSet;
use ulid::Ulid;

use scheduler_svc::intent::machine::{AdmissionContext, StepCause, admit_intent, new_intent};
use scheduler_svc::intent::plan::IntentPlan;
use scheduler_svc::intent::{admission, registry::KindRegistry, store, timers};

/// Agents written at once.
const AT_ONCE: usize = 64;

#[expect(clippy::needless_pass_by_value, reason = "it is written at the place of the call")]
pub(crate) fn wish(schedule: Value) -> Value {
    json!({
        "kind": "remind", "parameters": { "subject": "interview", "message": "good luck" },
        "schedule": schedule, "reason": "an interview"
    })
}

/// `each` intents of each of `agents` agents, due over the next month, the first of them tomorrow.
pub(crate) async fn fill(bus: &Bus, agents: u64, each: u64) {
    let begun = SystemClock.now();
    let mut writing = JoinSet::new();
    for agent in 0..agents {
        let bus = bus.clone();
        writing.spawn(async move { fill_agent(&bus, agent, each, begun).await });
        while writing.len() >= AT_ONCE {
            writing.join_next().await.expect("one").expect("written");
        }
    }

    while let Some(written) = writing.join_next().await {
        written.expect("written");
    }

    println!(
        "filled {} in {} s",
        agents * each,
        SystemClock.now().since(begun) / 1_000
    );
}

async fn fill_agent(bus: &Bus, agent: u64, each: u64, now: UnixMillis) {
    let registry = KindRegistry::shipped_registry().expect("the shipped kinds");
    let mut book = AgentBook::default();
    for number in 0..each {
        let due = now.plus(86_400_000 + i64::try_from((agent * each + number) * 2_592).expect("a month"));
        let id = Ulid::from_parts(u64::try_from(now.0).expect("a time"), u128::from(agent * each + number));
        let schedule = IntentSchedule::After { seconds: 86_400 };
        let question = serde_json::from_value(json!({
            "wish": wish(serde_json::to_value(schedule).expect("JSON")), "agent": format!("agent-{agent}"),
            "session": format!("s{number}"), "permissions": {}, "delivery_context": { "channel": "webchat" }
        }));

        let intent = admission::record(&registry, &question.expect("a proposal"), id);
        let cause = StepCause {
            by: "agent:a",
            why: "an interview",
            at: now,
        };

        let setting = AdmissionContext {
            permissions: PermissionSet::default(),
            delivery_context: DeliveryContext::default(),
            asked_in: None,
            depth: 0,
        };

        let plan = IntentPlan {
            rings: due,
            due: Some(due),
            deadline: None,
            per_day: 1,
        };

        let mut value = new_intent(intent, setting, cause);
        admit_intent(&mut value, &plan, &StreamPosition::default(), cause).expect("legal");
        timers::set_timer(bus, &timers::new_timer(&value, TimerPurpose::Fire, due), due)
            .await
            .expect("stored");
        let subject = format!("$KV.intents.{}", store::key(&value.intent.agent, id));
        bus.publish(OutgoingMessage::new(subject, &value))
            .await
            .expect("stored");

        for record in &value.records {
            let out = OutgoingMessage::new(intent_audit(&id.to_string()), record);
            bus.publish(out).await.expect("stored");
        }

        let booking = IntentBooking {
            due: Some(due),
            firings: 1,
            tokens: 2_000,
        };
        book.bookings.insert(id, booking);
    }

    let subject = format!("$KV.intents.a.agent-{agent}");
    bus.publish(OutgoingMessage::new(subject, &book)).await.expect("stored");
}
