//! A person at a real browser: types, is answered, and finds the conversation again after a reload.

use serde_json::json;
use shared::testing::ModelServer;
use shared::testing::model_server::ScriptedAnswer;
use tests::driver::Browser;
use tests::eventually::eventually;
use tests::world::{Setup, World, shipped_hook};

use crate::approval::pays;
use crate::story::PATIENCE;

/// Waits until the page shows exactly `sent` and `received`.
async fn shows(browser: &Browser, world: &World, sent: &[&str], received: &[&str]) {
    eventually("the page shows the conversation", PATIENCE, async || {
        let mine = browser.texts("#log li.sent:not(.waiting)").await?;
        let theirs = browser.texts("#log li.received").await?;
        if mine == sent && theirs == received {
            Ok(())
        } else {
            Err(format!("{mine:?} {theirs:?}\n{}", world.logs()))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_chats_on_the_page_and_a_reload_keeps_the_conversation() {
    let Some(browser) = Browser::open().await else {
        println!("SKIPPED: no chromedriver with Chromium on the PATH (Debian: chromium, chromium-driver)");
        return;
    };

    let hooks = vec![("default-dm-routing.ts", shipped_hook("default-dm-routing.ts"))];
    let world = World::start(Setup {
        hooks,
        ..Setup::default()
    })
    .await;

    let page = format!("{}/", world.gateway());
    browser.go(&page).await.expect("the page opens");
    let say = async |text: &str| {
        browser.write("#message", text).await.expect("the field takes it");
        browser.click("#send").await.expect("the button is there");
    };

    say("hello from a browser").await;
    shows(
        &browser,
        &world,
        &["hello from a browser"],
        &["echo: hello from a browser"],
    )
    .await;

    say("<b>not bold</b>").await;
    let sent = ["hello from a browser", "<b>not bold</b>"];
    let received = ["echo: hello from a browser", "echo: <b>not bold</b>"];
    shows(&browser, &world, &sent, &received).await;
    browser.go(&page).await.expect("the page opens again");
    shows(&browser, &world, &sent, &received).await;
    reads_further_back(&browser, &world, &page).await;
    browser.close().await;
    world.stack.stop().await;
}

/// Of a long conversation the page shows the end first, and the rest on demand.
async fn reads_further_back(browser: &Browser, world: &World, page: &str) {
    let lines = async |count: usize| {
        eventually("the page shows the lines", PATIENCE, async || {
            let found = browser.texts("#log > ol > li:not(.day):not(.waiting)").await?;
            let said = || format!("{} of {count}: {:?}\n{}", found.len(), found.first(), world.logs());
            (found.len() == count).then_some(()).ok_or_else(said)
        })
        .await;
    };

    // A few at a time: behind a running turn at most 20 messages wait.
    for round in 1..=5 {
        let many = "for (let n = 0; n < 10; n++) { const field = document.querySelector('#message'); \
                    field.value = `message ${n}`; field.form.requestSubmit(); }";
        browser.run(many).await.expect("they are sent");
        lines(4 + 20 * round).await;
    }

    browser.go(page).await.expect("the page opens again");
    stands(browser, world, "#earlier:not([hidden])", true).await;
    lines(100).await;
    browser.click("#earlier").await.expect("the button");
    lines(104).await;
    stands(browser, world, "#earlier:not([hidden])", false).await;

    let oldest = browser.texts("#log > ol > li .plain").await.expect("the lines");
    assert_eq!(oldest.first().map(String::as_str), Some("hello from a browser"));
}

/// Takes pictures of the page on a desktop and on a phone.
pub(crate) async fn pictures(browser: &Browser, name: &str) {
    for (screen, width, height) in [("phone", 390, 844), ("desktop", 1280, 800)] {
        let shot = browser.picture(&format!("{name}-{screen}"), width, height).await;
        shot.expect("a picture");
    }
}

/// Waits until the card says that it was approved, and can be decided no more.
pub(crate) async fn decided(browser: &Browser, world: &World) {
    eventually("the card says what was decided", PATIENCE, async || {
        let outcome = browser.texts(".card[data-decided] .outcome").await?;
        let able = browser.texts("#log .buttons button:enabled").await?;
        let said = outcome.len() == 1 && outcome[0].starts_with("Approved") && able.is_empty();
        said.then_some(())
            .ok_or_else(|| format!("{outcome:?} {able:?}\n{}", world.logs()))
    })
    .await;
}

/// What a model says that knows Markdown, and a stranger's HTML.
pub(crate) const MARKDOWN: &str = "## Your week\n\nHere is what I found, with **two** things to *decide*:\n\n\
    1. Pay the bill of `acme`, see [the invoice](https://acme.example/i/7)\n   - due on Friday\n   - ~~overdue~~ in time\n\
    2. Answer Ann\n\n> She asks whether you come.\n> It is about the garden.\n\n\
    | day | place | hours |\n|---|---|--:|\n| Monday | office, second floor | 7 |\n| Tuesday | at home | 4.5 |\n\n\
    ```sh\nnexus approval list --status pending --limit 100 | sort | head -n 3 # a long line that has to be scrolled\n```\n\n\
    <img src=x onerror=\"document.title='owned'\"> [here](javascript:alert(1))";

/// Waits for an element that `selector` finds, or for none.
pub(crate) async fn stands(browser: &Browser, world: &World, selector: &str, there: bool) {
    eventually(selector, PATIENCE, async || {
        let found = browser.texts(selector).await?;
        if found.is_empty() != there {
            Ok(())
        } else {
            Err(format!("{found:?}\n{}", world.logs()))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_shows_markdown_and_that_the_model_is_away_and_back() {
    let Some(browser) = Browser::open().await else {
        println!("SKIPPED: no chromedriver with Chromium on the PATH (Debian: chromium, chromium-driver)");
        return;
    };

    let first = ModelServer::scripted([]).await;
    let (port, base) = (first.port(), first.base_url("openai"));
    drop(first);

    let world = World::start(Setup {
        hooks: vec![("default-dm-routing.ts", shipped_hook("default-dm-routing.ts"))],
        personas: "personas: {default: {runner: llm}}".to_owned(),
        adapter: format!("[llm]\nprovider = \"openai\"\nmodel = \"any\"\nprices.any = {{ input = 0, output = 0 }}\nbase_url = {base:?}\n"),
        ..Setup::default()
    })
    .await;

    let page = format!("{}/", world.gateway());
    browser.go(&page).await.expect("the page opens");

    // Shift+Enter breaks the line, Enter sends; WebDriver writes keys as these characters.
    let keys = "What is up\u{E008}\u{E007}\u{E008}this week?\u{E007}";
    browser.write("#message", keys).await.expect("the field takes it");
    stands(&browser, &world, "#thinking:not([hidden])", true).await;
    stands(&browser, &world, "#away:not([hidden])", true).await;
    let sent = browser.texts("#log li.sent").await.expect("the lines");

    assert_eq!(sent, ["What is up\nthis week?"]);

    pictures(&browser, "away").await;

    let back = ModelServer::ruled_at(port, |_, _| ScriptedAnswer::text(MARKDOWN)).await;
    stands(&browser, &world, "#log li.received:not(.partial) table", true).await;
    stands(
        &browser,
        &world,
        "#away:not([hidden]), #thinking:not([hidden]), .partial",
        false,
    )
    .await;

    let count = "return ['h3','strong','em','del','.markdown ol > li','ul > li','blockquote','th.right','pre code','.markdown a','li.day','img'] \
                 .map(what => document.querySelectorAll('#log ' + what).length)";
    let counts = browser.run(count).await.expect("the counts");
    assert_eq!(counts, json!([1, 1, 1, 1, 2, 2, 1, 1, 1, 1, 1, 0]));

    let wide = "const { scrollWidth, clientWidth } = document.documentElement; return [document.title, scrollWidth <= clientWidth]";
    pictures(&browser, "markdown").await;
    assert_eq!(browser.run(wide).await.expect("the title"), json!(["Nexus chat", true]));

    browser.go(&page).await.expect("the page opens again");
    stands(&browser, &world, "#log li.received table", true).await;
    let lines = "return document.querySelectorAll('#log > ol > li:not(.day)').length";

    assert_eq!(browser.run(lines).await.expect("the lines"), json!(2));

    drop(back);
    browser.close().await;
    world.stack.stop().await;
}

/// Answers who chats, and lets the agent do everything.
const CHAT: &str = r#"/** @name chat */
export default (ctx) => {
  const e = ctx.event;
  if (e.channel !== "webchat" || e.direction !== "received") return { fire: false };
  return { fire: true, routing: { session: "chat-" + e.peer.id }, permissions: { level: "full" } };
};
"#;

pub(crate) const ASKS_WHO_BEGAN: &str = "personas: {default: {runner: llm, \
                              requires_confirmation: [{tools: [list_hooks], ask: {policy: payments, scope: initiator}}]}}";

#[tokio::test(flavor = "multi_thread")]
async fn a_click_on_the_cards_button_approves_the_call_that_waits() {
    let Some(browser) = Browser::open().await else {
        println!("SKIPPED: no chromedriver with Chromium on the PATH (Debian: chromium, chromium-driver)");
        return;
    };

    let model = pays().await;
    let base = model.base_url("openai");
    let world = World::start(Setup {
        hooks: vec![("chat.ts", CHAT.to_owned())],
        personas: ASKS_WHO_BEGAN.to_owned(),
        adapter: format!("[llm]\nprovider = \"openai\"\nmodel = \"any\"\nprices.any = {{ input = 0, output = 0 }}\nbase_url = {base:?}\n"),
        ..Setup::default()
    })
    .await;

    let page = format!("{}/", world.gateway());
    browser.go(&page).await.expect("the page opens");
    browser.write("#message", "pay").await.expect("the field takes it");
    browser.click("#send").await.expect("the button is there");

    let buttons = eventually("the card has its buttons", PATIENCE, async || {
        let found = browser.texts("#log .buttons button:enabled").await?;
        if found.len() == 2 {
            Ok(found)
        } else {
            Err(format!("{found:?}\n{}", world.logs()))
        }
    })
    .await;

    assert_eq!(buttons, ["Approve", "Deny"]);

    pictures(&browser, "approval").await;

    // A page that is opened again still has the buttons, though the code stands in no history.
    browser.go(&page).await.expect("the page opens again");
    eventually("the card has its buttons again", PATIENCE, async || {
        match browser.texts("#log .buttons button:enabled").await? {
            found if found.len() == 2 => Ok(()),
            found => Err(format!("{found:?}\n{}", world.logs())),
        }
    })
    .await;

    browser
        .click("#log .buttons button.approve")
        .await
        .expect("the first one");
    let ends = async |part: &str| {
        eventually("the page shows what came of it", PATIENCE, async || {
            let theirs = browser.texts("#log li.received").await?;
            let found = theirs.iter().any(|text| text.contains(part));
            if found {
                Ok(())
            } else {
                Err(format!("{part}: {theirs:?}\n{}", world.logs()))
            }
        })
        .await;
    };

    ends("done").await;
    let sent = browser.texts("#log li.sent").await.expect("the lines");
    assert_eq!(sent, ["pay", "Approve"]);

    decided(&browser, &world).await;
    pictures(&browser, "decided").await;
    browser.go(&page).await.expect("the page opens again");
    decided(&browser, &world).await;
    browser.close().await;
    world.stack.stop().await;
}
