use super::*;
use crate::platform::accounts::{ReadAccountsError, read_platforms};

const TOKEN: &str = "MTk4NjIyNDgz.Cl2FMQ.Zn-Cjm1_XVW7v";

/// Returns a reference to a file with `secret`.
fn reference(secret: &str) -> String {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), secret).expect("written");
    let path = file.into_temp_path().keep().expect("kept");
    format!("file:{}", path.display())
}

/// Returns the account with `token` and `keys`, or the lines of its faults below its own key.
fn read(token: &str, keys: &str) -> Result<DiscordAccount, Vec<String>> {
    let text = format!(
        "discord: {{accounts: {{bot: {{token: '{}', {keys}}}}}}}",
        reference(token)
    );
    let told = |ReadAccountsError(faults): ReadAccountsError| {
        let lines = faults.iter().map(ToString::to_string);
        let lines = lines.map(|line| line.trim_start_matches("discord.accounts.bot.").to_owned());
        lines.collect::<Vec<_>>()
    };
    let mut accounts = read_platforms(&text).map_err(told)?.discord.accounts;
    Ok(accounts.remove("bot").expect("the account"))
}

#[test]
fn a_token_is_enough() {
    let bot = read(TOKEN, "").expect("read");
    assert_eq!((bot.receive, bot.direct), (ReceiveMode::Gateway, DirectPolicy::Pairing));
    assert_eq!(
        bot.base_url.join("channels/1/messages").as_str(),
        "https://discord.com/api/v10/channels/1/messages"
    );
    assert_eq!(
        (bot.ws_url, bot.text_limit, bot.on_doubt),
        (None, None, DoubtPolicy::AtLeastOnce)
    );
    let bot = read(TOKEN, "").expect("read");
    assert_eq!(
        bot.channel_policy("1", Some("2")),
        None,
        "nobody's channels, until they are named"
    );
    assert!(!format!("{bot:?}").contains("Cl2FMQ"));
    assert_eq!(bot.authorization(), format!("Bot {TOKEN}"));
}

#[test]
fn every_setting_is_read_and_a_channel_goes_before_its_guild() {
    let bot = read(
        TOKEN,
        "base_url: 'http://127.0.0.1:9/api', ws_url: 'ws://127.0.0.1:9', receive: none, allow: [1033044521375764530], \
         on_doubt: at_most_once, text_limit: 1900, groups: {11: {require_mention: false}, 20: {allow: [7]}, '*': {}}",
    )
    .expect("read");
    assert_eq!((bot.receive, bot.text_limit), (ReceiveMode::None, Some(1_900)));
    assert_eq!(bot.allow, BTreeSet::from([1_033_044_521_375_764_530]));
    let socket = bot.ws_url.as_ref().expect("a URL").upgrade_url();
    assert_eq!(socket.as_str(), "http://127.0.0.1:9/?v=10&encoding=json");

    let policy = |channel: &str, guild: &str| bot.channel_policy(channel, Some(guild)).expect("a policy").clone();
    assert!(!policy("11", "20").require_mention);
    assert_eq!(policy("12", "20").allow, BTreeSet::from([7]));
    assert_eq!(policy("12", "21"), GroupPolicy::default());
}

#[test]
fn every_fault_is_told_with_its_key_and_without_the_token() {
    let found = read(
        "Bot MTk4.secret.word",
        "direct: open, allow: [1], groups: {general: {}}, base_url: 'http://example.com', ws_url: 'ws://example.com', \
         text_limit: many, colour: red",
    )
    .expect_err("faults");
    let mut keys: Vec<&str> = found.iter().filter_map(|line| line.split(": ").next()).collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        [
            "allow",
            "base_url",
            "colour",
            "groups.general",
            "text_limit",
            "token",
            "ws_url"
        ],
        "{found:?}"
    );
    assert!(!found.concat().contains("secret"), "{found:?}");

    for token in ["one", "a.b", "a.b.", "a.b.c.d", "a.b.c d", "a.b.c\nX-Header: y"] {
        assert_eq!(read(token, "").expect_err("a fault").len(), 1, "{token:?}");
    }
    assert!(read(TOKEN, "receive: poll").is_err());
}

#[test]
fn texts_are_merged_where_they_are_read() {
    let wait = |keys: &str| read(TOKEN, keys).map(|bot| bot.debounce_ms);
    assert_eq!((wait(""), wait("debounce_ms: 5000")), (Ok(0), Ok(5_000)));
    assert_eq!(
        wait("debounce_ms: 5001"),
        Err(vec!["debounce_ms: expected at most 5000".to_owned()])
    );
    assert_eq!(
        wait("receive: none, debounce_ms: 1"),
        Err(vec!["debounce_ms: expected none with `receive: none`".to_owned()])
    );
}

#[test]
fn a_thread_may_have_settings_of_its_own() {
    let bot = read(TOKEN, "groups: {12: {topics: {15: {require_mention: false}}}}").expect("read");
    let policy = bot.channel_policy("12", None).expect("a policy");
    assert!(!policy.in_topic(Some("15")).require_mention);
    assert!(policy.in_topic(Some("16")).require_mention && policy.in_topic(None).require_mention);
    let wrong = read(TOKEN, "groups: {12: {topics: {general: {}}}}").expect_err("a fault");
    assert!(wrong[0].starts_with("groups.12.topics.general: "), "{wrong:?}");
}

#[test]
fn a_bot_is_one_account() {
    let token = reference(TOKEN);
    let text = format!("discord: {{accounts: {{a: {{token: '{token}'}}, 'b/c': {{token: '{token}'}}}}}}");
    let ReadAccountsError(faults) = read_platforms(&text).expect_err("faults");
    let keys: Vec<&str> = faults.iter().map(|fault| fault.key.as_str()).collect();
    assert_eq!(keys, ["discord.accounts.b/c", "discord.accounts.b/c.token"]);
}

#[test]
fn gateways_are_reached_as_safely_as_the_rest() {
    for text in [
        "https://gateway.discord.gg",
        "ws://10.0.0.1",
        "wss://user@gateway.discord.gg",
        "wss://x/?a=b",
        "",
    ] {
        assert_eq!(SocketUrl::parse(text), Err(ParseSocketUrlError), "{text}");
    }
    let url = SocketUrl::parse("ws://[::1]:81/socket").expect("a URL");
    assert_eq!(url.upgrade_url().as_str(), "http://[::1]:81/socket/?v=10&encoding=json");
}

#[test]
fn ids_are_numbers_above_zero() {
    assert!(is_snowflake("1457510428359004343") && is_snowflake("1"));
    for text in ["", "0", "-1", "+1", "18446744073709551616", "12a", "1 ", "general"] {
        assert!(!is_snowflake(text), "{text}");
    }
}
