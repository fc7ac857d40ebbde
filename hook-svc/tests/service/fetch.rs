//! `ctx.fetch()`: what a script may have of the network, from inside the sandbox.

use serde_json::json;
use shared::model::invocation::HookOutcome;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::world::{World, event, of};

const FETCHES: &str = "/** @allow net=SERVER */
export default async ({ event, fetch }) => {
  const told = await fetch('SERVER/status', { headers: { 'x-event': event.id } }).catch((error) => error);
  const extracted = told.code === undefined ? { ok: told.ok, state: (await told.json()).state } : { code: told.code };
  return { fire: true, context: { extracted } };
};
";

/// A server that says `down` to whoever asks; where it is.
async fn server() -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut question = [0; 4096];
            let length = stream.read(&mut question).await.expect("a question");
            let question = String::from_utf8_lossy(&question[..length]);

            assert!(
                question.starts_with("GET /status ") && question.contains("x-event: webchat:"),
                "{question}"
            );

            let body = "{\"state\":\"down\"}";
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n";
            let answer = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
            stream.write_all(answer.as_bytes()).await.expect("answered");
        }
    });

    format!("http://127.0.0.1:{port}")
}

#[tokio::test(flavor = "multi_thread")]
async fn hooks_fetch_what_an_operator_grants_them() {
    let server = server().await;
    let (asks, asks_not) = (
        FETCHES.replace("SERVER", &server),
        FETCHES.replace("@allow net=SERVER", ""),
    );

    let asks_not = asks_not.replace("SERVER", &server);
    let mut world = World::new(&[
        ("work/granted.ts", asks.as_str()),
        ("other.ts", asks.as_str()),
        ("silent.ts", asks_not.as_str()),
    ])
    .await;

    world.sections = format!("[hooks.grants]\n\"work/granted\" = [\"{server}\"]\nsilent = [\"{server}\"]\n");
    world.start("a");
    world.wait_for_members(1).await;
    let asked = event("v1", 1, "is it up?");
    world.publish(&asked).await;

    let record = world.record(&asked).await;
    for (hook, expected) in [
        ("work/granted", json!({"ok": true, "state": "down"})),
        ("other", json!({"code": "not_granted"})),
        ("silent", json!({"code": "not_requested"})),
    ] {
        let HookOutcome::Fired { result, .. } = &of(&record, hook).outcome else {
            panic!("{hook}: {record:?}");
        };
        let extracted = result.context.as_ref().and_then(|context| context.extracted.clone());
        assert_eq!(extracted.map(serde_json::Value::Object), Some(expected), "{hook}");
    }
}
