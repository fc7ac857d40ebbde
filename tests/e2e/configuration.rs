//! A service whose configuration cannot be read does not start, whatever it was asked to do.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use cli::launch::SERVICES;
use tests::command::program;

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
