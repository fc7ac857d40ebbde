//! Whose word counts, and that nobody gives himself another's name.

use serde_json::{Value, json};
use shared::model::approval::{ApprovalStatus, DeciderScope};
use shared::model::event::EventId;
use shared::model::identity::Identities;
use shared::model::origin::EventOrigin;
use shared::model::permission::PermissionLevel;
use shared::model::session::QueueMode;
use shared::testing::eventually;

use crate::approvals::{Story, asked, identities};
use crate::bench::dispatch;

/// Somebody's message.
struct Said {
    event: &'static str,
    channel: Option<&'static str>,
    from: &'static str,
    /// Who brought it, and the person whom that proves.
    brought: (&'static str, Option<&'static str>),
}

async fn say(story: &Story, number: u64, said: &Said, text: String) {
    let mut one = dispatch(&story.main, number);
    one.event_id = EventId::parse(format!("{}/{number}", said.event)).expect("an id");
    one.causation.event = one.event_id.clone();
    one.message.channel = said.channel.map(str::to_owned);
    one.message.from = said.from.to_owned();
    one.message.content = text;
    let (origin, person) = said.brought;
    one.message.origin = EventOrigin::parse(origin).expect("an origin");
    one.message.proven = !one.message.origin.is_open();
    one.message.person = person.map(str::to_owned);

    story.bench.publish(&one).await;
    story.bench.claim(&story.main).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_the_owner_by_what_his_message_calls_itself() {
    let mut story = Story::begin("{scope: owner}").await;
    story.send(1, None).await;
    story.plays("model", "I pay", &["pay"]).await;
    let id = story.suspended().await.id;
    let code = story.code(&id).await;

    let said = |event, channel, from, brought| Said {
        event,
        channel,
        from,
        brought,
    };

    let stranger = ("verified:telegram/bot", None);
    let strangers = [
        said("cli:x", None, "operator", stranger),
        said("cli:x", None, "ann", stranger),
        said("test:x", Some("cli"), "operator", stranger),
        said("link:x", Some("link"), "ann", stranger),
        // Ann's address under `*`, written by somebody who only says that it is his.
        said("test:x", Some("mail"), "ann@mail", ("open", None)),
        // A token may speak for Ann, and decides nothing all the same.
        said("test:x", Some("mail"), "ann@mail", ("token:crm", Some("ann"))),
        said("agent:x:y", Some("mail"), "ann@mail", ("system", Some("ann"))),
        said("out:x", Some("mail"), "ann@mail", ("system", Some("ann"))),
    ];

    for (index, stranger) in strangers.iter().enumerate() {
        say(&story, 10 + index as u64, stranger, format!("approve {code}")).await;
        eventually("the stranger is answered", async || {
            story.replies().await.len() == index + 1
        })
        .await;
    }

    assert_eq!(story.stands(&id).await.status, ApprovalStatus::Pending);

    let refused = story.audit(&id).await.iter().filter(|what| *what == "refused").count();
    assert_eq!(refused, strangers.len());

    // The dispatch says whom the event's origin proves, whatever the event's id is called.
    let ann = said("mybot:x", Some("mail"), "ann@mail", ("verified:mail/home", Some("ann")));
    say(&story, 30, &ann, format!("approve {code}")).await;
    story.plays("pay", "paid", &[]).await;
    story.plays("model", "done", &[]).await;

    assert_eq!(story.stands(&id).await.decided_by.as_deref(), Some("ann"));

    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_taken_out_of_the_identities_decides_no_more_and_who_is_put_in_does() {
    let mut story = Story::begin("{scope: owner}").await;
    story.send(1, None).await;
    story.plays("model", "I pay", &["pay"]).await;
    let id = story.suspended().await.id;
    story.desk().set_identities(Identities {
        owner: Some("bob".to_owned()),
        ..identities()
    });

    assert_eq!(story.says(&id, "ann", true, None).await, Err(403));

    let said = story.says(&id, "bob", true, None).await.expect("taken");
    assert_eq!(said.status, ApprovalStatus::Approved);

    story.plays("pay", "paid", &[]).await;
    story.plays("model", "done", &[]).await;
    story.ends("done").await;
    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_narrower_layer_asks_others_as_well_and_nobody_instead() {
    let hooks = "
hooks: [{name: owner, hook: PreToolUse, builtin: approval_gate, tools: [pay]}]
personas: {default: [{name: desk, hook: PreToolUse, builtin: approval_gate, tools: [pay], with: {scope: {kind: named, names: [bob]}}}]}
";
    let mut story = Story::begin_with("personas: {default: {}}", hooks).await;
    story.send(1, None).await;
    story.plays("model", "I pay", &["pay"]).await;

    let request = story.suspended().await;
    let id = request.id;
    assert_eq!(request.policy, "owner, desk");

    let early = story.says(&id, "bob", true, None).await.expect("noted");
    assert_eq!(early.status, ApprovalStatus::Pending, "the owner was not heard");

    let both = story.says(&id, "ann", true, None).await.expect("taken");
    assert_eq!(both.status, ApprovalStatus::Approved);

    story.plays("pay", "paid", &[]).await;
    story.plays("model", "done", &[]).await;
    story.ends("done").await;
    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_that_an_approver_wrote_are_approved_by_those_whom_they_concern() {
    let bob = "scope: {kind: named, names: [bob]}";
    let personas = format!(
        "personas: {{default: {{requires_confirmation: [{{tools: [pay], above: {{amount: 100000}}, ask: {{}}}}, {{tools: [pay], ask: {{{bob}}}}}]}}}}"
    );
    let mut story = Story::begin_with(&personas, "").await;
    story.send(1, None).await;
    story.plays("model", "I pay", &["pay"]).await;

    let first = story.suspended().await;
    let much = json!({"step": 1, "amount": 200_000});
    story
        .says(&first.id, "bob", true, Some(much.clone()))
        .await
        .expect("taken");

    eventually("asked again", async || {
        asked(&story.bench.entries(&story.main).await).len() == 2
    })
    .await;
    let second = story.suspended().await;
    let scope = second.asked_in.expect("a turn").scope;
    let bob = DeciderScope::Named {
        names: vec!["bob".to_owned()],
    };

    // Both rules fit now, and the one does not take the other's place.
    let of = vec![DeciderScope::Owner, bob];
    assert_eq!((&second.arguments, scope), (&much, DeciderScope::All { of }));

    story.becomes(&first.id, ApprovalStatus::Superseded).await;
    let said = story.says(&second.id, "bob", true, None).await.expect("taken");
    assert_eq!(said.status, ApprovalStatus::Pending);

    story.says(&second.id, "ann", true, None).await.expect("taken");
    let paid = story.plays("pay", "paid", &[]).await;
    assert_eq!(serde_json::from_str::<Value>(&paid.heard[0]).expect("JSON"), much);

    story.plays("model", "done", &[]).await;
    story.ends("done").await;
    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_works_for_an_agent_asks_as_that_agent_would() {
    let flagged = "requires_confirmation: [{tools: [pay], ask: {policy: boss}}]";
    let personas = format!("personas: {{default: {{}}, boss: {{{flagged}}}}}");
    let mut story = Story::begin_with(&personas, "").await;
    let mut one = dispatch(&story.main, 1);
    one.permissions.level = PermissionLevel::Full;
    let works_for = json!([{"persona": "boss", "session": "main"}]);
    one.message.metadata.insert("works_for".to_owned(), works_for);
    story.bench.publish(&one).await;
    story.bench.claim(&story.main).await;
    story.plays("model", "I pay", &["pay"]).await;

    let request = story.suspended().await;
    assert_eq!(request.policy, "boss");

    story.says(&request.id, "ann", false, None).await.expect("a no");
    story.plays("model", "so be it", &[]).await;
    story.ends("so be it").await;
    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_waits_while_a_word_is_said_behind_it_is_answered_afterwards() {
    let mut story = Story::begin("{scope: initiator}").await;
    story.send(1, None).await;
    story.plays("model", "I pay", &["pay"]).await;
    let id = story.suspended().await.id;
    story.send(2, None).await;
    eventually("it is looked at, and waits", async || story.bench.claims().await == 0).await;
    let mut word = dispatch(&story.main, 3);
    word.message.from = "v1".to_owned();
    word.message.content = format!("approve {}", story.code(&id).await);
    story.bench.publish(&word).await;

    story.bench.claim(&story.main).await;
    story.plays("pay", "paid", &[]).await;
    story.plays("model", "done", &[]).await;
    story.plays("model", "and the second", &[]).await;
    eventually("all is answered", async || story.replies().await.len() == 3).await;
    story.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_word_in_the_channel_decides_and_is_no_message_to_the_agent() {
    let mut story = Story::begin("{scope: initiator}").await;
    story.send(1, None).await;
    story.plays("model", "I pay", &["pay"]).await;
    let id = story.suspended().await.id;
    let code = story.code(&id).await;

    let say = async |event: u64, from: &str, text: String| {
        let mut one = dispatch(&story.main, event);
        one.queue_mode = Some(QueueMode::Steer);
        one.message.from = from.to_owned();
        one.message.content = text;
        story.bench.publish(&one).await;
        story.bench.claim(&story.main).await;
    };

    say(2, "v2", format!("approve {code}")).await;
    eventually("the stranger is answered", async || story.replies().await.len() == 1).await;
    assert!(
        story.replies().await[0].contains("may not decide"),
        "{:?}",
        story.replies().await
    );
    assert_eq!(story.stands(&id).await.status, ApprovalStatus::Pending);

    say(3, "v1", format!("approve {code} go on")).await;
    story.plays("pay", "paid", &[]).await;
    let heard = story.plays("model", "done", &[]).await;

    assert!(!heard.heard.iter().any(|said| said.contains("approve")), "{heard:?}");

    eventually("the replies", async || story.replies().await.len() == 3).await;
    assert_eq!(
        story.replies().await[1..],
        ["the approval is approved".to_owned(), "done".to_owned()]
    );

    let repeats = |reply: &String| reply.to_lowercase().contains(&code.to_lowercase());
    assert!(
        !story.replies().await.iter().any(repeats),
        "whoever reads along knows the code"
    );

    let standing = story.stands(&id).await;
    assert_eq!(
        (standing.decided_by.as_deref(), standing.response.as_deref()),
        (Some("test:v1"), Some("go on"))
    );

    story.stop().await;
}
