//! The seven hooks that ship, all in force at once (as where their channels are configured), fed with events: in the older spelling too, with the database, the
//! model and self-disabling, as they are.

use serde_json::{Value, json};
use shared::clock::{Clock as _, SystemClock};
use shared::model::dispatch::Dispatch;
use shared::model::event::{Event, EventId, EventParticipant, ParticipantRole, PeerKind};
use shared::model::hook::HookStatus;
use shared::model::origin::EventOrigin;
use shared::model::session::QueueMode;
use shared::model::time::UnixMillis;
use shared::testing::eventually;
use shared::testing::model_server::{ModelServer, ScriptedAnswer};

use crate::world::World;

const SHIPPED: [(&str, &str); 7] = [
    (
        "default-dm-routing.ts",
        include_str!("../../../deploy/hooks/default-dm-routing.ts"),
    ),
    (
        "work-whatsapp-routing.ts",
        include_str!("../../../deploy/examples/work-whatsapp-routing.ts"),
    ),
    ("heartbeat.ts", include_str!("../../../deploy/examples/heartbeat.ts")),
    (
        "stripe-high-value.ts",
        include_str!("../../../deploy/examples/stripe-high-value.ts"),
    ),
    (
        "mom-2fa-helper.ts",
        include_str!("../../../deploy/examples/mom-2fa-helper.ts"),
    ),
    ("casey-safety-check.ts", CASEY),
    (
        "flight-checkin.ts",
        include_str!("../../../deploy/examples/flight-checkin.ts"),
    ),
];

const CASEY: &str = include_str!("../../../deploy/examples/casey-safety-check.ts");
const HEARTBEAT: &str = include_str!("../../../deploy/examples/heartbeat.ts");

const IDENTITIES: &str = "
owner: me
persons:
  - { id: me, name: Me, addresses: { '*': [me] } }
  - { id: mom, name: Mom, relationship: mother, addresses: { sms: ['+1555000'] } }
  - { id: casey, name: Casey, relationship: friend, addresses: { imessage: ['casey@example.com'] } }
";

/// What the model says of each prompt.
fn says(prompt: &str) -> &'static str {
    if prompt.contains("two-factor") {
        return if prompt.contains("Chase") {
            r#"{"is_2fa_request": true, "service": "Chase"}"#
        } else {
            r#"{"is_2fa_request": false, "service": null}"#
        };
    }

    if prompt.contains("Casey") {
        return r#"{"in_trouble": true, "why": "she is lost"}"#;
    }

    r#"{"flight": "UA 100", "departs_at": "2026-12-01T10:00:00-06:00", "from": "ORD", "to": "SFO"}"#
}

async fn world() -> (World, ModelServer) {
    let (mut world, model) = world_before().await;
    world.start("a");
    world.wait_for_members(1).await;
    (world, model)
}

/// As [`world`], no replica yet.
async fn world_before() -> (World, ModelServer) {
    let model = ModelServer::ruled(|asked, _| ScriptedAnswer::text(says(&asked.last_user_text()))).await;
    let mut world = World::new(&SHIPPED).await;
    world
        .configure_channels(&["webhook:owner", "sms:default", "whatsapp:work"])
        .await;
    world.write_identities(IDENTITIES);
    world.sections = format!(
        "[llm]\nprovider = \"openai\"\nmodel = \"m\"\nbase_url = \"{}\"\n[llm.prices.m]\ninput = 1.0\noutput = 2.0\n",
        model.base_url("openai")
    );

    (world, model)
}

fn message(id: &str, from: &str, content: &str) -> Event {
    let (channel, _) = id.split_once(':').expect("a channel");
    let mut event = Event::new(
        EventId::parse(id).expect("valid"),
        channel,
        from,
        UnixMillis(1_790_000_000_000),
    );

    event.from.id = from.to_owned();
    event.origin = EventOrigin::account(channel, "default");
    event.participants = vec![EventParticipant {
        id: from.to_owned(),
        role: ParticipantRole::Sender,
        display_name: None,
    }];

    event.content = content.to_owned();
    event
}

/// Publishes `event` and answers what was dispatched of it.
async fn dispatched(world: &World, event: &Event) -> Vec<Dispatch> {
    world.publish(event).await;
    let record = world.record(event).await;
    for hook in &record.hooks {
        assert!(!format!("{:?}", hook.outcome).starts_with("Failed"), "{hook:?}");
    }
    let mut dispatches = world.dispatches().await;
    dispatches.retain(|dispatch| dispatch.event_id == event.id);
    dispatches
}

fn only(dispatches: &[Dispatch]) -> (&str, &str, &str) {
    let [dispatch] = dispatches else {
        panic!("one dispatch: {dispatches:?}")
    };
    (&dispatch.hook_id, &dispatch.target.persona, &dispatch.target.session)
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_of_the_older_spelling_run_unchanged_and_fire_as_written() {
    let (world, model) = world().await;
    let asks = message(
        "sms:1",
        "+1555000",
        "Hi, what is the code that Chase texted me? I cannot log in",
    );

    let dispatches = dispatched(&world, &asks).await;
    assert_eq!(only(&dispatches), ("mom-2fa-helper", "default", "sms:dm:mom"));

    let dispatch = &dispatches[0];
    assert_eq!(
        (dispatch.queue_mode, dispatch.priority),
        (Some(QueueMode::Interrupt), 85)
    );

    let extracted = Value::from(dispatch.context.extracted.clone().expect("extracted"));
    assert_eq!(extracted, json!({"service": "Chase", "person": "Mom"}));

    let record = world.record(&asks).await;
    let mom = record
        .hooks
        .iter()
        .find(|hook| hook.hook_id == "mom-2fa-helper")
        .expect("its part");

    assert_eq!(
        (mom.llm_calls, mom.llm_tokens_in > 0, mom.llm_cost_usd > 0.0),
        (1, true, true),
        "{mom:?}"
    );

    // Another sender of the same words is no mother and costs nothing; her small talk neither.
    let stranger = message("sms:2", "+1666000", "What is the code that Chase texted me?");
    assert_eq!(only(&dispatched(&world, &stranger).await).0, "default-dm-routing");

    let small_talk = message("sms:3", "+1555000", "Dinner on Sunday?");
    assert_eq!(only(&dispatched(&world, &small_talk).await).0, "default-dm-routing");
    assert_eq!(model.calls(), 1);

    let other_code = message("sms:4", "+1555000", "My dress code question was silly");
    assert_eq!(only(&dispatched(&world, &other_code).await).0, "default-dm-routing");
    assert_eq!(model.calls(), 2);

    // Today is long past its deadline: the first tick makes it go.
    let mut tick = message("timer:tick:29833333", "tick", "");
    tick.peer.id = "tick".to_owned();
    world.publish(&tick).await;
    eventually("the one-shot hook has disabled itself", async || {
        let state = world.hook_state("casey-safety-check").await;
        state.is_some_and(|state| state.status == HookStatus::Disabled && state.fired_once.is_none())
    })
    .await;

    // On the evening itself, with what Casey wrote until then.
    let evening = UnixMillis(1_769_572_800_000);
    let tick = serde_json::to_value(&tick).expect("json");
    let at = async |now: i64| {
        let question = json!({"source": CASEY, "event": tick, "now": now});
        world.ask("test", question).await.expect("tried")
    };

    let silent = at(evening.0).await;
    assert_eq!(silent["result"]["routing"]["persona"], "phone-caller", "{silent}");

    let mut writes = message("imessage:9", "casey@example.com", "I think I took the wrong trail");
    writes.timestamp = UnixMillis(evening.0 - 600_000);
    dispatched(&world, &writes).await;
    let troubled = at(evening.0).await;

    assert_eq!(
        troubled["result"]["context"]["extracted"]["why"], "she is lost",
        "{troubled}"
    );
    assert_eq!(
        (&troubled["result"]["disableHook"], &troubled["llm_calls"]),
        (&json!(true), &json!(1))
    );
    assert_eq!(at(evening.0 - 86_400_000).await["fired"], false, "not the day before");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_others_route_what_is_theirs_and_leave_the_rest_to_the_catch_all() {
    let (world, _model) = world().await;
    let mut work = message("whatsapp:1", "+49170", "Where is the report?");
    work.account_id = Some("work".to_owned());

    assert_eq!(
        only(&dispatched(&world, &work).await),
        ("work-whatsapp-routing", "work", "main")
    );

    let mut group = message("whatsapp:2", "+49170", "Anybody?");
    (group.account_id, group.peer.kind, group.peer.id) = (Some("work".to_owned()), PeerKind::Group, "g1".to_owned());
    let dispatches = dispatched(&world, &group).await;

    assert_eq!(
        only(&dispatches),
        ("work-whatsapp-routing", "work", "whatsapp:group:g1")
    );
    assert_eq!(dispatches[0].queue_mode, Some(QueueMode::Collect));

    let private = message("whatsapp:3", "+49170", "Hello");
    assert_eq!(only(&dispatched(&world, &private).await).0, "default-dm-routing");

    let paid = |id: &str, cents: u64| {
        let mut event = message(id, "stripe", "charge.succeeded");
        let object = json!({"id": "ch_1", "amount": cents, "currency": "usd", "customer": "cus_1"});
        let payload = json!({"source": "stripe", "payload": {"type": "charge.succeeded", "data": {"object": object}}});
        event.metadata = payload.as_object().expect("an object").clone();
        event
    };

    let high = dispatched(&world, &paid("webhook:stripe/1", 120_000)).await;
    assert_eq!(only(&high), ("stripe-high-value", "default", "payments"));
    assert_eq!(
        high[0].context.extracted.as_ref().expect("extracted")["amount_usd"],
        1_200.0
    );
    assert!(dispatched(&world, &paid("webhook:stripe/2", 49_999)).await.is_empty());

    let booked = message(
        "email:1",
        "no-reply@mail.united.com",
        "Your booking A1B2C3 is confirmed: UA 100 on December 1.",
    );
    let flight = dispatched(&world, &booked).await;
    let travel = flight
        .iter()
        .find(|dispatch| dispatch.hook_id == "flight-checkin")
        .expect("it fired");

    assert_eq!(travel.target.session, "travel");
    assert_eq!(
        travel.context.extracted.as_ref().expect("extracted")["checkin_at"],
        "2026-11-30T16:00:00.000Z"
    );

    let advert = message("email:2", "no-reply@mail.united.com", "Fly with us");
    assert_eq!(only(&dispatched(&world, &advert).await).0, "default-dm-routing");

    let mut tick = message("timer:tick:1", "tick", "");
    tick.peer.id = "tick".to_owned();
    let beat = async |now: i64| {
        let question = json!({"source": HEARTBEAT, "event": tick, "now": now});
        world.ask("test", question).await.expect("tried")["fired"] == true
    };

    // Noon and three at night in Chicago.
    assert!(beat(1_769_536_800_000).await);
    assert!(!beat(1_769_504_400_000).await);
}

/// Attempts to meet a minute at which a script looks: a machine that is too slow for one meets the next.
const ATTEMPTS: u32 = 10;

#[tokio::test(flavor = "multi_thread")]
async fn on_the_evening_itself_the_scripts_that_look_at_the_time_dispatch_what_they_say() {
    let (mut world, model) = world_before().await;
    // 21:15 in Chicago on the day of the hike: the heartbeat beats, and somebody looks for Casey.
    let evening = UnixMillis(1_769_570_100_000);
    let mut writes = message("imessage:9", "casey@example.com", "I think I took the wrong trail");
    writes.timestamp = evening.plus(-600_000);
    world.publish(&writes).await;

    let sections = world.sections.clone();
    for attempt in 0..ATTEMPTS {
        // The replica's day begins as it starts, so that its first seconds are in that minute.
        let ahead = evening.since(SystemClock.now());
        world.sections = format!("clock_offset_ms = {ahead}\n{sections}");
        let name = format!("e{attempt}");
        world.start(&name);
        world.wait_for_members(1).await;
        let mut tick = message(&format!("timer:tick:{attempt}"), "tick", "");
        tick.peer.id = "tick".to_owned();

        let dispatches = dispatched(&world, &tick).await;
        let of = |hook: &str| dispatches.iter().find(|dispatch| dispatch.hook_id == hook);
        if let Some(casey) = of("casey-safety-check") {
            assert_eq!(
                (casey.target.persona.as_str(), casey.context.system_prompt.as_deref()),
                ("phone-caller", Some("Call Tyler: she is lost"))
            );
            assert_eq!(model.calls(), 1);

            let state = world.hook_state("casey-safety-check").await.expect("it fired");
            assert_eq!(state.status, HookStatus::Disabled);
            assert!(
                attempt > 0 || of("heartbeat").is_some_and(|beat| beat.target.session == "heartbeat"),
                "{dispatches:?}"
            );

            // Half an hour has not passed, and the one shot is spent.
            let mut next = message("timer:tick:next", "tick", "");
            next.peer.id = "tick".to_owned();
            assert!(dispatched(&world, &next).await.is_empty());

            return;
        }

        assert!(world.replica(&name).stop().await);
    }

    panic!("the machine never met the minute");
}
