use std::path::Path;

use serde::Deserialize;

use super::super::environment::ConfigEnvironment;
use super::*;
use crate::process::secret::SecretValue;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Broker {
    slots: u32,
    name: String,
    servers: Vec<String>,
    mode: Mode,
    limits: Limits,
    accounts: BTreeMap<String, Account>,
    sources: Vec<Account>,
    token: Option<SecretValue>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    #[default]
    Slow,
    Fast,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Limits {
    turns: u32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Account {
    url: String,
    #[serde(default)]
    retries: u32,
}

fn load(text: &str, variables: &[(&str, &str)]) -> (LoadedSection<Broker>, Vec<String>) {
    let environment: ConfigEnvironment = variables.iter().copied().collect();
    let document = ConfigDocument::parse(Path::new("nexus.toml"), text, &environment);
    let loaded = document.section::<Broker>("broker", |broker| match broker.slots {
        0 => vec!["slots: expected at least 1".to_owned()],
        _ => Vec::new(),
    });

    let faults = document
        .faults()
        .iter()
        .chain(&loaded.faults)
        .map(ConfigFault::to_string)
        .collect();

    (loaded, faults)
}

fn check(text: &str, expected: &[&str]) {
    let (_, mut faults) = load(text, &[]);
    let mut expected = expected.to_vec();
    faults.sort();
    expected.sort_unstable();
    assert_eq!(faults, expected, "{text}");
}

#[test]
fn a_clean_section_has_no_faults() {
    let (loaded, faults) = load("[broker]\nslots = 4\nmode = 'fast'\n[hooks]\nanything = 1\n", &[]);
    assert_eq!(faults, Vec::<String>::new());
    assert_eq!(loaded.value.slots, 4);
    assert!(matches!(loaded.value.mode, Mode::Fast));
}

#[test]
fn every_fault_is_told_at_once() {
    check(
        "[broker]\nslots = 'many'\nnmae = 'x'\nmode = 'quick'\ntoken = 'hunter2'\n[broker.limits]\nturns = -1\nx = 1\n\
         [broker.accounts.demo]\nurl = 7\n[brokr]\n[hooks]\n",
        &[
            "nexus.toml: brokr: unknown section: expected one of nats, trust, edges, telemetry, runtime, files, llm, \
             adapter, hooks, broker, delivery, scheduler",
            "nexus.toml: broker.slots: expected a non-negative integer, found string \"many\"",
            "nexus.toml: broker.nmae: unknown key `nmae`: expected one of `slots`, `name`, `servers`, `mode`, \
             `limits`, `accounts`, `sources`, `token`",
            "nexus.toml: broker.mode: unknown value `quick`: expected `slow` or `fast`",
            "nexus.toml: broker.token: expected a reference, `env:NAME` or `file:/path`",
            "nexus.toml: broker.limits.turns: expected a non-negative integer, found integer `-1`",
            "nexus.toml: broker.limits.x: unknown key `x`: expected `turns`",
            "nexus.toml: broker.accounts.demo.url: expected a string, found integer `7`",
        ],
    );
}

#[test]
fn faults_in_a_list_keep_the_index_as_written() {
    check(
        "[broker]\nslots = 1\nservers = ['a', 1, 2, 'b', 3]\n[[broker.sources]]\nretries = 1\n[[broker.sources]]\nurl = 1\n\
         retries = 'x'\n[[broker.sources]]\nurl = 'fine'\n[[broker.sources]]\nurl = 'x'\nuri = 'x'\n",
        &[
            "nexus.toml: broker.servers[1]: expected a string, found integer `1`",
            "nexus.toml: broker.servers[2]: expected a string, found integer `2`",
            "nexus.toml: broker.servers[4]: expected a string, found integer `3`",
            "nexus.toml: broker.sources[0].url: required, but missing",
            "nexus.toml: broker.sources[1].url: expected a string, found integer `1`",
            "nexus.toml: broker.sources[1].retries: expected a non-negative integer, found string \"x\"",
            "nexus.toml: broker.sources[3].uri: unknown key `uri`: expected `url` or `retries`",
        ],
    );
}

#[test]
fn a_fault_of_meaning_names_its_key_and_is_not_told_of_a_misread_one() {
    check(
        "[broker]\nslots = 0\n",
        &["nexus.toml: broker.slots: expected at least 1"],
    );
    check(
        "[broker]\nslots = true\n",
        &["nexus.toml: broker.slots: expected a non-negative integer, found boolean `true`"],
    );
}

#[test]
fn bad_syntax_names_its_line() {
    let (_, faults) = load("[broker]\nslots = 1\nname = \n", &[]);
    assert!(faults[0].starts_with("nexus.toml: line 3: "), "{faults:?}");
}

#[test]
fn the_environment_overrides_in_the_type_that_the_key_has() {
    let variables = [
        ("NEXUS__BROKER__SLOTS", "8"),
        ("NEXUS__BROKER__NAME", "8080"),
        ("NEXUS__BROKER__SERVERS", "nats://a:1, nats://b:2"),
        ("NEXUS__BROKER__LIMITS__TURNS", "3"),
        ("NEXUS__BROKER__ACCOUNTS__DEMO", "{ url = 'http://x' }"),
        ("NEXUS__HOOKS__DIR", "another service's"),
    ];

    let (loaded, faults) = load("[broker]\nslots = 'overridden'\n", &variables);
    assert_eq!(faults, Vec::<String>::new());

    let broker = loaded.value;
    assert_eq!(
        (broker.slots, broker.name.as_str(), broker.limits.turns),
        (8, "8080", 3)
    );
    assert_eq!(broker.servers, ["nats://a:1", "nats://b:2"]);
    assert_eq!(broker.accounts["demo"].url, "http://x");
}

#[test]
fn a_fault_of_a_variable_names_the_variable() {
    let (_, faults) = load("", &[("NEXUS__BROKER__SLOTS", "many"), ("NEXUS__BROKR__SLOTS", "1")]);
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(
        faults[0].starts_with("NEXUS__BROKR__SLOTS: expected NEXUS__SECTION__KEY"),
        "{faults:?}"
    );
    assert!(
        faults[1].starts_with("NEXUS__BROKER__SLOTS: broker.slots: expected a non-negative integer"),
        "{faults:?}"
    );
}

#[test]
fn what_is_shown_has_defaults_and_no_secrets() {
    let (loaded, faults) = load("[broker]\nslots = 2\ntoken = 'env:CARGO_PKG_NAME'\n", &[]);
    assert_eq!(faults, Vec::<String>::new());
    assert_eq!(loaded.value.token.as_ref().map(SecretValue::reveal), Some("shared"));
    let shown = loaded.shown_values();
    assert_eq!(shown["token"].as_str(), Some("env:CARGO_PKG_NAME"));
    assert_eq!(shown["limits"]["turns"].as_integer(), Some(0));
}
