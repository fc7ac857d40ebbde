//! What a newcomer types: `nexus demo`, `init`, `config check`, `up`, `send`, `trace`, `topology plan`, `down`.

use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use shared::clock::{Clock as _, SystemClock};
use shared::process::free_port;
use tests::command::{PATIENCE, nexus, start};
use tests::eventually::eventually;
use tokio::process::Child;

/// How long the demo may take where nothing is left to build or to fetch.
const WARM: Duration = Duration::from_secs(60);

fn directory() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("nexus-test-")
        .tempdir()
        .expect("a temporary directory")
}

async fn ends(child: &mut Child) -> ExitStatus {
    tokio::time::timeout(PATIENCE, child.wait())
        .await
        .expect("it ends")
        .expect("it ran")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_shows_both_chains_and_the_signed_request() {
    let directory = directory();
    let begun = SystemClock.monotonic();
    let said = nexus(directory.path(), &["demo"]).await;
    let took = SystemClock.monotonic().saturating_duration_since(begun);

    assert_eq!(said.code, Some(0), "{}\n{}", said.out, said.err);

    println!("the demo took {} ms with everything built", took.as_millis());
    assert!(took < WARM, "{took:?}\n{}", said.out);

    let words = [
        "a signed GitHub webhook",
        "a chat message",
        "POST /inbound",
        "webhook-signature: v1,",
        "webhook-id: ",
        "webhook-timestamp: ",
        "echo: hello, Nexus",
    ];

    for word in words {
        assert!(said.out.contains(word), "`{word}` in\n{}", said.out);
    }

    for stage in ["event", "hook", "dispatch", "turn", "delivery", "complete"] {
        let shown = said.out.matches(&format!(" {stage} ")).count() + said.out.matches(&format!("\n{stage}\n")).count();
        assert!(shown >= 2, "`{stage}` for both chains in\n{}", said.out);
    }
}

/// The answer of `nexus up`, once it says where it is.
async fn came_up(directory: &Path, up: &mut Child) -> String {
    eventually("nexus up", PATIENCE, async || {
        let text = std::fs::read_to_string(directory.join("up.out")).unwrap_or_default();
        assert!(up.try_wait().expect("its state").is_none(), "nexus up ended: {text}");

        if text.contains("nexus tail") {
            Ok(text)
        } else {
            Err(text)
        }
    })
    .await
}

/// Writes a configuration, which is sound, and is not written over.
async fn configures(here: &Path) {
    let run = async |arguments: &[&str], code: i32| {
        let said = nexus(here, arguments).await;
        assert_eq!(said.code, Some(code), "nexus {arguments:?}: {}{}", said.out, said.err);
        format!("{}{}", said.out, said.err)
    };
    run(&["init"], 0).await;
    run(&["config", "check"], 0).await;

    assert!(
        run(&["init"], 5).await.contains("--force"),
        "a second init writes over nothing"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newcomer_writes_a_configuration_runs_it_and_stops_it() {
    let directory = directory();
    let here = directory.path();
    configures(here).await;

    // In a directory of its own, so that no configuration file but its own is found.
    let run_dir = here.join("run-here");
    std::fs::create_dir(&run_dir).expect("a directory");
    let here = run_dir.as_path();
    let ports = [
        free_port().expect("a port").to_string(),
        free_port().expect("a port").to_string(),
    ];

    let data = ["--data", "X"];
    let mut up = start(
        here,
        "up",
        &[
            "up",
            data[0],
            data[1],
            "--nats-port",
            &ports[0],
            "--http-port",
            &ports[1],
        ],
    );

    let greeting = came_up(here, &mut up).await;
    assert!(greeting.contains(&format!(":{}", ports[1])), "{greeting}");

    let config = here.join("X/nexus.toml");
    let config = config.to_str().expect("a path in UTF-8");
    let ask = async |arguments: &[&str]| {
        let said = nexus(here, &[&["--config", config], arguments].concat()).await;
        assert_eq!(said.code, Some(0), "nexus {arguments:?}: {}{}", said.out, said.err);
        said.out
    };

    ask(&["topology", "plan"]).await;
    ask(&["send", "hello", "--id", "story"]).await;
    let trace = ask(&["trace", "local:story", "--wait", "60"]).await;

    assert!(
        trace.ends_with("complete\n") && !trace.contains("not complete"),
        "{trace}"
    );

    ask(&["config", "check"]).await;
    let second = nexus(here, &["up", data[0], data[1], "--nats-port", &ports[0]]).await;
    assert!(
        second.code == Some(5) && second.err.contains("is in use by a running `nexus up`"),
        "{second:?}"
    );

    // Side by side: whoever started `nexus up` is who takes note of its end.
    let stop = ["down", data[0], data[1]];
    let (down, ended) = tokio::join!(nexus(here, &stop), ends(&mut up));
    assert_eq!(down.code, Some(0), "{down:?}");
    assert!(ended.success(), "nexus up ends in good order");
}
