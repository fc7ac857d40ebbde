//! A service whose configuration cannot be read does not start, whatever it was asked to do.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use cli::launch::SERVICES;
use cli::launch::process::{ProcessName, Signal, send};
use shared::process::free_port;
use tests::command::{PATIENCE, program};
use tests::eventually::eventually;

/// Files of a configuration beside `nexus.toml`, and the key that names each.
const FILES: [(&str, &str); 6] = [
    ("identities.yaml", "files.identities"),
    ("personas.yaml", "files.personas"),
    ("channels.yaml", "files.channels"),
    ("intents.yaml", "files.intents"),
    ("hooks.yaml", "files.hooks"),
    ("bindings.yaml", "hooks.bindings"),
];

/// Texts that can be used, one for each of [`FILES`].
const SOUND: [&str; 6] = [
    "owner: ann\npersons: [{id: ann, addresses: {telegram: ['1']}}]\n",
    "personas: {atlas: {runner: echo, heartbeat: {every: 30m}}}\n",
    "webhook: {accounts: {demo: {url: 'http://127.0.0.1:9/x', secret: 'env:NEXUS_TEST_SECRET'}}}\n",
    "budget_classes: {small: 1}\nbudgets: {tokens_per_day: 1, firings_per_day: 1}\nkinds: {}\n",
    "allow: {all: ['ls ...']}\nhooks: [{hook: PreToolUse, builtin: audit_log}]\n",
    "bindings: [{persona: atlas}]\n",
];

fn run(name: &str, directory: &Path, words: &[&str], variable: Option<&Path>) -> Output {
    let mut command = Command::new(program().with_file_name(name));
    command.args(words).current_dir(directory).stdin(Stdio::null());
    if let Some(path) = variable {
        command.env("NEXUS_CONFIG", path);
    }
    command.output().expect("the service runs")
}

#[test]
fn a_service_refuses_a_configuration_that_cannot_be_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    let (missing, folder, bytes) = (here.join("none.toml"), here.join("folder"), here.join("bytes.toml"));
    std::fs::create_dir(&folder).expect("made");
    std::fs::write(&bytes, [0xff, 0xfe, 0x00]).expect("written");

    for name in SERVICES {
        for path in [&missing, &folder, &bytes] {
            let text = path.to_str().expect("a path in UTF-8");
            for mode in [None, Some("--check"), Some("--show")] {
                let words: Vec<&str> = mode.into_iter().collect();
                let flagged = run(name, here, &[&["--config", text], words.as_slice()].concat(), None);

                let set = run(name, here, &words, Some(path));
                for ended in [flagged, set] {
                    let said = String::from_utf8_lossy(&ended.stderr);
                    assert_eq!(ended.status.code(), Some(2), "{name} {mode:?} {text}: {said}");
                    assert!(
                        said.contains(text) && said.contains("cannot be read"),
                        "{name} {mode:?}: {said}"
                    );
                    assert!(ended.stdout.is_empty(), "{name} {mode:?} printed something");
                }
            }
        }
    }
}

/// Each service gets a copy of the file, which nobody edits.
#[test]
fn a_fault_is_told_of_the_file_that_was_written_before_anything_starts() {
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    std::fs::write(
        here.join("nexus.toml"),
        "[hooks]\nworkers = \"many\"\n[nats]\nreplicas = 2\n",
    )
    .expect("written");

    let ended = run("nexus", here, &["up", "--data", "data"], None);
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{said}");
    assert!(
        said.contains("\nnexus.toml: hooks.workers: expected a non-negative integer, found string \"many\""),
        "{said}"
    );

    // The section about another server has no effect here, and the key of the cluster is made.
    assert!(
        said.contains("1 faults in nexus.toml") && !said.contains("nats."),
        "{said}"
    );
    let logs = std::fs::read_dir(here.join("data/log"));
    assert!(logs.is_err(), "nothing was started");
}

#[test]
fn a_budget_of_dollars_beside_a_model_without_a_price_is_refused_with_key_and_model() {
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    let write = |name: &str, text: &str| std::fs::write(here.join(name), text).expect("written");
    let own = "[llm]\nprovider = \"openai\"\nmodel = \"m\"\nbase_url = \"http://127.0.0.1:1/v1\"\n";
    write(
        "personas.yaml",
        "personas: {shop: {runner: llm, limits: {cost_usd: 0.25}}}\n",
    );

    write("nexus.toml", &format!("[files]\npersonas = \"personas.yaml\"\n{own}"));
    let keys = [
        ("hook-svc", "hooks.llm_daily_usd_per_hook"),
        ("broker-svc", "personas.shop.limits.cost_usd"),
    ];
    for (name, key) in keys {
        for mode in [None, Some("--check")] {
            let words: Vec<&str> = mode.into_iter().collect();
            let ended = run(name, here, &words, None);
            let said = String::from_utf8_lossy(&ended.stderr);

            assert_eq!(ended.status.code(), Some(2), "{name} {mode:?}: {said}");
            assert!(
                said.contains(key) && said.contains("llm.prices.\"m\""),
                "{name}: {said}"
            );
        }
    }
}

/// Files with faults: the file, its text, the services that read it, and what each line of a fault begins with behind the
/// path.
const FAULTS: [(&str, &str, &[&str], &[&str]); 16] = [
    (
        "identities.yaml",
        "owner: bob\npersons: [{id: ann, adresses: {}}, {id: ann}]\n",
        &["hook-svc", "broker-svc", "scheduler-svc"],
        &["persons[0].adresses: ", "persons[1].id: ", "owner: `bob`"],
    ),
    (
        "identities.yaml",
        "owner: [\n",
        &["hook-svc", "broker-svc", "scheduler-svc"],
        &[""],
    ),
    (
        "personas.yaml",
        "personas: {a: {runner: eco, limits: {wall_ms: 0}}, b: {runer: echo}}\n",
        &["broker-svc"],
        &[
            "personas.a.runner: ",
            "personas.a.limits.wall_ms: ",
            "personas.b.runer: ",
        ],
    ),
    (
        "personas.yaml",
        "personas: {a: {heartbeat: {every: soon, active_hours: morning}}}\n",
        &["scheduler-svc"],
        &["personas.a.heartbeat.every: ", "personas.a.heartbeat.active_hours: "],
    ),
    (
        "personas.yaml",
        "permission_levels: {godlike: {}}\n",
        &["hook-svc"],
        &["permission_levels.godlike: "],
    ),
    (
        "personas.yaml",
        "personas: {a: {hooks: [{name: h, hook: never, builtin: audit_log}]}}\n",
        &["broker-svc"],
        &["personas.a.hooks[0].hook: "],
    ),
    (
        "channels.yaml",
        "webhook: {accounts: {a: {url: 'http://x', secret: 'env:NEXUS_NO_SUCH_ONE'}, b: {url: 'ftp://x', secret: \
         'env:NEXUS_TEST_EMPTY_KEY'}}}\n",
        &["delivery-svc"],
        &[
            "webhook.accounts.a.secret: environment variable NEXUS_NO_SUCH_ONE",
            "webhook.accounts.b.url: ",
            "webhook.accounts.b.secret: ",
        ],
    ),
    (
        "channels.yaml",
        "webhok: {}\nbridges: {nats: {}}\n",
        &["adapter-svc", "delivery-svc"],
        &["webhok: ", "bridges.nats: "],
    ),
    (
        "channels.yaml",
        "telegram: {accounts: {a: {token: 'env:NEXUS_NO_SUCH_ONE', groups: {all: {}}}, b: {token: \
         'env:NEXUS_TEST_EMPTY_KEY', base_url: 'http://example.com'}}}\nbridges: {telegram: {}}\n",
        &["adapter-svc", "delivery-svc"],
        &[
            "telegram.accounts.a.token: environment variable NEXUS_NO_SUCH_ONE",
            "telegram.accounts.b.token: ",
            "telegram.accounts.b.base_url: ",
            "bridges.telegram: ",
        ],
    ),
    (
        "channels.yaml",
        "telegram: {accounts: {a: {token: 'env:NEXUS_NO_SUCH_ONE', groups: {'*': {prompt: ' '}}}}}\n",
        &["adapter-svc", "delivery-svc", "hook-svc"],
        &[
            "telegram.accounts.a.token: environment variable NEXUS_NO_SUCH_ONE",
            "telegram.accounts.a.groups.*.prompt: expected a text of 1 to 4000 characters",
        ],
    ),
    (
        "intents.yaml",
        "budget_classes: {}\nbudgets: {tokens_per_day: 1, firings_per_day: 1}\nkinds: {x: {parameters: {type: 5}, \
         sensitivity: low, budget: b}}\n",
        &["scheduler-svc"],
        &["kinds.x.parameters: ", "kinds.x.budget: "],
    ),
    ("intents.yaml", "# nothing\n", &["scheduler-svc"], &[""]),
    (
        "hooks.yaml",
        "colour: red\nallow: {all: ['sed ...']}\nhooks: [{name: h, hook: never, builtin: audit_log}]\n",
        &["broker-svc"],
        &["colour: ", "allow.all[0]: ", "hooks[0].hook: "],
    ),
    (
        "bindings.yaml",
        "bindings: [{persona: a, mach: {}}, {}, {persona: ''}]\n",
        &["hook-svc"],
        &["bindings[0].mach: ", "bindings[1].persona: ", "bindings[2].persona: "],
    ),
    ("hooks.dir", "", &["hook-svc"], &["hooks.dir: "]),
    ("hooks.bun", "", &["hook-svc"], &["hooks.bun: "]),
];

/// A directory with [`SOUND`] files, a hooks directory, and a `nexus.toml` that names all of them.
fn installation() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a directory");
    let here = directory.path();
    for ((name, _), text) in FILES.iter().zip(SOUND) {
        std::fs::write(here.join(name), text).expect("written");
    }

    std::fs::create_dir(here.join("hooks")).expect("made");
    configure(here, "hooks.dir = \"hooks\"\n");
    directory
}

/// Writes the `nexus.toml` that names every file, with `rest`.
fn configure(here: &Path, rest: &str) {
    let files = FILES.iter().map(|(name, key)| format!("{key} = {name:?}\n"));
    let text: String = files.collect();
    let text = format!("trust.cluster_key = \"env:NEXUS_TEST_KEY\"\n{text}{rest}");
    std::fs::write(here.join("nexus.toml"), text).expect("written");
}

/// The program `name` in `here`, with the secrets that the files name.
fn secretly(name: &str, here: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(program().with_file_name(name));
    command
        .args(words)
        .current_dir(here)
        .stdin(Stdio::null())
        .env("NEXUS_TEST_KEY", "0123456789abcdef".repeat(4))
        .env(
            "NEXUS_TEST_SECRET",
            "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
        )
        .env("NEXUS_TEST_EMPTY_KEY", "whsec_");
    command
}

fn lines(bytes: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect()
}

/// What `nexus config check` complains of in `here`; nothing where it calls the configuration sound.
fn checked(here: &Path) -> Vec<String> {
    let ended = secretly("nexus", here, &["config", "check"]).output().expect("it runs");
    let said = lines(&ended.stderr);
    match ended.status.code() {
        Some(0) => assert!(said.is_empty(), "{said:?}"),
        Some(1) => assert!(!said.is_empty()),
        other => panic!("{other:?}: {said:?}"),
    }
    said
}

#[test]
fn a_check_tells_every_fault_of_every_file_and_a_start_the_same() {
    for (name, text, services, faults) in FAULTS {
        let directory = installation();
        let here = directory.path();
        let source = match name.strip_prefix("hooks.").filter(|key| *key != "yaml") {
            Some(_) => {
                configure(here, &format!("{name} = \"nowhere\"\n"));
                "nowhere"
            }
            None => {
                std::fs::write(here.join(name), text).expect("written");
                name
            }
        };

        let said = checked(here);
        for fault in faults {
            let line = format!("{source}: {fault}");
            assert!(said.iter().any(|said| said.starts_with(&line)), "{line} in {said:?}");
        }
        let about = said.iter().filter(|line| line.starts_with(source));
        assert_eq!(about.count(), faults.len(), "{said:?}");

        // Who reads the file does not start, and says the same; for everybody else it is sound.
        for service in SERVICES {
            let reads = services.contains(&service);
            let check = secretly(service, here, &["--check"]).output().expect("it runs");
            assert_eq!(check.status.success(), !reads, "{service} of {name}: {text}");

            if reads {
                let started = secretly(service, here, &[]).output().expect("it runs");
                assert_eq!(started.status.code(), Some(2), "{service} of {name}: {text}");
                assert_eq!(
                    lines(&started.stderr),
                    lines(&check.stderr),
                    "{service} of {name}: {text}"
                );
                for line in lines(&started.stderr) {
                    let line = line.trim_start_matches(&format!("{service}: "));
                    assert!(said.iter().any(|said| said == line), "{line} in {said:?}");
                }
            }
        }
    }
}

#[test]
fn a_file_that_is_not_there_is_a_fault_and_hides_no_other() {
    let directory = installation();
    let here = directory.path();
    for (name, _) in FILES {
        std::fs::remove_file(here.join(name)).expect("removed");
    }

    let said = checked(here);
    for (name, _) in FILES {
        let line = format!("{name}: cannot be read: ");
        assert_eq!(
            said.iter().filter(|said| said.starts_with(&line)).count(),
            1,
            "{said:?}"
        );
    }

    // Of a file that is no YAML nothing else is known: the other one is read all the same.
    std::fs::write(here.join("personas.yaml"), "personas: [\n").expect("written");
    let hooks = "hooks: [{name: h, hook: never, builtin: audit_log}]\npersonas: {atlas: [{name: i, hook: never, builtin: audit_log}]}\n";
    std::fs::write(here.join("hooks.yaml"), hooks).expect("written");
    let said = checked(here);
    let of_hooks: Vec<&String> = said.iter().filter(|line| line.starts_with("hooks.yaml: ")).collect();
    assert_eq!(of_hooks.len(), 2, "{said:?}");
    assert!(
        of_hooks[0].contains("hooks[0].hook: ") && of_hooks[1].contains("personas.atlas[0].hook: "),
        "{of_hooks:?}"
    );
}

#[tokio::test]
async fn what_is_checked_as_sound_starts() {
    let directory = installation();
    let here = directory.path();
    // Nobody listens there, and the terminal says so.
    let bot = "telegram: {accounts: {main: {token: 'file:token', base_url: 'http://127.0.0.1:9', allow: [1]}}}\n";
    std::fs::write(here.join("token"), "77:secret").expect("written");
    std::fs::write(here.join("channels.yaml"), [SOUND[2], bot].concat()).expect("written");
    assert_eq!(checked(here), Vec::<String>::new());

    let ports = [0; 2].map(|_: u8| free_port().expect("a port").to_string());
    let out = std::fs::File::create(here.join("out")).expect("a file");
    let mut up = secretly(
        "nexus",
        here,
        &["up", "--nats-port", &ports[0], "--http-port", &ports[1]],
    );
    let copy = out.try_clone().expect("a file");
    let mut up = up.stdout(out).stderr(copy).spawn().expect("it runs");

    let said = || std::fs::read_to_string(here.join("out")).unwrap_or_default();
    eventually("nexus up", PATIENCE, async || {
        assert!(up.try_wait().expect("its state").is_none(), "it ended: {}", said());
        let is_told = said().contains("nexus tail") && said().contains("\ntelegram/main: failing for ");
        if is_told { Ok(()) } else { Err(said()) }
    })
    .await;

    send(Signal::TERM, &ProcessName::find(up.id()).expect("it runs"));
    let ended = tokio::task::spawn_blocking(move || up.wait()).await.expect("it ends");
    assert_eq!(ended.expect("it ran").code(), Some(0), "{}", said());
}
