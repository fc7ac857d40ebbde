//! Slack's socket: the contract of sources. Each account is an app with a stand-in of its own.

use std::sync::Arc;

use adapter_svc::source::port::Source;
use adapter_svc::source::slack::begun_threads::BegunThreads;
use adapter_svc::source::slack::client::open_http;
use adapter_svc::source::slack::socket::SlackSocketSource;
use serde_json::{Value, json};
use shared::model::time::UnixMillis;
use shared::platform::accounts::read_platforms;
use shared::platform::slack::SLACK;
use shared::testing::SeededIds;

use crate::contract::{Platform, check_source};
use crate::dropped::check_dropped;
use crate::socket_api::SocketApi;
use crate::world::World;

/// The stand-ins of both accounts.
struct SlackSockets {
    main: SocketApi,
    other: SocketApi,
}

impl SlackSockets {
    fn of(&self, account: &str) -> &SocketApi {
        if account == "main" { &self.main } else { &self.other }
    }

    /// Ends the connection of `account`, whose next ones are refused with `error`.
    fn refuse(&self, account: &str, error: &str) {
        self.of(account).refuse(Some(json!({"ok": false, "error": error})));
        self.of(account).end(None);
    }
}

/// The direct message `number` of user 5, written at `at`.
fn message(number: i64, at: UnixMillis) -> (Value, String) {
    // Below a millisecond, so that the event has the time itself.
    let stamp = format!("{}.{:06}", at.0 / 1_000, number % 1_000);
    let message =
        json!({"type": "message", "channel": "D1", "user": "U5", "text": format!("message {number}"), "ts": stamp});
    (message, stamp)
}

impl Platform for SlackSockets {
    fn channel(&self) -> &'static str {
        SLACK
    }

    fn reading(&self) -> &'static str {
        "receiving as"
    }

    fn has_earlier(&self) -> bool {
        // Slack sends what no connection has acknowledged.
        true
    }

    fn short_absence(&self) -> u64 {
        // After five minutes Slack repeats nothing.
        240_000
    }

    fn gap_end(&self, now: UnixMillis) -> UnixMillis {
        now
    }

    fn channels(&self, world: &World) -> String {
        let account = |name: &str| {
            let (token, app) = (
                world.secret(&format!("xoxb-{name}-secret")),
                world.secret(&format!("xapp-{name}-secret")),
            );
            let base = &self.of(name).base;
            format!("{{token: '{token}', app_token: '{app}', receive: socket, base_url: '{base}', direct: open}}")
        };
        format!(
            "slack: {{accounts: {{main: {}, other: {}}}}}",
            account("main"),
            account("other")
        )
    }

    fn source(&self, world: &World) -> Arc<dyn Source> {
        let accounts = read_platforms(&self.channels(world)).expect("sound accounts");
        let account = accounts.slack.accounts["main"].clone();
        let app_token = account.app_token.clone().expect("the app's token");
        let (http, ids) = (open_http().expect("a client"), Arc::new(SeededIds::new(7)));
        let (name, clock) = ("main".to_owned(), world.clock.clone());
        let threads = BegunThreads::new(&world.bus, world.clock.clone());
        Arc::new(SlackSocketSource::new(
            name, account, app_token, http, threads, clock, ids,
        ))
    }

    fn say(&self, account: &str, number: i64, at: UnixMillis) -> String {
        let (message, stamp) = message(number, at);
        self.of(account).bring(&message);
        format!("slack:{account}/D1/{stamp}")
    }

    fn disorder(&self, account: &str) {
        self.of(account).shuffle();
    }

    fn set_away(&self, account: &str, is_away: bool) {
        if is_away {
            self.refuse(account, "internal_error");
        } else {
            self.of(account).refuse(None);
        }
    }

    fn forget(&self, account: &str) {
        self.of(account).forget();
    }

    fn revoke(&self, account: &str) {
        self.refuse(account, "invalid_auth");
    }

    fn confirmed(&self, account: &str) -> usize {
        self.of(account).confirmed()
    }

    fn handed(&self, account: &str) -> usize {
        self.of(account).handed()
    }

    fn calls(&self, account: &str) -> u64 {
        self.of(account).calls()
    }

    fn early(&self, account: &str) -> Vec<String> {
        self.of(account).early()
    }
}

/// The stand-ins in `world`.
async fn start(world: &World) -> SlackSockets {
    SlackSockets {
        main: SocketApi::start_of(world.bus.clone(), "main").await,
        other: SocketApi::start_of(world.bus.clone(), "other").await,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_socket_of_slack_holds_to_the_contract() {
    check_source(async |world: &World| start(world).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_socket_of_slack_is_dropped_at_each_wait_and_loses_and_doubles_nothing() {
    check_dropped(async |world: &World| start(world).await).await;
}
