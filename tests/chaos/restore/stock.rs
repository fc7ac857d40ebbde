//! What a Nexus holds beside conversations when its streams are put back: a schedule, intents, approvals, a destination
//! that fails, a dead letter. What must be true of each afterwards is checked here.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use shared::bus::{OutgoingMessage, RequestError};
use shared::clock::{Clock as _, IdSource as _, SystemClock, SystemIds};
use shared::model::approval::{ApprovalStatus, ConfirmationTerms};
use shared::model::approval_api::{ApprovalList, GetApproval, ListApprovals};
use shared::model::dispatch::DeliveryContext;
use shared::model::event::{Event, EventId};
use shared::model::intent::IntentStatus;
use shared::model::intent::service::{CancelIntent, GetIntent, IntentAnswer, IntentHistory, ProposeIntent};
use shared::model::origin::EventOrigin;
use shared::model::permission::{PermissionLevel, PermissionSet};
use shared::testing::ModelServer;
use shared::testing::model_server::{ScriptedAnswer, ScriptedCall};
use shared::wire::dead_letter::DeadLetter;
use shared::wire::headers::Headers;
use shared::wire::held::HeldKind;
use shared::wire::topology::streams::DLQ;
use tests::eventually::eventually;
use tests::receiver::Receiver;
use tests::world::{Setup, World};
use ulid::Ulid;

use super::Bench;
use super::cases::{Case, Way};
use crate::kills::SETTLE;

/// The channel of the stock's own events.
const CHANNEL: &str = "stock";
/// The event whose reply waits behind a destination that fails.
const SHUT: &str = "stock:shut/1";
/// The event whose turn waits for a human through the gap, and the one that is decided within it.
const WAITS: &str = "stock:waits/1";
const DECIDED: &str = "stock:decided/1";
/// Ids of the schedule's events begin with it.
const BEAT: &str = "timer:config:beat:";
/// The instance that gave the dead letter up.
const LETTER_OF: &str = "stock";
/// How long after it was asked for an intent of the gap is due, seconds: the services are down by then.
const DUE_AFTER: u64 = 6;
/// How long a service may take to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Answers the stock's events and the schedule's.
const HOOK: &str = r#"/** @name stock */
export default (ctx) => {
  const e = ctx.event;
  const nats = { channel: "nats", accountId: "chaos", peerId: "stock", replyToId: e.id };
  if (e.channel === "timer" && e.metadata.schedule?.id === "config:beat")
    return { fire: true, routing: { session: "beat" }, deliveryContext: nats };
  if (e.channel !== "stock" || e.direction !== "received") return { fire: false };
  if (e.peer.id === "shut")
    return { fire: true, routing: { session: "shut" },
      deliveryContext: { channel: "webhook", accountId: "shut", peerId: "shut", replyToId: e.id } };
  return { fire: true, routing: { persona: "payer", session: "pay-" + e.peer.id }, permissions: { level: "full" },
    deliveryContext: nats };
};
"#;

const PERSONAS: &str = "personas:
  default: {runner: echo}
  auditor: {runner: echo}
  payer: {runner: llm, requires_confirmation: [{tools: [list_hooks], ask: {expires_ms: 604800000}}]}
";

const IDENTITIES: &str = "{owner: ann, persons: [{id: ann, addresses: {stock: [ann]}}]}";

/// The servers outside of Nexus, and what was made of the intents.
pub(super) struct Stock {
    model: ModelServer,
    receiver: Receiver,
    /// Fired in the gap: one that asks an agent, and one that sends a text.
    fired: [Ulid; 2],
    /// Due long after the test, and every ten minutes.
    open: [Ulid; 2],
    /// Approvals of [`WAITS`] and [`DECIDED`].
    approvals: [String; 2],
    /// Requests of the model, and calls at the receiver, when the case began.
    requests: usize,
    calls: usize,
}

impl Stock {
    /// The servers outside of Nexus, and `setup` with what it needs of them.
    pub(super) async fn setup(setup: Setup) -> (Self, Setup) {
        let model = ModelServer::ruled(|request, _| match request.tool_results().last() {
            None => ScriptedAnswer::calls([ScriptedCall::new("c1", "list_hooks", &json!({ "status": "active" }))]),
            Some(_) => ScriptedAnswer::text("paid"),
        })
        .await;

        let receiver = Receiver::start(Duration::ZERO).await;
        receiver.set_shut(true);
        let mut setup = Setup {
            personas: PERSONAS.to_owned(),
            identities: IDENTITIES.to_owned(),
            channels: format!(
                "webhook: {{accounts: {{shut: {{url: \"{}\", secret: \"env:CHAOS_SECRET\"}}}}}}\n",
                receiver.url
            ),
            adapter: format!(
                "[llm]\nprovider = \"openai\"\nmodel = \"any\"\nprices.any = {{ input = 0, output = 0 }}\nbase_url = {:?}\n\
                 [delivery.retry]\ninitial_ms = 2000\nmax_ms = 2000\nfactor = 1.0\nmax_attempts = 10000\njitter = 0.0\n\
                 [scheduler.jobs.beat]\nschedule = \"every 1m\"\ncontent = \"1\"\noverlap = \"allow\"\n",
                model.base_url("openai")
            ),
            ..setup
        };
        setup.hooks.push(("stock.ts", HOOK.to_owned()));
        let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".to_owned();
        setup.environment.push(("CHAOS_SECRET".to_owned(), secret));

        let stock = Self {
            model,
            receiver,
            fired: [SystemIds.ulid(), SystemIds.ulid()],
            open: [SystemIds.ulid(), SystemIds.ulid()],
            approvals: Default::default(),
            requests: 0,
            calls: 0,
        };
        (stock, setup)
    }

    /// Puts everything in: waits until the approvals are asked for and the reply is parked. Last come the intents that are
    /// due in the gap.
    pub(super) async fn put_in(&mut self, bench: &Bench) {
        let world = &bench.world;
        for id in [SHUT, WAITS, DECIDED] {
            publish(world, id).await;
        }
        world
            .bus
            .dead_letter_record(letter())
            .await
            .expect("the letter is stored");

        for (index, peer) in ["waits", "decided"].into_iter().enumerate() {
            self.approvals[index] = eventually("approval requested", SETTLE, async || {
                let pending = pending(world).await?;
                let of_peer = |one: &&ConfirmationTerms| {
                    let asked_in = one.request.asked_in.as_ref();
                    asked_in.is_some_and(|asked| asked.session.session == format!("pay-{peer}"))
                };
                let found = pending.iter().find(of_peer).map(|one| one.request.id.clone());
                found.ok_or_else(|| format!("nobody is asked for {peer}\n{}", world.logs()))
            })
            .await;
        }

        eventually("the reply is parked", SETTLE, async || {
            let parked = world
                .bus
                .stream_state("PARKED")
                .await
                .map_err(|error| error.to_string())?;
            (parked.messages == 1)
                .then_some(())
                .ok_or_else(|| format!("{} are\n{}", parked.messages, world.logs()))
        })
        .await;

        let later = json!({ "type": "after", "seconds": 86_400 });
        let again = json!({ "type": "cron", "expression": "*/10 * * * *", "zone": "UTC", "until": "2099-01-01T00:00" });
        let soon = json!({ "type": "after", "seconds": DUE_AFTER });
        let remind = json!({ "subject": "the gap", "message": "1", "target": "here" });
        let send = json!({ "target": "here", "text": "1" });
        for (id, kind, parameters, schedule) in [
            (self.open[0], "remind", &remind, later),
            (self.open[1], "remind", &remind, again),
            (self.fired[0], "remind", &remind, soon.clone()),
            (self.fired[1], "send_message", &send, soon),
        ] {
            propose(world, id, kind, parameters, schedule).await;
        }
    }

    /// Whether an intent of the gap has fired already.
    pub(super) fn has_fired(&self, bench: &Bench) -> bool {
        let arrived = bench.arrived();
        let is_of = |id: &str| self.fired.iter().any(|intent| is_event_of(id, *intent));
        arrived.keys().any(|id| is_of(id))
    }

    /// Does what happens in the gap: one approval is decided, and the intents that are due fire.
    pub(super) async fn pass_gap(&mut self, bench: &Bench) {
        let world = &bench.world;
        world.words(&["approval", "approve", &self.approvals[1]]).await;
        eventually("the decided turn is answered", SETTLE, async || {
            bench.has_arrived(DECIDED).then_some(()).ok_or_else(|| world.logs())
        })
        .await;

        for intent in self.fired {
            eventually("the intent ends", SETTLE, async || {
                match status(world, intent).await? {
                    Some(IntentStatus::Completed) if bench.arrived().keys().any(|id| is_event_of(id, intent)) => Ok(()),
                    other => Err(format!("{other:?}\n{}", world.logs())),
                }
            })
            .await;
        }
    }

    /// Notes what was done before a case begins. From now on the destination works.
    pub(super) fn begin(&mut self) {
        self.receiver.set_shut(false);
        self.requests = self.model.requests().len();
        self.calls = self.receiver.calls().len();
    }

    /// Checks what must be true of everything after `case`; returns what became of it, in words.
    pub(super) async fn check(&self, bench: &Bench, case: &Case, what: &str) -> String {
        let (letter, approval, parked, beat, intents) = tokio::join!(
            is_listed(bench, case, what),
            self.is_decided_once(bench, case, what),
            self.is_delivered_once(bench, what),
            beats(bench, case, what),
            self.intents_end(bench, case, what),
        );

        // Behind all else, so that a call that is made again has its time.
        let made = self.calls_made();
        assert_eq!(
            made,
            usize::from(approval != "held"),
            "{what}: {approval}: calls that were made"
        );

        format!("letter {letter}, approval {approval}, parked {parked}, schedule {beat}, intents {intents}")
    }

    /// The call that waited is decided once, and made once (`check`); or its turn is held. The one that was decided is not asked
    /// for again, unless the bucket has forgotten the decision: then a second one changes nothing.
    async fn is_decided_once(&self, bench: &Bench, case: &Case, what: &str) -> &'static str {
        let world = &bench.world;
        let [waits, decided] = &self.approvals;
        let became = eventually(&format!("{what}: the approval can be decided"), SETTLE, async || {
            if bench.has_arrived(WAITS) {
                return Ok("decided");
            }
            if bench.held_as(Some(HeldKind::Dispatch)).await?.contains(WAITS) {
                return Ok("held");
            }
            let is_answer_held = bench.held_as(Some(HeldKind::Delivery)).await?.contains(WAITS);
            if is_answer_held && self.calls_made() > 0 {
                return Ok("decided and its answer held");
            }

            let question = GetApproval { id: waits.clone() };
            let asked = world.bus.request::<_, ConfirmationTerms>(
                "nexus.svc.approval.get",
                Headers::new(),
                &question,
                ANSWER_WITHIN,
            );
            let status = asked.await.map_err(|error| error.to_string())?.status;
            if status == ApprovalStatus::Pending {
                world.tried(&["approval", "approve", waits]).await?;
            }
            Err(format!("it is {status:?}\n{}", world.logs()))
        })
        .await;

        eventually(&format!("{what}: nobody is asked again"), SETTLE, async || {
            let asked: Vec<String> = pending(world).await?.into_iter().map(|one| one.request.id).collect();
            let is_open = asked.contains(decided) && !bench.held().await?.contains(DECIDED);
            if is_open && case.stream == "KV_approvals" {
                world.tried(&["approval", "approve", decided]).await?;
            }
            (!is_open).then_some(()).ok_or_else(|| format!("{asked:?} wait"))
        })
        .await;

        became
    }

    /// How many calls were made since the case began: a model that is shown a result was asked behind one.
    fn calls_made(&self) -> usize {
        let requests = self.model.requests();
        let since = requests.iter().skip(self.requests);
        since.filter(|request| !request.tool_results().is_empty()).count()
    }

    /// The parked reply has arrived once, or is held.
    async fn is_delivered_once(&self, bench: &Bench, what: &str) -> &'static str {
        let arrived = || self.receiver.calls().len() - self.calls;
        let became = eventually(
            &format!("{what}: the parked reply leaves"),
            SETTLE,
            async || match arrived() {
                0 if bench.held().await?.contains(SHUT) => Ok("held"),
                0 => Err(format!("it does not\n{}", bench.world.log("delivery-svc-0"))),
                _ => Ok("delivered"),
            },
        )
        .await;

        assert!(arrived() <= 1, "{what}: the parked reply arrived {} times", arrived());
        became
    }

    /// No intent is stuck: those of the gap are over, and what is open can be canceled. An intent whose bucket has lost it is
    /// gone.
    async fn intents_end(&self, bench: &Bench, case: &Case, what: &str) -> String {
        let world = &bench.world;
        let may_be_gone = case.stream == "KV_intents" && case.way != Way::Older;
        let mut became = Vec::new();
        for intent in self.fired {
            let ended = eventually(
                &format!("{what}: the intent of the gap is over"),
                SETTLE,
                async || match status(world, intent).await? {
                    Some(status) if status.is_final() => Ok(status.to_string()),
                    None if may_be_gone => Ok("gone".to_owned()),
                    other => Err(format!("{other:?}\n{}", world.log("scheduler-svc-0"))),
                },
            )
            .await;
            became.push(ended);
        }

        for intent in self.open {
            let ended = eventually(
                &format!("{what}: the open intent can be canceled"),
                SETTLE,
                async || {
                    match status(world, intent).await? {
                        Some(status) if status.is_final() => return Ok(status.to_string()),
                        None if may_be_gone => return Ok("gone".to_owned()),
                        Some(_) | None => {}
                    }

                    cancel(world, intent).await?;
                    Err(format!("it is not over\n{}", world.log("scheduler-svc-0")))
                },
            )
            .await;
            became.push(ended);
        }

        became.join("/")
    }
}

/// Whether `id` is an event of a firing of `intent`.
fn is_event_of(id: &str, intent: Ulid) -> bool {
    id.contains(&intent.to_string())
}

async fn publish(world: &World, id: &str) {
    let peer = id.trim_start_matches("stock:").split('/').next().unwrap_or_default();
    let id = EventId::parse(id).expect("an id");
    let mut event = Event::new(id, CHANNEL, peer, SystemClock.now());
    event.content = "1".to_owned();
    event.origin = EventOrigin::account(CHANNEL, "default");
    let out = OutgoingMessage::event(&event, world.bus.trust());
    world.bus.publish(out).await.expect("it is stored");
}

fn letter() -> DeadLetter {
    DeadLetter {
        service: LETTER_OF.to_owned(),
        subject: "nexus.events.stock.default.nobody".to_owned(),
        redrive_subject: "nexus.events.stock.default.nobody".to_owned(),
        stream: "EVENTS".to_owned(),
        sequence: 1,
        headers: Vec::new(),
        payload: DeadLetter::encode_payload(b"{"),
        reason: "malformed".to_owned(),
        detail: "it was never an event".to_owned(),
        attempts: 0,
        at: SystemClock.now(),
    }
}

/// The dead letter is listed; one whose stream has lost it is said to be lost.
async fn is_listed(bench: &Bench, case: &Case, what: &str) -> &'static str {
    let may_be_gone = case.stream == DLQ && case.way != Way::Older;
    let listed = bench.world.json(&["dlq", "list", "--service", LETTER_OF]).await;
    let listed = listed.as_array().map_or(0, Vec::len);
    assert_eq!(listed, usize::from(!may_be_gone), "{what}: the letter is listed once");

    if may_be_gone { "lost" } else { "listed" }
}

/// The schedule still makes events: one that it is asked for arrives. That none arrives twice is seen with all others.
async fn beats(bench: &Bench, case: &Case, what: &str) -> &'static str {
    let world = &bench.world;
    let beats = |of: &BTreeSet<String>| of.iter().filter(|id| id.starts_with(BEAT)).count();
    let before = beats(&bench.arrived().into_keys().collect());

    eventually(
        &format!("{what}: the schedule is fired ({case:?})"),
        SETTLE,
        async || world.tried(&["schedule", "fire", "config:beat"]).await,
    )
    .await;

    eventually(&format!("{what}: its event is answered"), SETTLE, async || {
        let held = bench.held().await?;
        let arrived: BTreeSet<String> = bench.arrived().into_keys().collect();
        if beats(&arrived) > before {
            Ok("goes on")
        } else if beats(&held) > 0 {
            Ok("is held")
        } else {
            Err(world.logs())
        }
    })
    .await
}

async fn pending(world: &World) -> Result<Vec<ConfirmationTerms>, String> {
    let question = ListApprovals {
        status: Some(ApprovalStatus::Pending),
        ..ListApprovals::default()
    };
    let asked =
        world
            .bus
            .request::<_, ApprovalList>("nexus.svc.approval.list", Headers::new(), &question, ANSWER_WITHIN);
    Ok(asked.await.map_err(|error| error.to_string())?.approvals)
}

async fn propose(world: &World, id: Ulid, kind: &str, parameters: &Value, schedule: Value) {
    let wish = json!({ "kind": kind, "parameters": parameters, "schedule": schedule });
    let question = ProposeIntent {
        id: Some(id),
        wish: serde_json::from_value(wish).expect("a wish"),
        agent: "default".to_owned(),
        session: "stock".to_owned(),
        turn: None,
        permissions: PermissionSet {
            level: PermissionLevel::Full,
            ..PermissionSet::default()
        },
        delivery_context: DeliveryContext {
            channel: "nats".to_owned(),
            account_id: Some("chaos".to_owned()),
            peer_id: Some(kind.to_owned()),
            ..DeliveryContext::default()
        },
        causation: None,
    };

    let answer: IntentAnswer = world
        .bus
        .request("nexus.svc.intent.propose", Headers::new(), &question, ANSWER_WITHIN)
        .await
        .expect("the scheduler answers");
    assert_eq!(answer.status, IntentStatus::Pending, "{:?}", answer.rejection);
}

/// How `intent` stands; none = there is none.
async fn status(world: &World, intent: Ulid) -> Result<Option<IntentStatus>, String> {
    let question = GetIntent {
        id: intent,
        agent: None,
    };
    let asked = world
        .bus
        .request::<_, IntentHistory>("nexus.svc.intent.get", Headers::new(), &question, ANSWER_WITHIN);
    match asked.await {
        Ok(told) => Ok(Some(told.intent.status)),
        Err(RequestError::Service { code: 404, .. }) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

async fn cancel(world: &World, intent: Ulid) -> Result<(), String> {
    let question = CancelIntent {
        id: intent,
        agent: None,
        turn: None,
        by: Some("operator".to_owned()),
        reason: "the case is over".to_owned(),
    };
    let asked =
        world
            .bus
            .request::<_, IntentAnswer>("nexus.svc.intent.cancel", Headers::new(), &question, ANSWER_WITHIN);
    asked.await.map(drop).map_err(|error| error.to_string())
}
