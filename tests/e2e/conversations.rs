//! A person at a real browser has one conversation, begins a new one, and goes back and forth between them.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use shared::testing::ModelServer;
use shared::testing::model_server::{RecordedRequest, ScriptedAnswer, ScriptedCall};
use tests::driver::Browser;
use tests::eventually::eventually;
use tests::page;
use tests::world::{Setup, World};
use tokio_tungstenite::tungstenite::Message;

use crate::browser::{ASKS_WHO_BEGAN, MARKDOWN, decided, pictures, stands};
use crate::story::PATIENCE;

/// The keys Escape, Tab, Enter and the arrow down, as WebDriver writes them.
const ESCAPE: &str = "\u{E00C}";
const TAB: &str = "\u{E004}";
const ENTER: &str = "\u{E007}";
const DOWN: &str = "\u{E015}";
const UP: &str = "\u{E013}";

/// Answers who chats, in the session of the conversation, and lets the agent do everything.
const CHAT: &str = r#"/** @name chat */
export default (ctx) => {
  const e = ctx.event;
  if (e.channel !== "webchat" || e.direction !== "received") return { fire: false };
  return { fire: true, permissions: { level: "full" } };
};
"#;

/// A model that knows Markdown, pays once it is told to, and says back everything else.
fn says(request: &RecordedRequest) -> ScriptedAnswer {
    match request.last_user_text() {
        asked if asked.contains("this week") => ScriptedAnswer::text(MARKDOWN),
        asked if asked.contains("pay") && request.tool_results().is_empty() => {
            ScriptedAnswer::calls([ScriptedCall::new("c1", "list_hooks", &json!({"status": "active"}))])
        }
        asked if asked.contains("pay") => ScriptedAnswer::text("The bill is paid."),
        asked => ScriptedAnswer::text(&format!("heard: {asked}")),
    }
}

async fn say(browser: &Browser, text: &str) {
    browser
        .write("#message", &format!("{text}{ENTER}"))
        .await
        .expect("the field takes it");
}

/// Waits until `selector` finds exactly the texts `expected`.
async fn reads(browser: &Browser, world: &World, selector: &str, expected: &[&str]) {
    eventually(selector, PATIENCE, async || match browser.texts(selector).await? {
        found if found == expected => Ok(()),
        found => Err(format!("{found:?}\n{}", world.logs())),
    })
    .await;
}

/// Waits until the focus is on what `selector` finds.
async fn has_focus(browser: &Browser, selector: &str) {
    let script = format!("return document.activeElement?.matches({selector:?}) ?? false");
    eventually(&format!("the focus is on {selector}"), PATIENCE, async || {
        let is_there = browser.run(&script).await? == json!(true);
        let focused = browser.run("return document.activeElement.outerHTML").await;
        is_there.then_some(()).ok_or_else(|| format!("{focused:?}"))
    })
    .await;
}

/// Asserts that nothing is wider than the page.
async fn fits(browser: &Browser) {
    let script = "const { scrollWidth, clientWidth } = document.documentElement; return [scrollWidth, clientWidth]";
    let sizes = browser.run(script).await.expect("the sizes");
    assert_eq!(sizes[0], sizes[1], "the page scrolls sideways");
}

/// A world whose model is served at `port`, and whose page stays at one address.
async fn world(base_url: &str, listen: u16) -> World {
    World::start(Setup {
        hooks: vec![("chat.ts", CHAT.to_owned())],
        personas: ASKS_WHO_BEGAN.to_owned(),
        adapter: format!(
            "[llm]\nprovider = \"openai\"\nmodel = \"any\"\nprices.any = {{ input = 0, output = 0 }}\nbase_url = {base_url:?}\n"
        ),
        environment: vec![("NEXUS__ADAPTER__LISTEN".to_owned(), format!("127.0.0.1:{listen}"))],
        ..Setup::default()
    })
    .await
}

/// What the server sends a page of another visitor that opens `thread`.
async fn seen_by_a_stranger(world: &World, thread: &str) -> Value {
    let mut stranger = page::open(&world.gateway()).await;
    let open = json!({ "type": "open", "thread": thread }).to_string();
    stranger.send(Message::text(open)).await.expect("it is said");

    let answer = async {
        loop {
            let frame = stranger.next().await.expect("the page is open").expect("a frame");
            let Message::Text(text) = frame else { continue };
            let word: Value = serde_json::from_str(&text).expect("JSON");
            if word["type"] == "history" && word["thread"] == thread {
                return word["items"].clone();
            }
        }
    };
    tokio::time::timeout(PATIENCE + Duration::from_secs(1), answer)
        .await
        .expect("an answer in time")
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "a story or a table is read from top to bottom")]
async fn a_person_begins_a_new_conversation_and_comes_back_to_the_first() {
    let Some(browser) = Browser::open().await else {
        println!("SKIPPED: no chromedriver with Chromium on the PATH (Debian: chromium, chromium-driver)");
        return;
    };

    let first = ModelServer::scripted([]).await;
    let (port, base) = (first.port(), first.base_url("openai"));
    drop(first);
    let listen = shared::process::free_port().expect("a free port");
    let mut world = world(&base, listen).await;
    browser.resize(1280, 800).await.expect("a size");
    browser
        .go(&format!("{}/", world.gateway()))
        .await
        .expect("the page opens");
    stands(&browser, &world, "#empty:not([hidden])", true).await;
    has_focus(&browser, "#message").await;
    pictures(&browser, "chat-1-empty").await;

    // The model is away, and back: Markdown.
    say(&browser, "What is up this week?").await;
    stands(&browser, &world, "#away:not([hidden])", true).await;
    pictures(&browser, "chat-2-away").await;
    let model = ModelServer::ruled_at(port, |request, _| says(request)).await;
    stands(&browser, &world, "#log li.received:not(.partial) table", true).await;
    stands(&browser, &world, "#away:not([hidden]), #thinking:not([hidden])", false).await;
    fits(&browser).await;
    pictures(&browser, "chat-3-markdown").await;

    // An approval.
    say(&browser, "Then pay the bill").await;
    stands(&browser, &world, "#log .buttons button:enabled", true).await;
    pictures(&browser, "chat-4-approval").await;
    browser.click("#log .buttons button.approve").await.expect("the button");
    decided(&browser, &world).await;
    stands(&browser, &world, "#thinking:not([hidden])", false).await;
    pictures(&browser, "chat-5-decided").await;

    let sent = ["What is up this week?", "Then pay the bill", "Approve"];
    reads(&browser, &world, "#log li.sent .plain", &sent).await;
    reads(&browser, &world, "#conversations .title", &[sent[0]]).await;

    // A new conversation: the model is told nothing of the first one.
    browser.click("#new").await.expect("the button");
    has_focus(&browser, "#message").await;
    reads(&browser, &world, "#log li", &[]).await;
    reads(&browser, &world, "#heading", &["New conversation"]).await;
    say(&browser, "Who am I?").await;
    reads(
        &browser,
        &world,
        "#log li.received .markdown > p",
        &["heard: Who am I?"],
    )
    .await;
    reads(&browser, &world, "#conversations .title", &["Who am I?", sent[0]]).await;
    fits(&browser).await;
    pictures(&browser, "chat-6-new").await;

    let asked = |text: &str| {
        let requests = model.requests().into_iter();
        let found: Vec<String> = requests
            .filter(|request| request.last_user_text().contains(text))
            .map(|request| request.body.to_string())
            .collect();
        assert!(!found.is_empty(), "the model was asked: {text}");
        found
    };
    let new = asked("Who am I?");
    assert!(new.iter().all(|body| !body.contains("this week")), "{new:?}");

    // Killed while somebody writes, and opened again: every line is in its conversation.
    world.stack.service("adapter-svc", 0).expect("it runs").kill();
    stands(&browser, &world, "#status[data-state=closed]", true).await;
    say(&browser, "Are you there?").await;
    reads(&browser, &world, "#log li.waiting .plain", &["Are you there?"]).await;
    browser
        .click("#conversations li:last-child button")
        .await
        .expect("the first");
    reads(&browser, &world, "#log li.sent .plain", &sent).await;
    world.stack.launch("adapter-svc", 0).expect("it starts");
    world.stack.ready().await.expect("it runs");
    stands(&browser, &world, "#conversations .unread", true).await;
    reads(&browser, &world, "#log li.sent .plain", &sent).await;
    pictures(&browser, "chat-7-unread").await;

    browser
        .go(&format!("{}/", world.gateway()))
        .await
        .expect("the page opens again");
    reads(&browser, &world, "#log li.sent .plain", &sent).await;
    decided(&browser, &world).await;
    reads(&browser, &world, "#conversations .title", &["Who am I?", sent[0]]).await;

    // With the keyboard alone, to the other one and back.
    browser
        .run("document.querySelector('#new').focus()")
        .await
        .expect("the focus");
    browser.press(TAB).await.expect("a key");
    has_focus(&browser, ".conversation[aria-current]").await;
    browser.press(UP).await.expect("a key");
    has_focus(&browser, "#conversations li:first-child .conversation").await;
    browser.press(ENTER).await.expect("a key");
    has_focus(&browser, "#message").await;
    let later = ["Who am I?", "Are you there?"];
    reads(&browser, &world, "#log li.sent .plain", &later).await;
    reads(
        &browser,
        &world,
        "#log li.received .markdown > p",
        &["heard: Who am I?", "heard: Are you there?"],
    )
    .await;
    stands(&browser, &world, "#conversations .unread", false).await;

    let thread = browser
        .run("return sessionStorage.getItem('nexus.thread')")
        .await
        .expect("it");
    let thread = thread.as_str().expect("a thread").to_owned();
    assert_eq!(seen_by_a_stranger(&world, &thread).await, json!([]));

    // The first one goes on where it was.
    browser
        .click("#conversations li:last-child button")
        .await
        .expect("the first");
    say(&browser, "And what did I ask?").await;
    stands(&browser, &world, "#thinking:not([hidden])", false).await;
    reads(
        &browser,
        &world,
        "#log > ol > li:last-child .markdown p",
        &["heard: And what did I ask?"],
    )
    .await;
    let gone_on = asked("And what did I ask?");
    assert!(
        gone_on
            .iter()
            .all(|body| body.contains("this week") && !body.contains("Who am I?")),
        "{gone_on:?}"
    );

    on_a_phone(&browser, &world).await;
    browser.close().await;
    world.stack.stop().await;
}

/// The list is a drawer there, which Escape closes, and which gives the focus back.
async fn on_a_phone(browser: &Browser, world: &World) {
    browser.resize(390, 844).await.expect("a size");
    let shown = "return [...document.querySelectorAll('#sidebar, #toggle, #new-short')].map(e => e.checkVisibility())";
    assert_eq!(browser.run(shown).await.expect("it"), json!([false, true, true]));
    fits(browser).await;

    browser.click("#toggle").await.expect("the button");
    has_focus(browser, ".conversation[aria-current]").await;
    fits(browser).await;
    browser
        .picture("chat-8-drawer-phone", 390, 844)
        .await
        .expect("a picture");
    browser.darken(true).await.expect("a scheme");
    browser
        .picture("chat-9-dark-drawer-phone", 390, 844)
        .await
        .expect("a picture");

    browser.press(ESCAPE).await.expect("a key");
    has_focus(browser, "#toggle").await;
    assert_eq!(browser.run(shown).await.expect("it"), json!([false, true, true]));
    pictures(browser, "chat-9-dark").await;
    browser.darken(false).await.expect("a scheme");
    browser.resize(390, 844).await.expect("a size");

    browser.click("#toggle").await.expect("the button");
    browser.press(DOWN).await.expect("a key");
    browser.press(ENTER).await.expect("a key");
    reads(browser, world, "#log li.sent .plain", &["Who am I?", "Are you there?"]).await;
    has_focus(browser, "#log").await;

    browser.click("#new-short").await.expect("the button");
    has_focus(browser, "#message").await;
    reads(browser, world, "#log li", &[]).await;
}
