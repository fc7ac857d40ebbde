//! A human's word: asked for, waited for without a slot, given in every way that may happen, and obeyed once.

use std::sync::Arc;
use std::time::Duration;

use broker_svc::approval;
use broker_svc::approval::machine::DecisionInput;
use broker_svc::approval::store::{ApprovalStore, DecisionOutcome};
use broker_svc::config::BrokerConfig;
use broker_svc::hooks::rules::HookRules;
use serde_json::{Value, json};
use shared::bus::{Bus, CoreSubscription, RequestError, ServiceHandle};
use shared::model::approval::{
    ApprovalParty, ApprovalRecord, ApprovalRequest, ApprovalStatus, ConfirmationTerms, DecisionProof,
};
use shared::model::approval_api::{ApprovalAnswer, DecideApproval, GetApproval};
use shared::model::dispatch::Dispatch;
use shared::model::identity::{Identities, KnownPerson};
use shared::model::ledger::{LedgerEntry, ToolOutcome};
use shared::model::permission::{PermissionLevel, PermissionSet};
use shared::model::session::{QueueMode, SessionRef};
use shared::testing::{connect_to, eventually};
use shared::wire::headers::Headers;
use shared::wire::subject;
use shared::wire::topology::streams;

use crate::bench::{Bench, Running, broker_at, dispatch, run_broker, session};
use crate::stepping::{Effect, SUBJECT, Scripted, answer, effect};

/// Payments above 50,000 are confirmed; the scripted model pays 60,000.
pub(crate) fn personas(ask: &str) -> String {
    format!(
        "personas: {{default: {{requires_confirmation: [{{tools: [pay], above: {{amount: 50000}}, ask: {ask}}}]}}}}"
    )
}

/// The operator says yes to the question `id`.
pub(crate) async fn approve(desk: &ApprovalStore, id: &str) -> DecisionOutcome {
    say_at(desk, &word(id, "operator", true, None)).await
}

/// As [`say`], where no broker serves.
pub(crate) async fn say_at(desk: &ApprovalStore, said: &DecideApproval) -> DecisionOutcome {
    let word = DecisionInput {
        approve: said.approve,
        arguments: said.arguments.clone(),
        shown_hash: said.arguments_hash.clone(),
        response: said.response.clone(),
        via: said.via.clone(),
    };
    desk.decide_approval(&said.id, &said.by, &word).await.expect("taken")
}

/// Waits until question `id` stands so, where no broker serves.
pub(crate) async fn becomes(desk: &ApprovalStore, id: &str, status: ApprovalStatus) -> ConfirmationTerms {
    let stands = async || desk.get(id).await.expect("KV").expect("an approval");
    eventually(status.name(), async || stands().await.status == status).await;
    stands().await
}

/// The changes of question `id` that `AUDIT` has.
pub(crate) async fn audit(bench: &Bench, id: &str) -> Vec<String> {
    let of_it = subject::approval_audit(id);
    let stored = bench.bus.read_history(streams::AUDIT, &of_it, 1, 100).await;
    let record = |stored: &shared::bus::StoredMessage| stored.decode::<ApprovalRecord>().expect("a record").what;
    stored.expect("audit").iter().map(record).collect()
}

/// A dispatch that may do everything.
pub(crate) fn trusted(to: &SessionRef, event: u64, mode: Option<QueueMode>) -> Dispatch {
    Dispatch {
        queue_mode: mode,
        permissions: PermissionSet {
            level: PermissionLevel::Full,
            ..PermissionSet::default()
        },
        ..dispatch(to, event)
    }
}

/// Ann owns it; v1 writes to it.
pub(crate) fn identities() -> Identities {
    let person = |id: &str| KnownPerson {
        id: id.to_owned(),
        ..KnownPerson::default()
    };
    let ann = KnownPerson {
        addresses: [("*".to_owned(), vec!["ann@mail".to_owned()])].into(),
        ..person("ann")
    };

    Identities {
        owner: Some("ann".to_owned()),
        persons: vec![ann, person("bob"), person("cid")],
        ..Identities::default()
    }
}

/// A broker whose agent's model and tools are the test.
pub(crate) struct Serving {
    pub(crate) running: Running,
    service: ServiceHandle,
}

impl Serving {
    pub(crate) async fn stop(self) {
        self.service.stop().await;
        self.running.stop().await;
    }
}

pub(crate) async fn serving(url: &str, name: &str, ask: &str) -> Serving {
    serving_with(url, name, &personas(ask), "").await
}

/// As [`serving`], with the whole of `personas.yaml` and `hooks.yaml`.
pub(crate) async fn serving_with(url: &str, name: &str, personas: &str, hooks: &str) -> Serving {
    serving_as(url, name, (personas, hooks), BrokerConfig::default()).await
}

/// As [`serving_with`], with section `[broker]`.
pub(crate) async fn serving_as(
    url: &str,
    name: &str,
    (personas, hooks): (&str, &str),
    config: BrokerConfig,
) -> Serving {
    let agent = Scripted {
        bus: connect_to(url, "test").await,
        asks: SUBJECT.to_owned(),
        tools: vec![("look", true), ("pay", false)],
    };
    let broker = broker_at(url, name, personas, config).await;
    let rules = HookRules::parse(hooks, &broker.personas).expect("hooks");

    let broker = broker
        .with_agent(Arc::new(agent))
        .with_identities(identities())
        .with_hooks(rules);
    let broker = Arc::new(broker);
    let service = approval::service::serve(&broker).await.expect("a service");

    Serving {
        running: run_broker(broker),
        service,
    }
}

pub(crate) struct Story {
    pub(crate) bench: Bench,
    pub(crate) brokers: Vec<Serving>,
    pub(crate) asked: CoreSubscription,
    pub(crate) main: SessionRef,
}

impl Story {
    pub(crate) async fn begin(ask: &str) -> Self {
        Self::begin_with(&personas(ask), "").await
    }

    pub(crate) async fn begin_with(personas: &str, hooks: &str) -> Self {
        let bench = Bench::start().await;
        let asked = bench.bus.core_subscribe(SUBJECT).await.expect("a subscription");
        bench.bus.flush().await.expect("it is known");
        let broker = serving_with(&bench.server.url(), "b1", personas, hooks).await;

        Self {
            brokers: vec![broker],
            asked,
            main: session("main"),
            bench,
        }
    }

    pub(crate) fn desk(&self) -> &ApprovalStore {
        self.brokers[0].running.broker.desk()
    }

    pub(crate) async fn send(&self, event: u64, mode: Option<QueueMode>) {
        self.bench.publish(&trusted(&self.main, event, mode)).await;
        self.bench.claim(&self.main).await;
    }

    pub(crate) async fn effect(&mut self) -> (Effect, String) {
        effect(&mut self.asked).await
    }

    pub(crate) async fn answer(&self, to: &str, text: &str, tools: &[&str]) {
        answer(&self.bench.bus, to, text, tools).await;
    }

    /// The next effect is `name`; it is answered.
    pub(crate) async fn plays(&mut self, name: &str, text: &str, tools: &[&str]) -> Effect {
        let (effect, to) = self.effect().await;
        assert_eq!(effect.name, name, "{effect:?}");
        self.answer(&to, text, tools).await;
        effect
    }

    /// What is asked of a human, once the turn waits for it and its slot is free.
    pub(crate) async fn suspended(&self) -> ApprovalRequest {
        eventually("the turn waits", async || {
            !asked(&self.bench.entries(&self.main).await).is_empty()
        })
        .await;
        eventually("the slot is free", async || self.bench.claims().await == 0).await;
        asked(&self.bench.entries(&self.main).await).pop().expect("a question")
    }

    pub(crate) async fn says(
        &self,
        id: &str,
        by: &str,
        approve: bool,
        arguments: Option<Value>,
    ) -> Result<ApprovalAnswer, u16> {
        say(&self.bench.bus, &word(id, by, approve, arguments)).await
    }

    pub(crate) async fn stands(&self, id: &str) -> ConfirmationTerms {
        let question = GetApproval { id: id.to_owned() };
        let asked = self.bench.bus.request(
            "nexus.svc.approval.get",
            Headers::new(),
            &question,
            Duration::from_secs(20),
        );
        asked.await.expect("an approval")
    }

    /// The code on the card of the question `id`.
    pub(crate) async fn code(&self, id: &str) -> String {
        let value = self.desk().get(id).await.expect("KV").expect("asked");
        approval::card::format_code(&value.trail.code.expect("a code"))
    }

    pub(crate) async fn becomes(&self, id: &str, status: ApprovalStatus) {
        eventually(status.name(), async || self.stands(id).await.status == status).await;
    }

    /// What the model is told about its call `id`.
    pub(crate) async fn told(&self, id: &str) -> ToolOutcome {
        for entry in self.bench.entries(&self.main).await {
            if let LedgerEntry::ToolFinished { call, outcome, .. } = entry
                && call == id
            {
                return outcome;
            }
        }
        panic!("call {id} is not over")
    }

    pub(crate) async fn audit(&self, id: &str) -> Vec<String> {
        audit(&self.bench, id).await
    }

    /// The turn's own replies, cards aside.
    pub(crate) async fn replies(&self) -> Vec<String> {
        let replies = self.bench.replies().await;
        let own = replies.into_iter().filter(|reply| reply.interactive.is_none());
        own.map(|reply| reply.content).collect()
    }

    pub(crate) async fn ends(&self, text: &str) {
        eventually("the reply", async || !self.replies().await.is_empty()).await;
        assert_eq!(self.replies().await, [text]);
    }

    pub(crate) async fn stop(self) {
        for broker in self.brokers {
            broker.stop().await;
        }
    }
}

pub(crate) fn asked(entries: &[LedgerEntry]) -> Vec<ApprovalRequest> {
    let mut asked = Vec::new();
    for entry in entries {
        if let LedgerEntry::ApprovalRequested { request } = entry {
            asked.push(request.clone());
        }
    }
    asked
}

pub(crate) fn word(id: &str, by: &str, approve: bool, arguments: Option<Value>) -> DecideApproval {
    DecideApproval {
        id: id.to_owned(),
        approve,
        by: ApprovalParty {
            channel: "cli".to_owned(),
            id: by.to_owned(),
            proof: DecisionProof::Vouched,
            person: None,
        },
        via: "cli".to_owned(),
        arguments,
        arguments_hash: None,
        response: None,
    }
}

/// The answer, or the code of a refusal.
pub(crate) async fn say(bus: &Bus, word: &DecideApproval) -> Result<ApprovalAnswer, u16> {
    let asked = bus.request(
        "nexus.svc.approval.decide",
        Headers::new(),
        word,
        Duration::from_secs(20),
    );

    asked.await.map_err(|error| match error {
        RequestError::Service { code, .. } => code,
        other @ (RequestError::NoResponder { .. } | RequestError::Timeout { .. } | RequestError::Answer { .. }) => {
            panic!("{other}")
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_above_a_limit_runs_only_after_a_yes_once_with_what_was_approved() {
    let mut story = Story::begin("{policy: payments}").await;
    story.send(1, None).await;
    story.plays("model", "I pay", &["look", "pay"]).await;
    story.plays("look", "seen", &[]).await;
    let request = story.suspended().await;

    assert_eq!((request.tool.as_str(), request.call.as_str()), ("pay", "1-2"));

    let card = story.bench.replies().await.pop().expect("a card");
    assert!(card.content.contains("60000") && card.interactive.is_some(), "{card:?}");

    // Another message does not wake it, and is not lost.
    story.send(2, None).await;
    eventually("the slot is free", async || story.bench.claims().await == 0).await;

    // The broker that asked is gone; another one goes on.
    let first = story.brokers.remove(0);
    let second = serving(&story.bench.server.url(), "b2", "{policy: payments}").await;
    story.brokers.push(second);
    first.stop().await;
    let less = json!({"step": 1, "amount": 40_000});
    let answer = story
        .says(&request.id, "operator", true, Some(less.clone()))
        .await
        .expect("taken");

    assert_eq!((answer.status, answer.changed), (ApprovalStatus::Approved, true));

    let paid = story.plays("pay", "paid", &[]).await;
    let with: Value = serde_json::from_str(&paid.heard[0]).expect("JSON");
    assert_eq!(with, less, "exactly what was approved");

    story.plays("model", "done", &[]).await;
    story.plays("model", "and two", &[]).await;
    eventually("both replies", async || story.replies().await.len() == 2).await;
    story.becomes(&request.id, ApprovalStatus::Consumed).await;
    let again = story
        .says(&request.id, "operator", true, None)
        .await
        .expect("the same again");

    assert!(!again.changed);
    assert_eq!(story.says(&request.id, "operator", false, None).await, Err(409));
    assert_eq!(
        story.audit(&request.id).await,
        ["asked", "approved", "consumed", "refused"]
    );

    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_no_and_no_answer_are_not_the_same() {
    let mut story = Story::begin("{expires_ms: 2500}").await;
    story.send(1, None).await;
    story.plays("model", "I pay", &["pay"]).await;
    let request = story.suspended().await;
    story.says(&request.id, "ann", false, None).await.expect("a no");

    // The model insists.
    story.plays("model", "but I must", &["pay"]).await;
    eventually("asked again", async || {
        asked(&story.bench.entries(&story.main).await).len() == 2
    })
    .await;

    let second = asked(&story.bench.entries(&story.main).await).remove(1);
    story.becomes(&second.id, ApprovalStatus::Expired).await;
    assert_eq!(story.says(&second.id, "ann", true, None).await, Err(409), "too late");

    story.plays("model", "so be it", &[]).await;
    story.ends("so be it").await;
    let error = |outcome: ToolOutcome| {
        let ToolOutcome::Error { error } = outcome else {
            panic!("{outcome:?}")
        };
        error
    };

    assert_eq!(error(story.told("1-1").await), "denied by ann");
    assert_eq!(
        error(story.told("2-1").await),
        "not approved: the approval expired without a decision"
    );

    let entries = story.bench.entries(&story.main).await;
    assert!(
        !entries
            .iter()
            .any(|entry| matches!(entry, LedgerEntry::ToolStarted { .. }))
    );

    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_those_who_may_decide_and_several_where_several_must() {
    let mut story = Story::begin("{scope: {kind: quorum, n: 2, of: [ann, bob]}}").await;
    story.send(1, None).await;
    story.plays("model", "I pay", &["pay"]).await;

    let id = story.suspended().await.id;
    for stranger in ["cid", "operator", "agent:default", "default"] {
        assert_eq!(story.says(&id, stranger, true, None).await, Err(403), "{stranger}");
    }

    let stale = DecideApproval {
        arguments_hash: Some("00".to_owned()),
        ..word(&id, "ann", true, None)
    };
    assert_eq!(say(&story.bench.bus, &stale).await, Err(409));
    assert_eq!(story.says("0", "ann", true, None).await, Err(404));

    let code = story.code(&id).await;
    assert_eq!(
        story.says(&code, "ann", true, None).await,
        Err(404),
        "a code decides only in a channel"
    );

    let one = story.says(&id, "ann", true, None).await.expect("by its id");
    assert_eq!(
        (one.status, one.votes.as_slice()),
        (ApprovalStatus::Pending, &["ann".to_owned()][..])
    );

    let two = story.says(&id, "bob", true, None).await.expect("the second");
    assert_eq!(two.status, ApprovalStatus::Approved);

    story.plays("pay", "paid", &[]).await;
    story.plays("model", "done", &[]).await;
    story.ends("done").await;
    let audit = story.audit(&id).await;

    assert_eq!(audit.iter().filter(|what| *what == "refused").count(), 5, "{audit:?}");

    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn words_that_do_not_count_fill_no_audit() {
    let mut story = Story::begin("{}").await;
    story.send(1, None).await;
    story.plays("model", "I pay", &["pay"]).await;

    let id = story.suspended().await.id;
    for number in 0..40 {
        let said = story.says(&id, &format!("stranger-{number}"), true, None).await;
        assert_eq!(said, Err(403), "{number}");
    }

    let audit = story.audit(&id).await;
    assert_eq!(audit.iter().filter(|what| *what == "refused").count(), 16, "{audit:?}");

    // Whoever may decide still does, and that is recorded.
    story.says(&id, "operator", true, None).await.expect("it is decided");
    story.plays("pay", "paid", &[]).await;
    story.plays("model", "done", &[]).await;
    story.ends("done").await;

    assert!(story.audit(&id).await.contains(&"approved".to_owned()));

    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_that_was_not_told_is_told_by_the_sweeper() {
    let mut story = Story::begin("{}").await;
    story.send(1, None).await;
    story.plays("model", "I pay", &["pay"]).await;
    let id = story.suspended().await.id;

    // As by a service that died right after its write.
    let key = format!("ask.{id}");
    let values = story.bench.bus.kv::<ConfirmationTerms>("approvals");
    let entry = values.get(&key).await.expect("KV").expect("asked");
    let mut decided = entry.value;
    decided.status = ApprovalStatus::Approved;
    decided.decided_by = Some("ann".to_owned());
    values.update(&key, &decided, entry.revision).await.expect("written");
    story.plays("pay", "paid", &[]).await;
    story.plays("model", "done", &[]).await;
    story.ends("done").await;

    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_message_that_steers_and_an_abort_withdraw_the_question() {
    let mut story = Story::begin("{}").await;
    story.send(1, None).await;
    story.plays("model", "I pay", &["pay"]).await;
    let first = story.suspended().await.id;
    story.send(2, Some(QueueMode::Steer)).await;
    let heard = story.plays("model", "I pay after all", &["pay"]).await;

    assert!(
        heard.heard.last().is_some_and(|said| said.contains("message 2")),
        "{heard:?}"
    );

    story.becomes(&first, ApprovalStatus::Canceled).await;
    assert_eq!(story.says(&first, "ann", true, None).await, Err(409));

    eventually("asked again", async || {
        asked(&story.bench.entries(&story.main).await).len() == 2
    })
    .await;
    let second = story.suspended().await.id;
    story.send(3, Some(QueueMode::Interrupt)).await;
    story.plays("model", "three", &[]).await;
    story.becomes(&second, ApprovalStatus::Canceled).await;
    story.ends("three").await;

    let entries = story.bench.entries(&story.main).await;
    assert!(
        !entries
            .iter()
            .any(|entry| matches!(entry, LedgerEntry::ToolStarted { .. }))
    );

    story.stop().await;
}
