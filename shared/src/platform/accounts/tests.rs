use super::*;
use crate::platform::policy::{DirectPolicy, GroupPolicy, GroupPrompt};
use crate::platform::telegram::ReceiveMode;

const TOKEN: &str = "123456:AbC-dEf_1";

/// Returns a reference to a file with `secret`.
fn reference(secret: &str) -> String {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), secret).expect("written");
    let path = file.into_temp_path().keep().expect("kept");
    format!("file:{}", path.display())
}

/// Returns the account with `keys` beside its token.
fn account(keys: &str) -> TelegramAccount {
    let text = format!(
        "telegram: {{accounts: {{bot: {{token: '{}', {keys}}}}}}}",
        reference(TOKEN)
    );
    let mut accounts = read_platforms(&text).expect("read").telegram.accounts;
    accounts.remove("bot").expect("the account")
}

/// Returns the faults of an account with `token` and `keys`, below the account's own key.
fn faults(token: &str, keys: &str) -> Vec<String> {
    let text = format!(
        "telegram: {{accounts: {{bot: {{token: '{}', {keys}}}}}}}",
        reference(token)
    );
    let ReadAccountsError(faults) = read_platforms(&text).expect_err("faults");
    let lines = faults.iter().map(ToString::to_string);
    lines
        .map(|line| line.trim_start_matches("telegram.accounts.bot.").to_owned())
        .collect()
}

#[test]
fn a_token_is_enough() {
    let bot = account("");
    assert_eq!((bot.receive, bot.direct), (ReceiveMode::Poll, DirectPolicy::Pairing));
    assert_eq!(
        bot.method_url("getMe").as_str(),
        format!("https://api.telegram.org/bot{TOKEN}/getMe")
    );
    assert_eq!((bot.album_wait_ms, bot.text_limit), (1_000, None));
    assert_eq!(
        bot.place_policy(-100, None),
        None,
        "nobody's groups, until they are named"
    );
}

#[test]
fn every_setting_is_read() {
    let bot = account(
        "base_url: 'http://127.0.0.1:9/', receive: none, direct: allowlist, allow: [7, 8], text_limit: 2000, \
         album_wait_ms: 0, groups: {-1001: {require_mention: false, reply_in_thread: false, allow: [7], prompt: Short.}, '*': {}}",
    );
    assert_eq!((bot.receive, bot.direct), (ReceiveMode::None, DirectPolicy::Allowlist));
    assert_eq!(bot.allow, BTreeSet::from([7, 8]));
    assert_eq!(
        bot.method_url("sendMessage").as_str(),
        format!("http://127.0.0.1:9/bot{TOKEN}/sendMessage")
    );
    assert_eq!((bot.album_wait_ms, bot.text_limit), (0, Some(2_000)));

    let named = bot.place_policy(-1001, None).expect("named");
    assert!(!named.require_mention && !named.reply_in_thread && named.allow.contains(&7));
    assert_eq!(named.prompt.map(GroupPrompt::as_str), Some("Short."));
    assert_eq!(
        bot.place_policy(-1002, None),
        Some(GroupPolicy::default().in_topic(None))
    );
}

#[test]
fn groups_that_are_not_named_are_ignored_if_others_are() {
    let bot = account("groups: {-1001: {}}");
    assert!(bot.place_policy(-1001, None).is_some());
    assert_eq!(bot.place_policy(-1002, None), None);
    assert_eq!(account("groups: {}").place_policy(-1001, None), None);
}

#[test]
fn a_topic_has_settings_of_its_own_and_its_groups_for_the_rest() {
    let bot = account(
        "groups: {-1001: {allow: [7], prompt: All., topics: {1: {prompt: General.}, 5: {require_mention: false, \
         reply_in_thread: false, allow: [8]}}}, '*': {}}",
    );
    let of = |topic: Option<&str>| bot.place_policy(-1001, topic).expect("named");
    let prompt = |topic: Option<&str>| of(topic).prompt.map(GroupPrompt::as_str);
    assert!(!of(Some("5")).require_mention && !of(Some("5")).reply_in_thread);
    assert_eq!(
        (of(Some("5")).allow, prompt(Some("5"))),
        (&BTreeSet::from([8]), Some("All."))
    );
    assert_eq!(
        (of(Some("6")).allow, prompt(Some("6"))),
        (&BTreeSet::from([7]), Some("All."))
    );
    // What is in no topic is in the general one.
    assert_eq!((prompt(None), prompt(Some("1"))), (Some("General."), Some("General.")));
    assert!(of(None).require_mention && of(None).reply_in_thread);

    assert_eq!(faults(TOKEN, "groups: {-1001: {topics: {5: {colour: red}}}}").len(), 1);
    let wrong = "groups: {-1001: {topics: {general: {}, 0: {}}}, '*': {topics: {7: {}}}}";
    let found = faults(TOKEN, wrong);
    let keys: Vec<&str> = found.iter().filter_map(|line| line.split(": ").next()).collect();
    assert_eq!(
        keys,
        [
            "groups.*.topics.7",
            "groups.-1001.topics.0",
            "groups.-1001.topics.general"
        ]
    );
}

#[test]
fn texts_are_merged_where_they_can_wait() {
    assert_eq!(
        (account("").debounce_ms, account("debounce_ms: 5000").debounce_ms),
        (0, 5_000)
    );
    let webhook = format!(
        "receive: webhook, webhook_url: 'https://nexus.example.com', webhook_secret: '{}', debounce_ms",
        reference("s3cret-s3cret-s3cret")
    );
    assert_eq!(account(&format!("{webhook}: 5000")).debounce_ms, 5_000);
    assert_eq!(
        faults(TOKEN, &format!("{webhook}: 5001")),
        ["debounce_ms: expected at most 5000"]
    );
    assert_eq!(
        faults(TOKEN, "debounce_ms: 5001"),
        ["debounce_ms: expected at most 5000"]
    );
    assert_eq!(
        faults(TOKEN, "receive: none, debounce_ms: 1"),
        ["debounce_ms: expected none with `receive: none`"]
    );
}

#[test]
fn a_token_is_not_printed() {
    let bot = account("");
    let printed = format!("{bot:?}");
    assert!(printed.contains("file:") && !printed.contains("AbC-dEf_1"), "{printed}");

    let hash = bot.token_hash();
    assert_eq!(hash.len(), 16);
    assert!(!hash.contains("123456"), "{hash}");
}

#[test]
fn every_fault_is_told_with_its_key_and_without_the_token() {
    let found = faults(
        "123456:AbC/../secret",
        "album_wait_ms: 10001, groups: {everyone: {}}, base_url: 'http://example.com', colour: red",
    );
    let keys: Vec<&str> = found.iter().filter_map(|line| line.split(": ").next()).collect();
    assert_eq!(
        keys,
        ["base_url", "colour", "token", "album_wait_ms", "groups.everyone"],
        "{found:?}"
    );
    assert!(!found.concat().contains("../secret"), "{found:?}");
}

#[test]
fn settings_that_have_no_effect_are_faults() {
    assert_eq!(faults(TOKEN, "direct: open, allow: [7]").len(), 1);
    assert_eq!(faults(TOKEN, "groups: {'*': {require_mentions: true}}").len(), 1);
    for token in ["no-colon", ":secret", "12a:secret", "12:", "12:a b", "12:a?b"] {
        assert_eq!(faults(token, "").len(), 1, "{token}");
    }
}

#[test]
fn a_bot_is_one_account_and_names_are_plain() {
    let token = reference(TOKEN);
    let text = format!("telegram: {{accounts: {{a: {{token: '{token}'}}, 'b/c': {{token: '{token}'}}}}}}");
    let ReadAccountsError(faults) = read_platforms(&text).expect_err("faults");
    let keys: Vec<&str> = faults.iter().map(|fault| fault.key.as_str()).collect();
    assert_eq!(keys, ["telegram.accounts.b/c", "telegram.accounts.b/c.token"]);
}

#[test]
fn other_accounts_are_read_by_whoever_has_their_type() {
    let text = "webhook: {accounts: {demo: {url: x}}}\nbridges: {sms: {accounts: {work: {url: y}}}}\n";
    assert!(read_platforms(text).expect("read").telegram.accounts.is_empty());

    let read = read_channels::<BTreeMap<String, String>>(text, |_| Vec::new()).expect("read");
    assert_eq!(read.webhook.accounts["demo"]["url"], "x");
    assert_eq!(read.bridges["sms"].accounts["work"]["url"], "y");

    let fault = |_: &ChannelsFile<BTreeMap<String, String>>| vec![KeyFault::new("webhook", "no")];
    assert!(read_channels(text, fault).is_err());
    assert!(read_platforms("webhok: {}").is_err());
    assert!(read_platforms("# nothing\n").is_ok());
}

#[test]
fn the_accounts_by_which_replies_leave_are_known_by_name() {
    let text = "webhook: {accounts: {demo: {url: x, secret: 'env:NOT_OURS'}}}\n\
                bridges: {whatsapp: {accounts: {work: {}}}, sms: {accounts: {}}}\n";
    let known = read_platforms(text).expect("read").configured();
    for (need, is_there) in [
        ("webhook:demo", true),
        ("webhook:other", false),
        ("whatsapp:work", true),
        ("sms", false),
        ("telegram:main", false),
        ("webchat:anything", true),
    ] {
        assert_eq!(known.has_channel(need), is_there, "{need}");
    }
}
