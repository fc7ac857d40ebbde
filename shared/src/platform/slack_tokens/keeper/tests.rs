//! Keepers on a real server, and a stand-in for Slack that takes each refresh token once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use reqwest::Url;
use serde_json::{Value, json};

use super::*;
use crate::platform::accounts::read_platforms;
use crate::testing::{ManualClock, world};

const START: UnixMillis = UnixMillis(1_700_000_000_000);
const FIRST: &str = "xoxe-1-0";
const TEN_HOURS: u64 = 10 * 3_600_000;

/// A failure of the stand-in in place of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    /// It has a fault.
    Busy,
    /// It uses the refresh token up, and its answer is lost.
    Lost,
}

#[derive(Debug)]
struct VendorState {
    /// The refresh token that is taken.
    valid: String,
    issued: u32,
    /// The refresh tokens that were shown, oldest first.
    asked: Vec<String>,
    lies: VecDeque<Lie>,
}

#[derive(Debug, Clone)]
struct Vendor {
    base: String,
    state: Arc<Mutex<VendorState>>,
}

impl Vendor {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let vendor = Self {
            base: format!("http://{}", listener.local_addr().expect("an address")),
            state: Arc::new(Mutex::new(VendorState {
                valid: FIRST.to_owned(),
                issued: 0,
                asked: Vec::new(),
                lies: VecDeque::new(),
            })),
        };
        let routes = Router::new()
            .route("/api/oauth.v2.access", post(renew))
            .with_state(vendor.clone());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        vendor
    }

    fn lock(&self) -> MutexGuard<'_, VendorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn asked(&self) -> Vec<String> {
        self.lock().asked.clone()
    }
}

async fn renew(State(vendor): State<Vendor>, body: String) -> Json<Value> {
    let form = Url::parse(&format!("http://form/?{body}")).expect("a form");
    let value = |key: &str| {
        let found = form.query_pairs().find(|(name, _)| name == key);
        found.map(|(_, value)| value.into_owned()).unwrap_or_default()
    };
    assert_eq!(value("grant_type"), "refresh_token");
    assert_eq!(
        (value("client_id").as_str(), value("client_secret").as_str()),
        ("1.2", "client-secret")
    );

    let mut state = vendor.lock();
    let shown = value("refresh_token");
    state.asked.push(shown.clone());
    let lie = state.lies.pop_front();
    if lie == Some(Lie::Busy) {
        return Json(json!({"ok": false, "error": "fatal_error"}));
    }
    if shown != state.valid {
        return Json(json!({"ok": false, "error": "invalid_refresh_token"}));
    }
    state.issued += 1;
    let (access, refresh) = (
        format!("xoxe.xoxb-{}", state.issued),
        format!("xoxe-1-{}", state.issued),
    );
    state.valid.clone_from(&refresh);
    if lie == Some(Lie::Lost) {
        return Json(json!("<html>"));
    }
    Json(
        json!({"ok": true, "access_token": access, "refresh_token": refresh, "expires_in": 43_200,
                "token_type": "bot", "bot_user_id": "U7"}),
    )
}

/// Returns a reference to a file with `secret`.
fn reference(secret: &str) -> String {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), secret).expect("written");
    let path = file.into_temp_path().keep().expect("kept");
    format!("file:{}", path.display())
}

/// One replica: its keeper, the account that its calls use, and its health.
struct Replica {
    keeper: TokenKeeper,
    account: SlackAccount,
    health: Health,
}

impl Replica {
    /// Starts a replica named `name` with the configured refresh token `refresh`.
    async fn start(bus: &Bus, clock: &ManualClock, vendor: &Vendor, name: &str, refresh: &str) -> Self {
        let text = format!(
            "slack: {{accounts: {{main: {{token: '{}', refresh_token: '{}', client_id: '{}', client_secret: '{}', \
             receive: none, base_url: '{}'}}}}}}",
            reference("xoxe.xoxb-0"),
            reference(refresh),
            reference("1.2"),
            reference("client-secret"),
            vendor.base
        );
        let accounts = read_platforms(&text).expect("read").slack.accounts;
        let health = Health::default();
        let context = KeeperContext {
            bus: bus.clone(),
            clock: Arc::new(clock.clone()),
            health: health.clone(),
            instance: name.to_owned(),
        };
        let mut keepers = open_keepers(&accounts, &context).await.expect("a client");
        Self {
            keeper: keepers.pop().expect("a rotated token"),
            account: accounts["main"].clone(),
            health,
        }
    }

    async fn step(&mut self) {
        self.keeper.step().await.expect("the bucket is read and written");
    }

    fn token(&self) -> String {
        self.account.token.current().reveal().to_owned()
    }

    /// Returns the text of `/readyz` about the token.
    fn says(&self) -> String {
        let parts = self.health.readiness().parts;
        parts
            .get("slack/main token")
            .map(|part| part.detail.clone())
            .unwrap_or_default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_renew_a_token_once_and_both_use_it() {
    let (_server, bus) = world().await;
    let (vendor, clock) = (Vendor::start().await, ManualClock::at(START));
    let mut one = Replica::start(&bus, &clock, &vendor, "one", FIRST).await;
    let mut other = Replica::start(&bus, &clock, &vendor, "other", FIRST).await;
    assert_eq!(
        one.token(),
        "xoxe.xoxb-0",
        "the configured one, until the bucket has another"
    );

    tokio::join!(one.step(), other.step());
    one.step().await;
    other.step().await;
    assert_eq!(vendor.asked(), [FIRST]);
    assert_eq!(
        (one.token().as_str(), other.token().as_str()),
        ("xoxe.xoxb-1", "xoxe.xoxb-1")
    );

    // Two hours before its end, and not before.
    clock.advance(TEN_HOURS - 1);
    one.step().await;
    assert_eq!(vendor.asked().len(), 1);
    clock.advance(1);
    tokio::join!(one.step(), other.step());
    one.step().await;
    other.step().await;
    assert_eq!(vendor.asked(), [FIRST, "xoxe-1-1"]);
    assert_eq!(
        (one.token().as_str(), other.token().as_str()),
        ("xoxe.xoxb-2", "xoxe.xoxb-2")
    );
    assert!(one.says().starts_with("renewed"), "{}", one.says());

    // A replica that starts uses the tokens in the bucket, and no reader of the bucket has a token.
    let third = Replica::start(&bus, &clock, &vendor, "third", FIRST).await;
    assert_eq!((third.token().as_str(), vendor.asked().len()), ("xoxe.xoxb-2", 2));
    let kept = bus.kv::<AccountTokens>(ACCOUNT_TOKENS).get("slack.main").await;
    let kept = kept.expect("asked").expect("an entry").value;
    assert!(kept.generation == 2 && !format!("{kept:?}").contains("xox"), "{kept:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bucket_that_was_restored_or_lost_gets_the_newest_tokens_again() {
    let (_server, bus) = world().await;
    let (vendor, clock) = (Vendor::start().await, ManualClock::at(START));
    let kept = bus.kv::<AccountTokens>(ACCOUNT_TOKENS);
    let stored = async || kept.get("slack.main").await.expect("asked").expect("an entry").value;

    let mut one = Replica::start(&bus, &clock, &vendor, "one", FIRST).await;
    one.step().await;
    let former = stored().await;
    clock.advance(TEN_HOURS);
    one.step().await;
    assert_eq!(stored().await.generation, 2);

    kept.put("slack.main", &former).await.expect("restored");
    one.step().await;
    assert_eq!(stored().await.generation, 2);
    kept.delete("slack.main", None).await.expect("lost");
    one.step().await;
    assert_eq!(stored().await.generation, 2);
    assert_eq!((one.token().as_str(), vendor.asked().len()), ("xoxe.xoxb-2", 2));

    // Former tokens are not taken for newer ones.
    let forged = AccountTokens {
        generation: 9,
        ..former
    };
    kept.put("slack.main", &forged).await.expect("written");
    one.step().await;
    assert_eq!((one.token().as_str(), vendor.asked().len()), ("xoxe.xoxb-2", 2));
    assert!(one.says().contains("of its own"), "{}", one.says());
    kept.delete("slack.main", None).await.expect("repaired");
    one.step().await;
    assert!(one.says().starts_with("renewed"), "{}", one.says());
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_that_the_bucket_took_without_an_answer_are_used_by_their_own_process_too() {
    let (_server, bus) = world().await;
    let (vendor, clock) = (Vendor::start().await, ManualClock::at(START));
    let mut one = Replica::start(&bus, &clock, &vendor, "one", FIRST).await;
    let given = GivenTokens {
        access: "xoxe.xoxb-1".to_owned(),
        refresh: "xoxe-1-1".to_owned(),
        expires_in: 43_200,
    };
    one.keeper.hold(&given, START);
    assert_eq!(one.token(), "xoxe.xoxb-0", "not before they are in the bucket");

    let record = one.keeper.own.as_ref().expect("tokens").record.clone();
    let kept = bus.kv::<AccountTokens>(ACCOUNT_TOKENS);
    kept.put("slack.main", &record).await.expect("written");
    one.step().await;
    assert_eq!((one.token().as_str(), vendor.asked().len()), ("xoxe.xoxb-1", 0));
    assert!(!one.keeper.is_unsaved, "a shutdown waits for nothing");
    assert_eq!(one.keeper.next_look(), CALM_LOOK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_renewal_is_named_and_a_new_refresh_token_ends_it_for_all() {
    let (_server, bus) = world().await;
    let (vendor, clock) = (Vendor::start().await, ManualClock::at(START));
    let mut one = Replica::start(&bus, &clock, &vendor, "one", FIRST).await;
    one.step().await;

    // The answer to the second renewal is lost, and Slack takes the refresh token once.
    vendor.lock().lies.push_back(Lie::Lost);
    clock.advance(TEN_HOURS);
    one.step().await;
    one.step().await;
    assert_eq!(vendor.asked().len(), 2, "not at once again");
    clock.advance(2_000);
    one.step().await;
    assert_eq!(vendor.asked(), [FIRST, "xoxe-1-1", "xoxe-1-1"]);
    assert!(one.says().contains("invalid_refresh_token"), "{}", one.says());
    assert_eq!(one.token(), "xoxe.xoxb-1", "it lasts for two more hours");
    clock.advance(60_000);
    one.step().await;
    assert_eq!(vendor.asked().len(), 3, "a refusal is asked about every five minutes");

    // The operator installs the app again, and starts a replica with the new tokens.
    vendor.lock().valid = "xoxe-1-new".to_owned();
    let mut newer = Replica::start(&bus, &clock, &vendor, "newer", "xoxe-1-new").await;
    newer.step().await;
    assert_eq!(newer.token(), "xoxe.xoxb-3");
    one.step().await;
    assert_eq!(one.token(), "xoxe.xoxb-3", "the others go over");
    assert!(one.says().starts_with("renewed"), "{}", one.says());
    let late = Replica::start(&bus, &clock, &vendor, "late", FIRST).await;
    assert_eq!((late.token().as_str(), vendor.asked().len()), ("xoxe.xoxb-3", 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_of_slack_is_waited_for_with_the_same_refresh_token() {
    let (_server, bus) = world().await;
    let (vendor, clock) = (Vendor::start().await, ManualClock::at(START));
    vendor.lock().lies.push_back(Lie::Busy);
    let mut one = Replica::start(&bus, &clock, &vendor, "one", FIRST).await;
    one.step().await;
    assert_eq!(one.token(), "xoxe.xoxb-0");
    assert!(one.says().contains("fatal_error"), "{}", one.says());
    clock.advance(2_000);
    one.step().await;
    assert_eq!(
        (vendor.asked(), one.token().as_str()),
        (vec![FIRST.to_owned(); 2], "xoxe.xoxb-1")
    );
}
