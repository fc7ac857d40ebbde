//! A call that a human must confirm, over real services: people answer in every way there is, brokers and the server die
//! in between, and the tool runs once for each yes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;
use shared::bus::CoreSubscription;
use shared::clock::{Clock as _, SystemClock};
use shared::model::approval::{ApprovalCard, ApprovalRecord, ApprovalStatus, ConfirmationTerms, VEILED_CODE};
use shared::model::approval_api::GetApproval;
use shared::model::ledger::{LedgerEntry, LedgerRecord, ToolOutcome};
use shared::model::reply::Reply;
use shared::testing::ModelServer;
use shared::testing::model_server::{ScriptedAnswer, ScriptedCall};
use shared::wire::envelope::decode;
use shared::wire::headers::Headers;
use shared::wire::subject;
use shared::wire::topology::streams;
use tests::command::nexus;
use tests::eventually::eventually;
use tests::world::{Setup, World, token};

use crate::story::{PATIENCE, brings, delivers, event, pending_approvals, send, session};

/// What signs the callbacks of the platform `feishu`.
const CALLBACKS: &[u8] = b"a secret of the platform, of forty bytes";

/// Answers every event of channel `e2e` in a session of its conversation, and lets it do everything.
pub(crate) const ANSWER: &str = r#"/** @name answer */
export default (ctx) => {
  const e = ctx.event;
  if (e.channel !== "e2e" || e.direction !== "received") return { fire: false };
  return { fire: true, routing: { session: "s-" + e.peer.id }, permissions: { level: "full" },
    deliveryContext: { channel: "nats", accountId: "e2e", peerId: e.peer.id, replyToId: e.id } };
};
"#;

/// Ann owns it, and is known on the platform and in the conversations; Bob is nobody's boss.
const IDENTITIES: &str = "
owner: ann
persons:
  - {id: ann, addresses: {feishu: [ou_1], e2e: [ann]}}
  - {id: bob, addresses: {feishu: [ou_2], e2e: [bob]}}
";

const PERSONAS: &str = "personas: {default: {runner: llm, \
                        requires_confirmation: [{tools: [list_hooks], ask: {policy: payments}}]}}";

/// A model that calls the tool, and says what came of it.
pub(crate) async fn pays() -> ModelServer {
    ModelServer::ruled(|request, _| match request.tool_results().last() {
        None => ScriptedAnswer::calls([ScriptedCall::new("c1", "list_hooks", &json!({"status": "active"}))]),
        Some(told) if told.contains("denied by") => ScriptedAnswer::text("I must not"),
        Some(_) => ScriptedAnswer::text("done"),
    })
    .await
}

/// A set-up in which the owner, who is `id` on `channel`, is asked before `model`'s tool is called.
pub(crate) fn approvals_of(channel: &str, id: &str, model: &ModelServer) -> Setup {
    let hook = format!(
        "/** @name answer */\nexport default (ctx) => ctx.event.channel === \"{channel}\" && ctx.event.direction === \
         \"received\"\n  ? {{ fire: true, permissions: {{ level: \"full\" }} }}\n  : {{ fire: false }};\n"
    );
    Setup {
        hooks: vec![("answer.ts", hook)],
        personas: "personas: {default: {runner: llm, \
                   requires_confirmation: [{tools: [list_hooks], ask: {policy: payments}}]}}"
            .to_owned(),
        identities: format!("owner: ann\npersons:\n  - {{id: ann, addresses: {{{channel}: ['{id}']}}}}\n"),
        adapter: format!(
            "[llm]\nprovider = \"openai\"\nmodel = \"any\"\nprices.any = {{ input = 0, output = 0 }}\nbase_url = {:?}\n",
            model.base_url("openai")
        ),
        ..Setup::default()
    }
}

struct Story {
    world: World,
    /// Everything that is to be delivered: the cards among it, as their readers see them.
    replies: CoreSubscription,
    seen: Vec<Reply>,
    _model: ModelServer,
    client: reqwest::Client,
}

impl Story {
    async fn begin() -> Self {
        let model = pays().await;
        let sections = format!(
            "[adapter.approvals]\nlink_secret = \"env:E2E_LINKS\"\n\
             [adapter.approvals.channels.feishu]\nsecret = \"env:E2E_CALLBACKS\"\n\
             [llm]\nprovider = \"openai\"\nmodel = \"any\"\nprices.any = {{ input = 0, output = 0 }}\nbase_url = {:?}\n\
             [broker.approvals.link]\nbase = \"http://here\"\nsecret = \"env:E2E_LINKS\"\n\
             [broker.approvals.places.ann]\nchannel = \"nats\"\naccountId = \"cards\"\npeerId = \"ann\"\n",
            model.base_url("openai")
        );

        let world = World::start(Setup {
            hooks: vec![("answer.ts", ANSWER.to_owned())],
            personas: PERSONAS.to_owned(),
            identities: IDENTITIES.to_owned(),
            adapter: sections,
            environment: vec![
                ("E2E_LINKS".to_owned(), "a link secret".to_owned()),
                ("E2E_CALLBACKS".to_owned(), STANDARD.encode(CALLBACKS)),
            ],
            ..Setup::default()
        })
        .await;

        let replies = world.bus.core_subscribe("nexus.delivery.>").await;
        world.bus.flush().await.expect("the server knows of it");

        Self {
            world,
            replies: replies.expect("a subscription"),
            seen: Vec::new(),
            _model: model,
            client: cli::http::client().expect("an HTTP client"),
        }
    }

    /// The question of the conversation with `peer`, once it stands.
    async fn asked(&self, peer: &str) -> ConfirmationTerms {
        send(&self.world, &event(&format!("e2e:{peer}/1"), peer, "pay")).await;
        eventually("approval requested", PATIENCE, async || {
            let listed = pending_approvals(&self.world).await?;
            let of_peer = |one: &ConfirmationTerms| {
                let asked_in = one.request.asked_in.as_deref();
                asked_in.is_some_and(|asked| asked.session == session(peer))
            };

            let found = listed.into_iter().find(of_peer);
            found.ok_or_else(|| format!("nobody is asked for {peer}\n{}", self.world.logs()))
        })
        .await
    }

    /// The card of the approval `id` that goes to account `account` of channel `nats`.
    async fn card(&mut self, id: &str, account: &str) -> Reply {
        let is_it = |reply: &Reply| {
            let card = ApprovalCard::from_interactive(reply.interactive.as_ref());
            let at = reply.delivery_context.account_id.as_deref();
            card.is_some_and(|card| card.approval == id) && at == Some(account)
        };

        loop {
            if let Some(card) = self.seen.iter().find(|reply| is_it(reply)) {
                return card.clone();
            }
            let next = tokio::time::timeout(PATIENCE, self.replies.next()).await;
            let next = next.expect("a card in time").expect("the bus is open");
            self.seen.extend(decode::<Reply>(&next.headers, &next.payload));
        }
    }

    async fn stands(&self, id: &str) -> Result<ConfirmationTerms, String> {
        let question = GetApproval { id: id.to_owned() };
        let asked = self
            .world
            .bus
            .request("nexus.svc.approval.get", Headers::new(), &question, PATIENCE);
        asked.await.map_err(|error| error.to_string())
    }

    /// The platform says that `by` decided `question`; status and body of the answer.
    async fn callback(&self, question: &ConfirmationTerms, by: &str, approve: bool, key: &[u8]) -> (u16, Value) {
        let request = &question.request;
        let body = json!({"approval": request.id, "channel": "feishu", "by": by, "approve": approve,
                          "arguments_hash": request.arguments_hash})
        .to_string();
        let at = SystemClock.now().0 / 1_000;
        let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key");
        mac.update(format!("m1.{at}.{body}").as_bytes());

        let signed = format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes()));
        let posted = self
            .client
            .post(format!("{}/approvals/{}", self.world.gateway(), request.id))
            .header("webhook-id", "m1")
            .header("webhook-timestamp", at.to_string())
            .header("webhook-signature", signed)
            .body(body)
            .send();

        let answer = posted.await.expect("the gateway answers");
        (answer.status().as_u16(), answer.json().await.unwrap_or_default())
    }

    /// Follows the link `path`, and taps `approve` on its page.
    async fn taps(&self, path: &str) {
        let gateway = self.world.gateway();
        let page = self.client.get(format!("{gateway}{path}")).send().await;
        let page = page.expect("the gateway answers").text().await.expect("a page");
        let fields = page.split("<input type=hidden name=").skip(1);

        let mut form: Vec<String> = fields
            .map(|field| {
                let (name, rest) = field.split_once(" value=\"").expect("a value");
                format!("{name}={}", rest.split('"').next().unwrap_or_default())
            })
            .collect();

        form.push("say=approve".to_owned());
        let (action, _) = path.split_once('?').expect("a query");
        let tapped = self
            .client
            .post(format!("{gateway}{action}/decide"))
            .header("content-type", "application/x-www-form-urlencoded")
            .body(form.join("&"))
            .send();

        let tapped = tapped.await.expect("the gateway answers");
        let status = tapped.status();
        let said = tapped.text().await.unwrap_or_default();

        assert!(status.is_success() && said.contains("approved"), "{status}: {said}");
    }

    async fn kill_broker(&mut self) {
        self.world.stack.service("broker-svc", 0).expect("it runs").kill();
        self.world.stack.launch("broker-svc", 0).expect("it starts again");
        self.world.stack.ready().await.expect("it comes up again");
    }

    async fn restart_server(&mut self) {
        self.world.stack.nats[0].kill();
        self.world.stack.launch_server(0).expect("the server starts again");
        self.world.stack.nats[0]
            .ready()
            .await
            .expect("the server answers again");
    }

    /// The turn of `peer` is over, its tool ran once, the approval is used, and `AUDIT` says so once.
    async fn ran_once(&self, peer: &str, question: &ConfirmationTerms) {
        let id = &question.request.id;
        eventually("the approval is used", PATIENCE, async || {
            let status = self.stands(id).await?.status;
            if status == ApprovalStatus::Consumed {
                return Ok(());
            }
            Err(format!("{peer}: {status:?}\n{}", self.world.logs()))
        })
        .await;

        let ended = eventually("the turn is over", PATIENCE, async || {
            let mut outcomes = Vec::new();
            let mut over = false;
            let subject = subject::ledger(&session(peer));
            let ledger = self.world.bus.read_history(streams::LEDGER, &subject, 1, 1_000);

            for stored in ledger.await.map_err(|error| error.to_string())? {
                let record: LedgerRecord = stored.decode().expect("a record");
                for entry in record.entries {
                    over |= matches!(entry, LedgerEntry::TurnCompleted { .. });
                    if let LedgerEntry::ToolFinished { outcome, .. } = entry {
                        outcomes.push(outcome);
                    }
                }
            }

            over.then_some(outcomes).ok_or_else(|| format!("{peer} goes on"))
        })
        .await;

        assert!(matches!(&ended[..], [ToolOutcome::Ok { .. }]), "{peer}: {ended:?}");
        assert_eq!(self.changes(id).await, ["asked", "approved", "consumed"]);
    }

    /// What `AUDIT` says of the approval, refusals aside.
    async fn changes(&self, id: &str) -> Vec<String> {
        let subject = subject::approval_audit(id);
        let stored = self.world.bus.read_history(streams::AUDIT, &subject, 1, 1_000).await;
        let records = stored.expect("the audit").into_iter();
        let what = records.map(|stored| stored.decode::<ApprovalRecord>().expect("a record").what);
        what.filter(|what| what != "refused").collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "a story or a table is read from top to bottom")]
async fn a_call_waits_for_a_human_in_every_way_and_runs_once() {
    let mut story = Story::begin().await;

    // The platform's callback; the broker dies while people think, and the server with everything.
    let question = story.asked("p1").await;
    story.kill_broker().await;
    story.restart_server().await;

    assert_eq!(story.callback(&question, "ou_1", true, b"a forged key").await.0, 401);

    let answered = eventually("the broker is back", PATIENCE, async || {
        match story.callback(&question, "ou_2", true, CALLBACKS).await {
            (503, body) => Err(format!("{body}\n{}", story.world.logs())),
            other => Ok(other),
        }
    })
    .await;

    assert_eq!(answered.0, 403, "Bob is not the owner: {answered:?}");

    let (status, body) = story.callback(&question, "ou_1", true, CALLBACKS).await;
    assert_eq!((status, &body["status"]), (200, &json!("approved")), "{body}");

    let (status, body) = story.callback(&question, "ou_1", true, CALLBACKS).await;
    assert_eq!((status, &body["changed"]), (200, &json!(false)), "a replay: {body}");
    assert_eq!(story.callback(&question, "ou_1", false, CALLBACKS).await.0, 409);

    story.ran_once("p1", &question).await;

    // The link on the card at Ann's own place.
    let question = story.asked("p2").await;
    let card = story.card(&question.request.id, "cards").await.content;
    let link = card.lines().find_map(|line| line.strip_prefix("Decide: http://here"));
    story.taps(link.expect("a link")).await;
    story.ran_once("p2", &question).await;

    // Words in a conversation: another person's, one of somebody who merely says to be Ann, and one that calls itself the
    // operator's do nothing.
    let question = story.asked("p3").await;
    let id = &question.request.id;
    let card = ApprovalCard::from_interactive(story.card(id, "e2e").await.interactive.as_ref()).expect("a card");
    let code = card.code;
    let told = delivers(&story.world, &format!("Reply: approve {VEILED_CODE}")).await;

    assert!(!told.contains(&code), "the event of a card is for everybody: {told}");
    assert!(
        !id.contains(&code.replace('-', "")),
        "the id, which agents know, does not tell it"
    );

    let word = |number: u32, from: &str, word: &str| {
        let mut said = event(&format!("e2e:p3/{number}"), "p3", &format!("{word} {code}"));
        said["from"]["id"] = json!(from);
        said
    };
    brings(&story.world, &word(2, "bob", "approve")).await;
    delivers(&story.world, "bob may not decide this approval").await;
    send(&story.world, &word(5, "ann", "approve")).await;
    delivers(&story.world, "e2e:ann may not decide this approval").await;

    let mut forged = word(3, "operator", "approve");
    forged["channel"] = json!("cli");
    let posted = story
        .client
        .post(format!("{}/v1/events", story.world.gateway()))
        .bearer_auth(token("e2e"))
        .json(&forged)
        .send();

    assert_eq!(posted.await.expect("the gateway answers").status().as_u16(), 403);
    assert_eq!(
        story.stands(id).await.expect("it stands").status,
        ApprovalStatus::Pending
    );

    brings(&story.world, &word(4, "ann", "approve")).await;
    delivers(&story.world, "the approval is approved").await;
    story.ran_once("p3", &question).await;

    // The command line; the broker dies right after the word.
    let question = story.asked("p4").await;
    let config = story.world.stack.config_path();
    let config = config.to_str().expect("a path");
    let said = nexus(
        story.world.path(),
        &["--config", config, "approval", "approve", &question.request.id],
    )
    .await;

    assert_eq!(said.code, Some(0), "{said:?}");

    story.kill_broker().await;
    story.ran_once("p4", &question).await;
    story.world.stack.stop().await;
}
