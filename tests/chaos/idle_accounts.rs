//! Accounts at which nothing happens: what they take of the memory of adapter-svc, each read by a long poll.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{Json, Path, State};
use axum::{Router, routing::post};
use serde_json::{Value, json};
use shared::clock::pause;
use shared::testing::eventually_within;
use tests::world::{Setup, World};

use crate::kills::is_long;

/// The longest time that a poll is held open. Telegram holds it for as long as the caller asks, here 50 s.
const HELD: Duration = Duration::from_secs(50);
/// The time within which every account is read. Each begins with some calls, on a machine that may be slow.
const UP: Duration = Duration::from_secs(240);
/// The time for which memory is looked at.
const LOOKED_AT: Duration = Duration::from_secs(15);
/// Largest memory of adapter-svc with 1,000 accounts, in bytes.
const MOST_BYTES: u64 = 150 << 20;

/// Bots of which a poll was opened.
type Polled = Arc<Mutex<BTreeSet<String>>>;

async fn answer(State(polled): State<Polled>, Path((bot, method)): Path<(String, String)>) -> Json<Value> {
    let id = bot
        .trim_start_matches("bot")
        .split(':')
        .next()
        .and_then(|id| id.parse::<i64>().ok());
    let result = match method.as_str() {
        "getMe" => json!({ "id": id, "is_bot": true, "first_name": "Nexus", "username": format!("idle_{bot}") }),
        "getWebhookInfo" => json!({ "url": "", "pending_update_count": 0 }),
        "getUpdates" => {
            polled.lock().unwrap_or_else(PoisonError::into_inner).insert(bot);
            pause(HELD).await;
            json!([])
        }
        _ => json!(true),
    };
    Json(json!({ "ok": true, "result": result }))
}

/// Returns the resident memory of the process `pid`, in bytes.
fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.expect("a size") << 10
}

/// Returns channels.yaml with `count` accounts at `base`, and the variables of their tokens.
fn accounts(count: usize, base: &str) -> (String, Vec<(String, String)>) {
    let mut section = "telegram:\n  accounts:\n".to_owned();
    let mut variables = Vec::new();
    for number in 0..count {
        let name = format!("IDLE_{number}");
        let _ = writeln!(
            section,
            "    idle{number}: {{token: 'env:{name}', base_url: '{base}', direct: open}}"
        );
        variables.push((name, format!("{}:secret", 1_000 + number)));
    }
    (section, variables)
}

/// 100 accounts with the tests, 1,000 in the long form, which is near the bound in a debug build.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_accounts_at_which_nothing_happens_take_little_memory() {
    let count = if is_long() { 1_000 } else { 100 };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let base = format!("http://{}", listener.local_addr().expect("an address"));
    let polled = Polled::default();
    let routes = Router::new()
        .route("/{bot}/{method}", post(answer))
        .with_state(Arc::clone(&polled));
    tokio::spawn(async move { axum::serve(listener, routes).await });

    let (channels, environment) = accounts(count, &base);
    let mut world = World::start(Setup {
        channels,
        environment,
        ..Setup::default()
    })
    .await;
    let pid = world.stack.service("adapter-svc", 0).expect("it runs").pid();
    let before = resident_bytes(pid);

    eventually_within("every account is read", UP, async || {
        let read = polled.lock().unwrap_or_else(PoisonError::into_inner).len();
        (read == count)
            .then_some(())
            .ok_or_else(|| format!("{read} of {count}"))
    })
    .await;
    let mut most = 0;
    for _ in 0..LOOKED_AT.as_secs() {
        pause(Duration::from_secs(1)).await;
        most = most.max(resident_bytes(pid));
    }

    println!(
        "{count} idle accounts: adapter-svc has {} MiB, {} MiB when it started",
        most >> 20,
        before >> 20
    );
    assert!(most <= MOST_BYTES, "{most} bytes");
}
