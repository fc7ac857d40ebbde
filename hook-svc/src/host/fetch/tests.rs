use shared::model::event::EventId;
use shared::model::time::UnixMillis;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::runner::NoHost;

/// Starts a server that gives each connection the next of `answers`. Returns its port, and the requests it received.
async fn server(answers: Vec<String>) -> (u16, tokio::sync::mpsc::Receiver<String>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (asked, questions) = tokio::sync::mpsc::channel(16);

    tokio::spawn(async move {
        for answer in answers {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut question = vec![0; 4096];
            let length = stream.read(&mut question).await.expect("a question");
            question.truncate(length);
            asked
                .send(String::from_utf8_lossy(&question).into_owned())
                .await
                .expect("somebody listens");

            // A client that has read enough closes the connection.
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });

    (port, questions)
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n{headers}\r\n{body}",
        body.len()
    )
}

/// Returns a hook of `author` that asks for `net`.
fn hook(author: &str, net: &[&str]) -> HookSource {
    HookSource {
        id: "h".to_owned(),
        name: "h".to_owned(),
        source: String::new(),
        content_hash: String::new(),
        timeout_ms: 30_000,
        created_at: UnixMillis(0),
        created_by: author.to_owned(),
        sees: crate::runner::HookScope::Everything,
        net: net.iter().map(|&server| server.to_owned()).collect(),
    }
}

/// Returns the result of a fetch by `hook`, to which `granted` is granted.
async fn ask(granted: &[&str], hook: HookSource, args: Value) -> Result<Value, CallError> {
    let granted = granted.iter().map(|&server| server.to_owned()).collect();
    let grants = BTreeMap::from([("h".to_owned(), granted)]);
    let host = FetchHost::new(&grants, Arc::new(NoHost)).expect("servers");

    let call = HostCall {
        event_id: EventId::parse("web:1").expect("valid"),
        event_json: bytes::Bytes::new(),
        sequence: 0,
        now: UnixMillis(0),
        hook: Arc::new(hook),
        number: 0,
        name: "fetch".to_owned(),
        args,
    };

    host.call(call).await.outcome
}

async fn refused(granted: &[&str], hook: HookSource, args: Value) -> &'static str {
    ask(granted, hook, args).await.expect_err("it is refused").code
}

#[tokio::test]
async fn what_is_asked_for_and_granted_is_fetched() {
    let said = answer("201 Created", "x-one: 1\r\nx-one: 2\r\n", "{\"ok\":true}");
    let (port, mut questions) = server(vec![said]).await;
    let origin = format!("http://127.0.0.1:{port}");
    let args =
        json!({"url": format!("{origin}/v1/things?q=1"), "method": "POST", "headers": {"X-Key": "k"}, "body": "what"});
    let told = ask(&[&origin], hook(OPERATOR, &[&origin]), args)
        .await
        .expect("an answer");

    assert_eq!((&told["status"], &told["body"]), (&json!(201), &json!("{\"ok\":true}")));
    assert_eq!(told["headers"]["x-one"], "1, 2");

    let asked = questions.recv().await.expect("it was asked");
    assert!(asked.starts_with("POST /v1/things?q=1 HTTP/1.1\r\n"), "{asked}");
    assert!(
        asked.contains("x-key: k\r\n") && asked.ends_with("\r\n\r\nwhat"),
        "{asked}"
    );
}

#[tokio::test]
async fn all_three_have_to_agree() {
    // No server listens there: an admitted request differs by its error.
    let there = "http://127.0.0.1:1";
    let url = json!({"url": "http://127.0.0.1:1/"});
    let operators = || hook(OPERATOR, &[there]);

    assert_eq!(refused(&[there], operators(), url.clone()).await, "unreachable");
    assert_eq!(
        refused(&[there], hook(OPERATOR, &[]), url.clone()).await,
        "not_requested"
    );
    assert_eq!(refused(&[], operators(), url.clone()).await, "not_granted");
    assert_eq!(
        refused(&[there], hook("agent:atlas", &[there]), url).await,
        "not_granted"
    );

    for other in [
        "https://127.0.0.1:1/",
        "http://127.0.0.1:2/",
        "http://localhost:1/",
        "http://127.0.0.2:1/",
        "http://[::ffff:127.0.0.1]:1/",
    ] {
        let code = refused(&[there], operators(), json!({ "url": other })).await;
        assert_eq!(code, "not_requested", "{other}");
    }
}

#[tokio::test]
async fn a_name_leads_to_the_internet_only() {
    let there = "http://localhost:1";
    let code = refused(
        &[there],
        hook(OPERATOR, &[there]),
        json!({"url": "http://localhost:1/"}),
    )
    .await;
    assert_eq!(code, "forbidden_address");
}

#[tokio::test]
async fn a_redirect_is_told_and_not_followed() {
    let (port, _questions) = server(vec![answer("302 Found", "location: http://127.0.0.1:1/secret\r\n", "")]).await;
    let origin = format!("http://127.0.0.1:{port}");
    let told = ask(&[&origin], hook(OPERATOR, &[&origin]), json!({"url": origin}))
        .await
        .expect("an answer");
    assert_eq!(told["status"], 302);
    assert_eq!(told["headers"]["location"], "http://127.0.0.1:1/secret");
}

#[tokio::test]
async fn what_is_too_large_too_late_or_no_text_is_an_error() {
    let large = answer("200 OK", "", &"x".repeat(MAX_BODY_BYTES + 1));
    let (port, _questions) = server(vec![large]).await;
    let origin = format!("http://127.0.0.1:{port}");
    let asks = || hook(OPERATOR, &[&origin]);

    assert_eq!(refused(&[&origin], asks(), json!({"url": origin})).await, "too_large");

    // The server accepts no further connection, so this request gets no response.
    let silent = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let origin = format!("http://127.0.0.1:{}", silent.local_addr().expect("an address").port());
    let asks = hook(OPERATOR, &[&origin]);
    let args = json!({"url": origin, "timeout": 50});

    assert_eq!(refused(&[&origin], asks, args).await, "timed_out");
}

#[test]
fn a_script_names_the_time_of_a_fetch_up_to_a_minute_and_its_own() {
    for (wanted, hook_ms, expected_ms) in [
        (None, 300_000, 10_000),
        (None, 5_000, 5_000),
        (Some(50_000.0), 300_000, 50_000),
        (Some(60_001.0), 300_000, 60_000),
        (Some(50_000.0), 20_000, 20_000),
        (Some(50.0), 300_000, 50),
        (Some(0.0), 300_000, 10_000),
        (Some(-1.0), 300_000, 10_000),
        (Some(f64::NAN), 300_000, 10_000),
    ] {
        assert_eq!(
            time_limit(wanted, hook_ms).as_millis(),
            expected_ms,
            "{wanted:?} {hook_ms}"
        );
    }
}

#[tokio::test]
async fn what_cannot_be_sent_is_refused() {
    let there = "http://127.0.0.1:1";
    for args in [
        json!({}),
        json!({"url": "nowhere"}),
        json!({"url": "file:///etc/passwd"}),
        json!({"url": "http://me:secret@127.0.0.1:1/"}),
        json!({"url": there, "method": "CONNECT"}),
        json!({"url": there, "headers": {"host": "other"}}),
        json!({"url": there, "headers": {"x": "a\r\nhost: other"}}),
        json!({"url": there, "redirect": "follow"}),
    ] {
        let code = refused(&[there], hook(OPERATOR, &[there]), args.clone()).await;
        assert_eq!(code, "bad_arguments", "{args}");
    }
}
