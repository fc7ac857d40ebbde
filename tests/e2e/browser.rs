//! A person at a real browser: types, is answered, and finds the conversation again after a reload.

use tests::driver::Browser;
use tests::eventually::eventually;
use tests::world::{Setup, World, shipped_hook};

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
