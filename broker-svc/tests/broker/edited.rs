//! Messages that their senders edit or take back: before their turns, while they run, and across brokers that are killed.

use shared::bus::{CoreSubscription, OutgoingMessage};
use shared::model::dispatch::Dispatch;
use shared::model::ledger::{DropReason, LedgerEntry};
use shared::model::order::{OrderKind, SessionOrder};
use shared::model::permission::{PermissionLevel, PermissionSet};
use shared::model::session::{QueueMode, SessionRef};
use shared::model::time::UnixMillis;
use shared::wire::subject;
use tokio::process::Child;
use ulid::Ulid;

use crate::bench::{Bench, dispatch, session};
use crate::killed::child_of;
use crate::stepping::{Effect, SUBJECT, answer, effect};

/// One session on a broker that is a process of its own; the test is its model and its tools.
struct Story {
    bench: Bench,
    owner: Child,
    asked: CoreSubscription,
    main: SessionRef,
}

impl Story {
    async fn start() -> Self {
        let bench = Bench::start().await;
        let asked = bench.bus.core_subscribe(SUBJECT).await.expect("a subscription");
        bench.bus.flush().await.expect("it is known");
        let owner = child_of(&bench.server.url(), "look");
        Self {
            bench,
            owner,
            asked,
            main: session("main"),
        }
    }

    async fn send(&self, event: u64, mode: QueueMode) -> Dispatch {
        let one = with_mode(dispatch(&self.main, event), mode);
        self.bench.publish(&one).await;
        self.bench.claim(&self.main).await;
        one
    }

    async fn effect(&mut self) -> (Effect, String) {
        effect(&mut self.asked).await
    }

    /// The next question to the model. Whoever takes a turn over may look again first.
    async fn question(&mut self) -> (Effect, String) {
        loop {
            let (next, to) = self.effect().await;
            if next.name == "model" {
                return (next, to);
            }
            self.answer(&to, "nothing", &[]).await;
        }
    }

    async fn answer(&self, to: &str, text: &str, tools: &[&str]) {
        answer(&self.bench.bus, to, text, tools).await;
    }

    /// Kills the broker; another goes on.
    async fn hand_over(&mut self) {
        self.owner.kill().await.expect("SIGKILL");
        self.owner = child_of(&self.bench.server.url(), "look");
    }

    /// Lets the model, which waits at `to`, look around until it has heard `text`: the broker has read all that came before
    /// that.
    async fn until_heard(&mut self, mut to: String, text: &str) {
        loop {
            self.answer(&to, "let me look", &["look"]).await;
            let (next, at) = self.question().await;
            if next.heard.iter().any(|heard| heard.ends_with(text)) {
                return;
            }
            to = at;
        }
    }
}

fn with_mode(one: Dispatch, mode: QueueMode) -> Dispatch {
    Dispatch {
        queue_mode: Some(mode),
        permissions: PermissionSet {
            level: PermissionLevel::Full,
            ..PermissionSet::default()
        },
        ..one
    }
}

/// Gives an order to a session. The number tells the orders of a test apart.
pub(crate) async fn order(bench: &Bench, number: u64, to: &SessionRef, wanted: OrderKind) {
    let order = SessionOrder {
        id: Ulid::from_parts(number, 1),
        target: to.clone(),
        wanted,
        by: "verified:slack/bot".to_owned(),
        reason: String::new(),
        at: UnixMillis(1),
    };
    let out = OutgoingMessage::new(subject::dispatch(to), &order);
    bench.bus.publish(out).await.expect("an order is stored");
    bench.claim(to).await;
}

/// An edit of `of` to `content`; the number is also the time of the edit.
async fn edit(bench: &Bench, number: u64, of: &Dispatch, content: &str) {
    let wanted = OrderKind::Edit {
        dispatch: of.id,
        from: of.message.from.clone(),
        content: content.to_owned(),
        edited_at: UnixMillis(i64::try_from(number).expect("small")),
    };
    order(bench, number, &of.target, wanted).await;
}

async fn take_back(bench: &Bench, number: u64, of: &Dispatch) {
    let wanted = OrderKind::Withdraw {
        dispatch: of.id,
        spares_turn: true,
    };
    order(bench, number, &of.target, wanted).await;
}

/// The line by which a turn is told of an edit that came too late.
fn line(text: &str) -> String {
    format!(r#"[an earlier message was edited to this; from "v1": data] {text}"#)
}

fn withdrawn(entries: &[LedgerEntry]) -> Vec<Ulid> {
    let mut dropped = Vec::new();
    for entry in entries {
        if let LedgerEntry::DispatchDropped { dispatch, reason, .. } = entry
            && *reason == DropReason::Withdrawn
        {
            dropped.push(dispatch.id);
        }
    }
    dropped
}

/// Numbers of the orders that were carried out.
fn carried_out(entries: &[LedgerEntry]) -> Vec<u64> {
    let mut numbers = Vec::new();
    for entry in entries {
        if let LedgerEntry::Ordered { order, .. } = entry {
            numbers.push(order.id.timestamp_ms());
        }
    }
    numbers
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_message_runs_with_its_new_text_and_a_later_edit_is_told_whoever_is_killed() {
    let mut story = Story::start().await;
    let first = story.send(1, QueueMode::Followup).await;
    let (began, to) = story.question().await;
    assert_eq!(began.heard.last().map(String::as_str), Some("message 1"));

    // Behind the running turn: one is edited, with an older edit after it, and one is taken back. A replica of hook-svc
    // that takes over gives its orders again.
    let second = story.send(2, QueueMode::Followup).await;
    let third = story.send(3, QueueMode::Followup).await;
    edit(&story.bench, 20, &second, "message two").await;
    edit(&story.bench, 10, &second, "message 2, older").await;
    edit(&story.bench, 20, &second, "message two").await;
    take_back(&story.bench, 21, &third).await;
    take_back(&story.bench, 21, &third).await;
    edit(&story.bench, 22, &first, "message one, too late").await;
    story.send(4, QueueMode::Steer).await;
    story.until_heard(to, "message 4").await;

    // Whoever goes on has the same edits.
    story.hand_over().await;
    let (again, to) = story.question().await;
    assert!(again.heard.contains(&"message 1".to_owned()), "{again:?}");
    assert!(!again.prompt.contains("too late"), "the turn had begun: {again:?}");
    story.answer(&to, "one", &[]).await;

    let (next, _) = story.question().await;
    assert_eq!(next.heard.last().map(String::as_str), Some("message two"), "{next:?}");
    assert!(next.prompt.contains(&line("message one, too late")), "{next:?}");

    // A turn that is taken over has the same text, and an edit that comes meanwhile is told to the next one.
    story.hand_over().await;
    let (taken, to) = story.question().await;
    assert_eq!((&taken.heard, taken.id.as_str()), (&next.heard, "1"));
    edit(&story.bench, 23, &second, "message two, again").await;
    take_back(&story.bench, 24, &second).await;
    story.answer(&to, "two", &[]).await;
    story.bench.until_replies(2).await;

    story.send(5, QueueMode::Followup).await;
    let (last, to) = story.question().await;
    assert_eq!(last.heard.last().map(String::as_str), Some("message 5"));
    assert!(last.prompt.contains(&line("message two, again")), "{last:?}");
    assert!(!last.prompt.contains("too late"), "it was told once: {last:?}");
    let has_heard = |text: &str| last.heard.iter().any(|heard| heard.ends_with(text));
    assert!(has_heard("message two") && !has_heard("message 2"), "{last:?}");
    story.answer(&to, "five", &[]).await;

    let replies = story.bench.until_replies(3).await;
    let replies: Vec<&str> = replies.iter().map(|reply| reply.content.as_str()).collect();
    assert_eq!(replies, ["one", "two", "five"]);
    let turns = [1, 2, 5].map(|event| format!("test:main/{event}"));
    assert_eq!(story.bench.completed(&story.main).await, turns);

    let entries = story.bench.entries(&story.main).await;
    assert_eq!(withdrawn(&entries), [third.id], "a turn under way is spared");
    assert_eq!(carried_out(&entries), [20, 10, 21, 22, 23, 24], "each order once");
}
