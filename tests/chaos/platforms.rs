//! Chat platforms under kills: adapter-svc and delivery-svc are killed at random while people write on Telegram, Slack and
//! Discord.
//!
//! Every message is answered, in the order of its chat. Where the platform recognises a repeated call nothing is there twice;
//! elsewhere an answer that was being sent at a kill may be there once more: delivery-svc says that it repeats the call, and the
//! sent event that it is unconfirmed. No account has two readers at any moment.

mod slack;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use shared::clock::pause;
use shared::model::event::{Event, EventDirection};
use shared::wire::topology::streams::{EVENTS, INVOCATIONS};
use tests::eventually::{WorkLeft, eventually, eventually_while_progressing};
use tests::load::Gateways;
use tests::platforms::discord::{Discord, GUILD};
use tests::platforms::telegram::Telegram;
use tests::record::read_all;
use tests::world::{Setup, World};

use self::slack::Slack;
use crate::killer::{Choices, UP, tell};
use crate::kills::{SETTLE, is_long};

/// Services of which a replica is killed, two of each.
const KILLED: [&str; 2] = ["adapter-svc", "delivery-svc"];
/// Chats of each platform, and the time from one message to the next of each: 20 messages a second in all.
const CHATS: u64 = 20;
const PACE: Duration = Duration::from_secs(3);
/// First number of a chat.
const FIRST_CHAT: u64 = 1_500;
/// Time from when a stand-in has a message to its answer: kills are to hit calls of which the outcome is not known.
const ANSWERED_AFTER: Duration = Duration::from_millis(60);
/// Longest time between two kills, ms.
const APART_MS: u64 = 1_500;

/// Answers what people write.
const ANSWER: &str = r#"/** @name answer */
export default (ctx) => ({ fire: ctx.event.direction === "received" && ["telegram", "slack", "discord"].includes(ctx.event.channel) });
"#;

/// A stand-in of one of the platforms.
#[derive(Debug, Clone)]
enum Platform {
    Telegram(Telegram),
    Slack(Slack),
    Discord(Discord),
}

impl Platform {
    const fn channel(&self) -> &'static str {
        match self {
            Self::Telegram(_) => "telegram",
            Self::Slack(_) => "slack",
            Self::Discord(_) => "discord",
        }
    }

    /// Whether it recognises a call that is made again.
    const fn is_idempotent(&self) -> bool {
        match self {
            Self::Telegram(_) | Self::Slack(_) => false,
            Self::Discord(_) => true,
        }
    }

    /// A person writes `text`.
    async fn write(&self, chat: u64, text: &str) {
        match self {
            Self::Telegram(telegram) => telegram.write(i64::try_from(chat).expect("small"), text),
            Self::Slack(slack) => slack.write(chat, text).await,
            Self::Discord(discord) => discord.write(&chat.to_string(), &format!("5{chat}"), text),
        }
    }

    /// The texts that Nexus has sent, by chat, in order.
    fn sent(&self) -> BTreeMap<u64, Vec<String>> {
        let sent = match self {
            Self::Telegram(telegram) => {
                let sent = telegram.sent().into_iter();
                sent.map(|(chat, text)| (chat.to_string(), text)).collect()
            }
            Self::Slack(slack) => slack.sent(),
            Self::Discord(discord) => discord.sent(),
        };
        let mut by_chat: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for (chat, text) in sent {
            let chat = chat.trim_start_matches('D').parse().expect("a chat");
            by_chat.entry(chat).or_default().push(text);
        }
        by_chat
    }

    /// Most that have read the account at one moment; `None` if Nexus does not read it.
    fn most_readers(&self) -> Option<usize> {
        match self {
            Self::Telegram(telegram) => Some(telegram.readers.most()),
            Self::Slack(_) => None,
            Self::Discord(discord) => Some(discord.readers.most()),
        }
    }

    fn text(&self, chat: u64, number: u64) -> String {
        format!("message {number} of {chat} on {}", self.channel())
    }
}

/// People who write until they are told to stop.
struct People {
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    writers: Vec<tokio::task::JoinHandle<(usize, u64, u64)>>,
}

impl People {
    /// Has each chat of `platforms` begin at its own moment.
    fn begin(platforms: &[Platform]) -> Self {
        let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut writers = Vec::new();
        for chat in FIRST_CHAT..FIRST_CHAT + CHATS {
            for (place, platform) in platforms.iter().cloned().enumerate() {
                let (stop, written) = (Arc::clone(&stop), Arc::clone(&written));
                let share = writers.len() as f64 / (CHATS as usize * platforms.len()) as f64;
                writers.push(tokio::spawn(async move {
                    pause(PACE.mul_f64(share)).await;
                    let mut tick = tokio::time::interval(PACE);
                    let mut count = 0;
                    while !stop.load(Ordering::Relaxed) {
                        tick.tick().await;
                        count += 1;
                        platform.write(chat, &platform.text(chat, count)).await;
                        written.fetch_add(1, Ordering::Relaxed);
                    }
                    (place, chat, count)
                }));
            }
        }
        Self { stop, written, writers }
    }

    /// Ends them; returns how many messages each chat of each platform has.
    async fn end(self) -> Vec<(usize, u64, u64)> {
        self.stop.store(true, Ordering::Relaxed);
        let mut counts = Vec::new();
        for writer in self.writers {
            counts.push(writer.await.expect("a writer ends well"));
        }
        counts
    }
}

/// The answers of one chat, each as often as it is there.
fn count_answers(sent: &[String]) -> Vec<(&str, usize)> {
    let runs = sent.chunk_by(|one, next| one == next);
    runs.map(|run| (run[0].as_str(), run.len())).collect()
}

/// Waits until each message of `counts` is answered, as long as fewer and fewer are not.
async fn all_answered(world: &World, platforms: &[Platform], counts: &[(usize, u64, u64)]) {
    eventually_while_progressing("every message is answered", SETTLE, async || {
        let sent: Vec<BTreeMap<u64, Vec<String>>> = platforms.iter().map(Platform::sent).collect();
        let missing = |(place, chat, count): &(usize, u64, u64)| {
            let answers = sent[*place].get(chat).map(Vec::as_slice).unwrap_or_default();
            let answered: BTreeSet<&String> = answers.iter().collect();
            count.saturating_sub(answered.len() as u64)
        };
        let left: u64 = counts.iter().map(missing).sum();
        if left == 0 {
            return Ok(());
        }
        Err(WorkLeft {
            count: left,
            why: format!("{left} messages have no answer\n{}", world.logs()),
        })
    })
    .await;
}

/// What Nexus says of answers that may be there more than once.
#[derive(Debug, Default)]
struct Doubts {
    /// Contents of the sent events that say that they are unconfirmed.
    unconfirmed: BTreeSet<String>,
    /// How often a call of unknown outcome was made again, by the text of its message.
    repeated: BTreeMap<String, usize>,
}

/// Reads the doubts, once all events are evaluated.
async fn read_doubts(world: &World) -> Doubts {
    eventually("each event is evaluated", SETTLE, async || {
        let count = async |stream| {
            let state = world.bus.stream_state(stream).await;
            state.map(|state| state.messages).map_err(|error| error.to_string())
        };
        let (events, evaluated) = (count(EVENTS).await?, count(INVOCATIONS).await?);
        let texts = format!("{evaluated} of {events}\n{}", world.logs());
        (evaluated >= events).then_some(()).ok_or(texts)
    })
    .await;

    let logs = ["delivery-svc-0", "delivery-svc-1"]
        .map(|instance| world.log(instance))
        .concat();
    let repeats: Vec<&str> = logs
        .lines()
        .filter(|line| line.contains("repeating a call with an unknown outcome"))
        .collect();
    let events: Vec<(u64, Event)> = read_all(&world.bus, EVENTS).await;
    let mut doubts = Doubts::default();
    for (_, event) in events {
        if event.direction == EventDirection::Sent {
            if event.metadata.get("unconfirmed") == Some(&json!(true)) {
                doubts.unconfirmed.insert(event.content);
            }
            continue;
        }
        let of_event = format!("event_id={} ", event.id);
        let count = repeats.iter().filter(|line| line.contains(&of_event)).count();
        doubts.repeated.insert(event.content, count);
    }
    doubts
}

/// Kills a replica of one of [`KILLED`] without warning and starts it again, all by chance.
async fn kill_one(world: &mut World, choices: &mut Choices, gateways: &Gateways) {
    let name = KILLED[usize::try_from(choices.below(2)).unwrap_or(0)];
    let replica = u16::try_from(choices.below(2)).unwrap_or(0);
    pause(Duration::from_millis(choices.below(APART_MS))).await;
    let running = world.stack.service(name, replica);
    running.expect("two replicas of it run").kill();

    tell(world, gateways);
    pause(Duration::from_millis(choices.below(200))).await;
    world.stack.launch(name, replica).expect("it starts again");
    tell(world, gateways);
}

/// A world with two replicas of each of [`KILLED`], whose accounts are at the stand-ins.
async fn start(platforms: &[Platform]) -> World {
    let account = |platform: &Platform| match platform {
        Platform::Telegram(telegram) => telegram.account("direct: open"),
        Platform::Slack(slack) => slack.account(),
        Platform::Discord(discord) => discord.account(&format!("groups: {{{GUILD}: {{require_mention: false}}}}")),
    };
    let [slack_token, slack_secret] = Slack::environment();
    let mut world = World::start(Setup {
        hooks: vec![("answer.ts", ANSWER.to_owned())],
        channels: platforms.iter().map(account).collect(),
        environment: vec![
            Telegram::environment(),
            slack_token,
            slack_secret,
            Discord::environment(),
        ],
        ..Setup::default()
    })
    .await;
    for name in KILLED {
        world.scale(name, 2).await;
    }
    world.stack.ready().await.expect("two replicas of each start");
    world
}

#[tokio::test(flavor = "multi_thread")]
async fn adapters_and_deliverers_that_are_killed_cost_no_chat_an_answer_or_its_order() {
    let (kills, seed) = if is_long() { (100, 32) } else { (6, 31) };
    let gateways = Gateways::default();
    let discord = Discord::start(ANSWERED_AFTER).await;
    let platforms = [
        Platform::Telegram(Telegram::start(ANSWERED_AFTER).await),
        Platform::Slack(Slack::start(Arc::clone(&gateways)).await),
        Platform::Discord(discord.clone()),
    ];
    let mut world = start(&platforms).await;
    tell(&world, &gateways);
    eventually("the bot of Discord is connected", UP, async || {
        discord.is_connected().then_some(()).ok_or_else(|| world.logs())
    })
    .await;

    let people = People::begin(&platforms);
    eventually("each platform is answered", UP, async || {
        let is_answered = platforms.iter().all(|platform| !platform.sent().is_empty());
        is_answered.then_some(()).ok_or_else(|| world.logs())
    })
    .await;
    let mut choices = Choices::new(seed);
    for _ in 0..kills {
        kill_one(&mut world, &mut choices, &gateways).await;
    }

    let under_kills = people.written.load(Ordering::Relaxed);
    let counts = people.end().await;
    world.stack.ready().await.expect("everything comes up again");
    all_answered(&world, &platforms, &counts).await;

    let doubts = read_doubts(&world).await;
    let mut doubles = 0;
    for (place, chat, count) in &counts {
        let platform = &platforms[*place];
        let sent = platform.sent();
        let answers = count_answers(&sent[chat]);
        let expected = (1..=*count).map(|number| format!("echo: {}", platform.text(*chat, number)));
        let texts: Vec<&str> = answers.iter().map(|(text, _)| *text).collect();
        assert_eq!(
            texts,
            expected.collect::<Vec<_>>(),
            "{} {chat}: each once, in order",
            platform.channel()
        );

        for (text, times) in answers {
            let message = text.trim_start_matches("echo: ");
            let repeated = doubts.repeated.get(message).copied().unwrap_or(0);
            let is_told = !platform.is_idempotent() && times <= 1 + repeated && doubts.unconfirmed.contains(text);
            let channel = platform.channel();
            assert!(
                times == 1 || is_told,
                "{channel} {chat}: {times} times {text}, repeated {repeated} times"
            );
            doubles += times - 1;
        }
    }

    for platform in &platforms {
        let most = platform.most_readers();
        assert!(
            most.is_none_or(|most| most == 1),
            "{}: {most:?} readers at once",
            platform.channel()
        );
    }
    println!(
        "{kills} kills while {under_kills} messages came: {} are answered, {doubles} answers are there once more and told of, \
         {} are unconfirmed",
        counts.iter().map(|(_, _, count)| count).sum::<u64>(),
        doubts.unconfirmed.len(),
    );
}
