//! A person at a real browser: types, is answered, and finds the conversation again after a reload.

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

const ASKS_WHO_BEGAN: &str = "personas: {default: {runner: llm, \
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
        let found = browser.texts("#log .buttons button").await?;
        if found.len() == 2 {
            Ok(found)
        } else {
            Err(format!("{found:?}\n{}", world.logs()))
        }
    })
    .await;
    assert!(
        buttons[0].starts_with("Approve ") && buttons[1].starts_with("Deny "),
        "{buttons:?}"
    );
    browser.click("#log .buttons button").await.expect("the first one");
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
    browser.close().await;
    world.stack.stop().await;
}
