//! `ctx.readFile()`: hooks read the files of their own event, and send them on.

use std::sync::Arc;

use bytes::Bytes;
use hook_svc::host::fetch::FetchHost;
use hook_svc::host::files::FileHost;
use hook_svc::runner::{NoHost, ScriptHost};
use serde_json::{Value, json};
use shared::attachments::AttachmentStore;
use shared::clock::SystemClock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::pool::{TestPool, dm, timed};

/// A file with every byte.
fn every_byte() -> Vec<u8> {
    (0..=255).cycle().take(100_000).collect()
}

fn stored(hash: &str, size: usize) -> Value {
    json!({"media_type": "audio", "state": "stored", "content_hash": hash, "size_bytes": size})
}

/// An event with a stored file, one that is not, one that is kept no longer, and one that is too large.
fn event(hash: &str, size: usize) -> Value {
    let mut event = dm("telegram:main/5/1", "");
    event["attachments"] = json!([
        stored(hash, size),
        {"media_type": "audio", "content_hash": hash, "handle": "h"},
        stored(&"0".repeat(64), 5),
        stored(hash, 8 * 1024 * 1024 + 1),
    ]);
    event
}

/// Answers one request `hello`, and returns its body of `length` bytes.
async fn receive(listener: TcpListener, length: usize) -> Vec<u8> {
    let (mut stream, _) = listener.accept().await.expect("a connection");
    let mut request = Vec::new();
    let body = loop {
        let mut chunk = vec![0; 65_536];
        let count = stream.read(&mut chunk).await.expect("bytes");
        request.extend_from_slice(&chunk[..count]);
        let head = request.windows(4).position(|part| part == b"\r\n\r\n");
        if let Some(head) = head.filter(|head| request.len() >= head + 4 + length) {
            break request.split_off(head + 4);
        }
        assert!(count > 0, "the request ended early");
    };
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello";
    stream.write_all(answer).await.expect("written");
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_reads_the_files_of_its_event_and_sends_them_on() {
    let (_server, bus) = shared::testing::world().await;
    let store = AttachmentStore::new(&bus, Arc::new(SystemClock));
    let bytes = every_byte();
    let hash = store.store(Bytes::from(bytes.clone())).await.expect("stored");

    // The server to which the hook sends the file, as one does that writes down what is spoken.
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
    let origin = format!("http://{}", listener.local_addr().expect("an address"));
    let length = bytes.len();
    let received = tokio::spawn(receive(listener, length));

    let source = format!(
        "// @allow net={origin}\nexport default async (ctx) => {{\n\
           const file = await ctx.readFile(0);\n\
           const sum = file.reduce((sum: number, byte: number) => sum + byte, 0);\n\
           const answer = await ctx.fetch('{origin}/transcribe', {{ method: 'POST', body: file }});\n\
           return {{ fire: true, context: {{ extracted: {{ size: file.length, sum, text: await answer.text(),\n\
             is: file instanceof Uint8Array }} }} }};\n}};"
    );
    let refused = "export default async (ctx) => ({ fire: true, context: { extracted: { codes: await Promise.all(\
        [1, 2, 3, 9, -1, 'x'].map((index: any) => ctx.readFile(index).then(() => 'read', (e: any) => e.code))) } } });";

    let greedy = "export default async (ctx) => { for (let n = 0; n < 9; n++) await ctx.readFile(0); };";

    let mut sends = timed("sends", 30_000, &source);
    sends.net = vec![origin.clone()];
    let grants = [("sends".to_owned(), vec![origin])].into();
    let fetch = FetchHost::new(&grants, Arc::new(NoHost)).expect("grants");
    let host: Arc<dyn ScriptHost> = Arc::new(FileHost::new(store, Arc::new(fetch)));
    let pool = TestPool::start_on(
        vec![
            sends,
            timed("refused", 30_000, refused),
            timed("greedy", 30_000, greedy),
        ],
        1,
        host,
    )
    .await;

    let answer = pool.evaluate(event(&hash, length)).await;
    let extracted = |hook: &str| {
        answer
            .fired(hook)
            .context
            .and_then(|context| context.extracted)
            .expect("extracted")
    };
    let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
    let sends = extracted("sends");
    assert_eq!((&sends["size"], &sends["sum"]), (&json!(length), &json!(sum)));
    assert_eq!((&sends["text"], &sends["is"]), (&json!("hello"), &json!(true)));
    assert_eq!(received.await.expect("it was sent"), bytes);

    let codes = json!([
        "not_stored",
        "not_stored",
        "too_large",
        "bad_arguments",
        "bad_arguments",
        "bad_arguments"
    ]);
    assert_eq!(extracted("refused")["codes"], codes);
    assert!(answer.error("greedy").contains("among the first 8 calls"), "{answer:?}");
    pool.stop().await;
}
