//! Those who make and delete hooks by `nexus.svc.hook.*`, and ask again until they are answered.

use std::time::Duration;

use serde_json::{Value, json};
use shared::bus::{Bus, RequestError};
use shared::clock::pause;
use shared::model::dispatch::Dispatch;
use shared::model::session::SessionRef;
use shared::wire::headers::Headers;
use shared::wire::subject;
use shared::wire::topology::streams::{DISPATCHES, EVENTS, INVOCATIONS};

use super::{Over, is_over};

/// How often somebody makes a hook.
const MAKE_EVERY: Duration = Duration::from_millis(400);
/// How long one question may wait for its answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long until it is asked again.
const AGAIN: Duration = Duration::from_millis(50);
/// The answer's code where there is no such hook.
const ABSENT: u16 = 404;

/// The session of a hook's one fire.
pub(super) fn session(name: &str) -> SessionRef {
    SessionRef {
        persona: "default".to_owned(),
        session: name.to_owned(),
    }
}

/// Asks until it is answered; `none` also where there is nothing left to do.
async fn ask(bus: &Bus, what: &str, question: &Value) {
    let subject = format!("nexus.svc.hook.{what}");
    loop {
        let answered: Result<Value, RequestError> = bus.request(&subject, Headers::new(), question, PATIENCE).await;
        match answered {
            Ok(_) => return,
            Err(RequestError::Service { code: ABSENT, .. }) if what == "delete" => return,
            Err(RequestError::Service { code, text, .. }) if code < 500 => panic!("{what} {question}: {code} {text}"),
            Err(_) => pause(AGAIN).await,
        }
    }
}

/// A one-shot that goes to the session `session` upon the first event of `chaos` that it sees.
async fn create(bus: &Bus, name: &str, session: &str) {
    let script = format!("return {{ fire: event.channel === 'chaos', routing: {{ session: '{session}' }} }};");
    ask(
        bus,
        "create",
        &json!({"name": name, "mode": "one-shot", "script": script}),
    )
    .await;
}

/// Makes one-shots `once-1`, `once-2` … until it is over; answers how many.
pub(super) async fn make(bus: Bus, over: Over) -> u32 {
    let mut made = 0;
    while !is_over(&over) {
        made += 1;
        let name = format!("once-{made}");
        create(&bus, &name, &name).await;
        pause(MAKE_EVERY).await;
    }
    made
}

/// Makes a one-shot, waits for its fire to be recorded, deletes it, and makes another of its name, until it is over;
/// answers how many lived.
pub(super) async fn reuse(bus: Bus, over: Over) -> u32 {
    let mut lives = 0;
    while !is_over(&over) {
        lives += 1;
        let life = format!("life-{lives}");
        create(&bus, "again", &life).await;

        while !is_recorded(&bus, &life).await {
            if is_over(&over) {
                return lives;
            }
            pause(AGAIN).await;
        }

        ask(&bus, "delete", &json!({"name": "again"})).await;
    }

    lives
}

/// Whether the fire that went to `life` is in the record of its event.
async fn is_recorded(bus: &Bus, life: &str) -> bool {
    let to = subject::dispatch(&session(life));
    let Ok(Some(stored)) = bus.last_on_subject(DISPATCHES, &to).await else {
        return false;
    };

    let dispatch: Dispatch = stored.decode().expect("a dispatch");
    let Ok(Some(event)) = bus.at_sequence(EVENTS, dispatch.event_seq).await else {
        return false;
    };

    let partition = subject::parse_event(&event.subject).expect("an event").partition;
    let record = subject::invocation(partition, &dispatch.event_id);
    matches!(bus.last_on_subject(INVOCATIONS, &record).await, Ok(Some(_)))
}
