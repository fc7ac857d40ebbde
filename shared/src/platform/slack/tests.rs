use super::*;
use crate::platform::accounts::{ReadAccountsError, read_platforms};

const TOKEN: &str = "xoxb-1-2-AbC";
const SECRET: &str = "8f742231b10e8888abcd99yyyzzz85a5";

/// Returns a reference to a file with `secret`.
fn reference(secret: &str) -> String {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), secret).expect("written");
    let path = file.into_temp_path().keep().expect("kept");
    format!("file:{}", path.display())
}

/// Returns the content of `channels.yaml` with one account of `keys` beside its token.
fn file(token: &str, keys: &str) -> String {
    format!(
        "slack: {{accounts: {{app: {{token: '{}', {keys}}}}}}}",
        reference(token)
    )
}

/// Returns the account with `keys` beside its token and secret.
fn account(keys: &str) -> SlackAccount {
    let keys = format!("signing_secret: '{}', {keys}", reference(SECRET));
    let mut accounts = read_platforms(&file(TOKEN, &keys)).expect("read").slack.accounts;
    accounts.remove("app").expect("the account")
}

/// Returns the keys that are wrong, below the account's own key.
fn faults(token: &str, keys: &str) -> Vec<String> {
    let ReadAccountsError(faults) = read_platforms(&file(token, keys)).expect_err("faults");
    faults
        .iter()
        .map(|fault| fault.key.trim_start_matches("slack.accounts.app.").to_owned())
        .collect()
}

#[test]
fn a_token_and_a_secret_are_enough() {
    let app = account("");
    assert_eq!((app.receive, app.direct), (SlackReceive::Events, DirectPolicy::Pairing));
    assert_eq!(app.method_url("auth.test").as_str(), "https://slack.com/api/auth.test");
    assert_eq!(app.text_limit, None);
    assert_eq!(
        app.access().group_policy("C1"),
        None,
        "no channels, until they are named"
    );
}

#[test]
fn every_setting_is_read() {
    let app = account(
        "base_url: 'http://127.0.0.1:9/', receive: none, allow: [U1, W2], text_limit: 2000, on_doubt: at_most_once, \
         groups: {C1: {require_mention: false, reply_in_thread: false, allow: [U1]}, '*': {}}",
    );
    assert_eq!(
        (app.receive, app.on_doubt),
        (SlackReceive::None, DoubtPolicy::AtMostOnce)
    );
    assert!(app.allow.contains("W2"));
    assert_eq!(
        app.method_url("chat.postMessage").as_str(),
        "http://127.0.0.1:9/api/chat.postMessage"
    );

    let access = app.access();
    let named = access.group_policy("C1").expect("named");
    assert!(!named.require_mention && !named.reply_in_thread && named.allow.contains("U1"));
    assert_eq!(access.group_policy("C2"), Some(&GroupPolicy::default()));
}

#[test]
fn secrets_are_not_printed() {
    let printed = format!("{:?}", account(""));
    assert!(
        printed.contains("file:") && !printed.contains("AbC") && !printed.contains("8f74"),
        "{printed}"
    );
    assert_eq!(account("").token_hash().len(), 16);
}

#[test]
fn an_account_that_receives_needs_the_signing_secret_and_one_that_sends_does_not() {
    assert_eq!(faults(TOKEN, ""), ["signing_secret"]);
    assert!(read_platforms(&file(TOKEN, "receive: none")).is_ok());
    for secret in ["short", "with spaces in it, and long enough"] {
        let keys = format!("signing_secret: '{}'", reference(secret));
        assert_eq!(faults(TOKEN, &keys), ["signing_secret"], "{secret}");
    }
}

#[test]
fn an_account_with_a_socket_needs_the_token_of_the_app() {
    assert_eq!(faults(TOKEN, "receive: socket"), ["app_token"]);
    let keys = |token: &str| format!("receive: socket, app_token: '{}'", reference(token));
    assert_eq!(faults(TOKEN, &keys("xoxb-1")), ["app_token"]);
    assert!(read_platforms(&file(TOKEN, &keys("xapp-1-A1"))).is_ok());
}

#[test]
fn every_fault_is_told_with_its_key_and_without_the_token() {
    let keys = "receive: none, allow: [ann], groups: {general: {}, C1: {allow: [bob]}}, base_url: 'http://example.com', \
                colour: red";
    assert_eq!(
        faults("xoxp-hidden", keys),
        [
            "base_url",
            "colour",
            "token",
            "allow",
            "groups.general",
            "groups.C1.allow"
        ]
    );
    let told = read_platforms(&file("xoxp-hidden", keys))
        .expect_err("faults")
        .to_string();
    assert!(!told.contains("hidden"), "{told}");

    for token in ["xoxb-", "xoxb-a b", "xoxp-1", "xapp-1", "xoxb-a\u{7f}"] {
        assert_eq!(faults(token, "receive: none"), ["token"], "{token}");
    }
    assert_eq!(faults(TOKEN, "receive: none, direct: open, allow: [U1]"), ["allow"]);
    assert_eq!(
        faults(TOKEN, "receive: none, groups: {C1: {topics: {'1.000001': {}}}}"),
        ["groups.C1.topics.1.000001"]
    );
}

#[test]
fn a_rotated_token_needs_all_with_which_it_is_renewed() {
    const ROTATED: &str = "xoxe.xoxb-1-AbC";
    let keys = |refresh: &str, more: &str| format!("receive: none, refresh_token: '{}'{more}", reference(refresh));
    let client = format!(
        ", client_id: '{}', client_secret: '{}'",
        reference("1.2"),
        reference("client-secret")
    );

    let read = read_platforms(&file(ROTATED, &keys("xoxe-1-Abc", &client))).expect("read");
    let app = &read.slack.accounts["app"];
    let rotation = app.rotation().expect("a rotated token");
    assert_eq!(rotation.refresh_token.reveal(), "xoxe-1-Abc");
    assert!(!format!("{app:?} {rotation:?}").contains("Abc"));
    assert_eq!(account("").rotation(), None);

    assert_eq!(faults(ROTATED, &keys("xoxe-1-Abc", "")), ["client_id", "client_secret"]);
    assert_eq!(faults(ROTATED, &keys("xoxb-1", &client)), ["refresh_token"]);
    assert_eq!(faults(TOKEN, &keys("xoxe-1-Abc", &client)), ["token"]);
    let alone = format!("receive: none{client}");
    assert_eq!(faults(ROTATED, &alone), ["client_id", "client_secret"]);

    let shared = keys("xoxe-1-Abc", &client);
    let twice = format!(
        "slack: {{accounts: {{app: {{token: '{}', {shared}}}, other: {{token: '{}', {shared}}}}}}}",
        reference(ROTATED),
        reference("xoxe.xoxb-2")
    );
    let ReadAccountsError(found) = read_platforms(&twice).expect_err("faults");
    let keys: Vec<&str> = found.iter().map(|fault| fault.key.as_str()).collect();
    assert_eq!(keys, ["slack.accounts.other.refresh_token"], "Slack takes it once");
}

#[test]
fn texts_are_merged_for_as_long_as_the_way_of_receiving_allows() {
    assert_eq!(account("").debounce_ms, 0);
    let socket = |wait: u64| {
        format!(
            "receive: socket, app_token: '{}', debounce_ms: {wait}",
            reference("xapp-1")
        )
    };
    let read = read_platforms(&file(TOKEN, &socket(MAX_DEBOUNCE_MS))).expect("read");
    assert_eq!(read.slack.accounts["app"].debounce_ms, MAX_DEBOUNCE_MS);
    assert_eq!(faults(TOKEN, &socket(MAX_DEBOUNCE_MS + 1)), ["debounce_ms"]);
    assert_eq!(faults(TOKEN, "receive: none, debounce_ms: 1"), ["debounce_ms"]);
    assert_eq!(account("debounce_ms: 5000").debounce_ms, 5_000);
    let posts = format!("signing_secret: '{}', debounce_ms: 5001", reference(SECRET));
    assert_eq!(faults(TOKEN, &posts), ["debounce_ms"]);
}

#[test]
fn an_app_is_one_account_and_names_are_plain() {
    let token = reference(TOKEN);
    let one = format!("{{token: '{token}', receive: none}}");
    let text = format!("slack: {{accounts: {{a: {one}, 'b/c': {one}}}}}");
    let ReadAccountsError(faults) = read_platforms(&text).expect_err("faults");
    let keys: Vec<&str> = faults.iter().map(|fault| fault.key.as_str()).collect();
    assert_eq!(keys, ["slack.accounts.b/c", "slack.accounts.b/c.token"]);
}
