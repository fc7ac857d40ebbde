use super::*;

fn check(text: &str) -> Vec<String> {
    toml::from_str::<AdapterConfig>(text).expect("it parses").find_faults()
}

/// Returns a secret with the content `text`, as a file that exists as long as the test.
fn secret(text: &str) -> (tempfile::NamedTempFile, String) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), text).expect("written");
    let reference = format!("file:{}", file.path().display());
    (file, reference)
}

#[test]
fn the_default_takes_nothing_without_a_token() {
    let config = AdapterConfig::default();
    assert_eq!(config.find_faults(), Vec::<String>::new());
    let access = config.token_access().unwrap();
    assert!(!access.is_open() && access.scope_of(None).is_none());
}

#[test]
fn an_open_door_is_refused_where_others_reach_it_and_warned_of_elsewhere() {
    for refused in [
        "listen = \"0.0.0.0:80\"\nhttp.open = true",
        "listen = \"[::]:80\"\nhttp.open = true",
        "hosts = [\"nexus.example.com\"]\nhttp.open = true",
        "hosts = [\"localhost\", \"Nexus.example.com\"]\nhttp.open = true",
    ] {
        let faults = check(refused);
        assert!(
            faults.len() == 1 && faults[0].starts_with("http.open: "),
            "{refused}: {faults:?}"
        );
    }

    for sound in [
        "http.open = true",
        "hosts = [\"localhost\", \"127.0.0.1\"]\nhttp.open = true",
    ] {
        assert_eq!(check(sound), Vec::<String>::new(), "{sound}");
        let warnings = toml::from_str::<AdapterConfig>(sound).unwrap().find_warnings();
        assert!(warnings[0].starts_with("http.open: "), "{warnings:?}");
    }
}

#[test]
fn every_fault_is_named_with_its_key() {
    let text = r#"
        spool_max_bytes = 1
        max_concurrent = 0
        per_address_per_second = 0
        trusted_proxies = ["10.0.0.0/8", "proxy"]
        pairing_notices = { channel = "telegram" }
        [[http.tokens]]
        name = "a"
        sha256 = "plain"
        source = "timer"
        channels = []
        [webhook."a b"]
        scheme = "unsigned"
        persons = true
        channel = "cli"
        [webhook.gh]
        scheme = "github"
        channel = "telegram"
        mapping.id = "header:x-github-delivery"
        [webhook.own]
        scheme = "hmac"
        hmac.signed = "{nothing}"
        persons = true
        mapping.from = "header:x-user"
    "#;

    let faults = check(text).join("\n");
    for key in [
        "max_concurrent:",
        "pairing_notices:",
        "per_address_per_second,",
        "trusted_proxies: `proxy`",
        "spool_max_bytes:",
        "http.tokens[0].sha256:",
        "http.tokens[0].source:",
        "http.tokens[0].channels:",
        "webhook.a b.name:",
        "webhook.a b.persons:",
        "webhook.a b.channel:",
        "webhook.gh.secret:",
        "webhook.gh.channel:",
        "webhook.gh.mapping.id:",
        "webhook.own.hmac.signed:",
        "webhook.own.secret:",
        "webhook.own.mapping.from:",
    ] {
        assert!(faults.contains(key), "{key} in {faults}");
    }
}

#[test]
fn a_key_that_anybody_has_is_refused_wherever_it_is() {
    let faulty = |section: &str, text: &str| {
        let (_file, reference) = secret(text);
        !check(&section.replace("SECRET", &reference)).is_empty()
    };
    let sections = [
        ("[webhook.s]\nscheme = \"standard\"\nsecret = \"SECRET\"", "whsec_"),
        (
            "[webhook.s]\nscheme = \"standard\"\nsecret = \"SECRET\"",
            "whsec_MDEyMzQ1Njc4OQ==",
        ),
        ("[approvals]\nsecret = \"SECRET\"", "whsec_"),
        (
            "[approvals.channels.feishu]\nsecret = \"SECRET\"",
            "whsec_MDEyMzQ1Njc4OQ==",
        ),
        ("[approvals]\nlink_secret = \"SECRET\"", "short"),
        ("[webhook.s]\nscheme = \"github\"\nsecret = \"SECRET\"", "seven77"),
        ("[webhook.s]\nscheme = \"telegram\"\nsecret = \"SECRET\"", "seven77"),
        ("[http]\nlocal_token = \"SECRET\"", "short"),
    ];

    for (section, weak) in sections {
        assert!(faulty(section, weak), "{section}: {weak}");
    }

    let (_file, reference) = secret("fifteen-letters");
    let short = format!("[webhook.s]\nscheme = \"github\"\nsecret = \"{reference}\"");
    let config: AdapterConfig = toml::from_str(&short).unwrap();

    assert_eq!(config.find_faults(), Vec::<String>::new());
    assert!(config.find_warnings()[0].starts_with("webhook.s.secret: "));
}

#[test]
fn the_owner_is_told_of_strangers_by_an_account_that_there_is() {
    let known = ConfiguredChannels {
        accounts: [("telegram".to_owned(), ["main".to_owned()].into())].into(),
    };
    let fault = |place: &str| {
        let text = format!("pairing_notices = {{ {place}, peerId = \"7\" }}");
        let config: AdapterConfig = toml::from_str(&text).unwrap();
        config.notice_fault(&known).map(|fault| fault.problem)
    };
    assert_eq!(fault("channel = \"telegram\", accountId = \"main\""), None);
    assert_eq!(fault("channel = \"webchat\""), None, "one of Nexus's own");
    for (place, need) in [
        ("channel = \"telegram\"", "telegram:default"),
        ("channel = \"telegram\", accountId = \"other\"", "telegram:other"),
        ("channel = \"telegramm\", accountId = \"main\"", "telegramm:main"),
    ] {
        assert!(fault(place).is_some_and(|problem| problem.contains(need)), "{place}");
    }
    assert_eq!(AdapterConfig::default().notice_fault(&known), None);
}
