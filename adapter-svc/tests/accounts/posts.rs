//! A platform that posts: what it has is posted to a replica that runs, again and again until one takes it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use shared::bus::Bus;
use shared::clock::{SharedClock, pause};
use shared::model::event::{Event, EventId};
use shared::model::time::UnixMillis;
use tokio::sync::Notify;

/// Longest wait for the answer to a post.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Wait before what was not taken is posted again. Vendors wait for a minute or more.
const AGAIN_AFTER: Duration = Duration::from_millis(30);

/// Headers of a post.
pub(crate) type PostHeaders = Vec<(&'static str, String)>;

/// How a platform writes its posts to the account `main`.
pub(crate) trait PostForm: Send + Sync {
    /// Path of the door.
    fn path(&self) -> &'static str;
    /// The id of the event of the message `number`, which was written at `at`.
    fn event_id(&self, number: i64, at: UnixMillis) -> String;
    /// The body with that message.
    fn body(&self, number: i64, at: UnixMillis) -> String;
    /// Headers with which `body` is posted at `now`.
    fn sign(&self, body: &str, now: UnixMillis) -> PostHeaders;
    /// Headers with which somebody else posts it.
    fn forge(&self, body: &str, now: UnixMillis) -> Vec<PostHeaders>;
}

/// A message that is to be posted.
#[derive(Debug, Clone)]
struct Post {
    id: String,
    body: String,
}

/// The platform's servers. Clones are the same ones.
#[derive(Clone)]
pub(crate) struct Poster {
    form: Arc<dyn PostForm>,
    clock: SharedClock,
    client: reqwest::Client,
    state: Arc<Mutex<PosterState>>,
    /// The bus that must have each taken post; `None` = the answer says that it is on a disk.
    stream: Option<Bus>,
    more: Arc<Notify>,
}

#[derive(Default)]
struct PosterState {
    waiting: VecDeque<Post>,
    /// Ids of the events of the posts that were taken.
    taken: BTreeSet<String>,
    /// Number of posts that were not taken, by status; 0 = without an answer.
    refused: BTreeMap<u16, usize>,
    /// Events of which a post was taken before the bus had them.
    early: Vec<String>,
    /// Whether each message is posted twice, and later ones first.
    repeats: bool,
    /// Ids of the events that the stream was seen to have, and its last sequence then.
    stored: BTreeSet<String>,
    last: u64,
}

impl Poster {
    /// Starts to post in the form `form`, at the time of `clock`, to `doors`: the base URLs of the replicas that run, in turn.
    /// With `stream`, what is taken must be there.
    pub(crate) fn start(
        form: Arc<dyn PostForm>,
        clock: SharedClock,
        stream: Option<Bus>,
        doors: impl Fn() -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        let client = reqwest::Client::builder().timeout(ANSWER_WITHIN).build();
        let poster = Self {
            form,
            clock,
            client: client.expect("a client"),
            state: Arc::default(),
            stream,
            more: Arc::default(),
        };
        tokio::spawn(poster.clone().post_all(doors));
        poster
    }

    fn lock(&self) -> MutexGuard<'_, PosterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets somebody write the message `number` at `at`; the id of its event.
    pub(crate) fn say(&self, number: i64, at: UnixMillis) -> String {
        let post = Post {
            id: self.form.event_id(number, at),
            body: self.form.body(number, at),
        };
        let id = post.id.clone();
        let mut state = self.lock();
        if state.repeats {
            state.waiting.push_front(post.clone());
        }
        state.waiting.push_back(post);
        drop(state);
        self.more.notify_one();
        id
    }

    /// Posts each message twice from now on, and later ones first.
    pub(crate) fn repeat(&self) {
        self.lock().repeats = true;
    }

    /// Gives up what was not taken, as the vendor does after a while.
    pub(crate) fn forget(&self) {
        self.lock().waiting.clear();
    }

    /// Number of messages that were taken.
    pub(crate) fn taken(&self) -> usize {
        self.lock().taken.len()
    }

    /// Whether everything was taken, each as often as it was to be posted.
    pub(crate) fn is_done(&self, count: usize) -> bool {
        let state = self.lock();
        state.waiting.is_empty() && state.taken.len() == count
    }

    /// Number of posts that were not taken, by status; 0 = without an answer.
    pub(crate) fn refused(&self) -> BTreeMap<u16, usize> {
        self.lock().refused.clone()
    }

    pub(crate) fn early(&self) -> Vec<String> {
        self.lock().early.clone()
    }

    /// Posts the message `number` to the replica at `base` with headers of somebody else; the statuses.
    pub(crate) async fn forge(&self, base: &str, number: i64, at: UnixMillis) -> Vec<Option<u16>> {
        let body = self.form.body(number, at);
        let mut statuses = Vec::new();
        for headers in self.form.forge(&body, self.clock.now()) {
            statuses.push(self.send(base, &body, headers).await);
        }
        statuses
    }

    async fn post_all(self, doors: impl Fn() -> Vec<String>) {
        let mut turn = 0_usize;
        loop {
            let next = self.lock().waiting.front().cloned();
            let Some(post) = next else {
                self.more.notified().await;
                continue;
            };

            let running = doors();
            turn += 1;
            let status = match running.get(turn.checked_rem(running.len()).unwrap_or(0)) {
                Some(base) => {
                    let headers = self.form.sign(&post.body, self.clock.now());
                    self.send(base, &post.body, headers).await
                }
                None => None,
            };
            if status == Some(200) {
                self.note_taken(&post).await;
                continue;
            }

            {
                let mut state = self.lock();
                *state.refused.entry(status.unwrap_or(0)).or_default() += 1;
                // What is given up in the meantime does not come again.
                let place = state.waiting.iter().position(|waiting| waiting.id == post.id);
                let again = place.and_then(|place| state.waiting.remove(place));
                state.waiting.extend(again);
            }
            pause(AGAIN_AFTER).await;
        }
    }

    /// The status of the answer to a post of `body` to the replica at `base`; `None` without an answer.
    async fn send(&self, base: &str, body: &str, headers: PostHeaders) -> Option<u16> {
        let url = format!("{base}{}", self.form.path());
        let mut request = self.client.post(url).body(body.to_owned());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let answer = request.header("content-type", "application/json").send().await;
        Some(answer.ok()?.status().as_u16())
    }

    async fn note_taken(&self, post: &Post) {
        let is_early = match &self.stream {
            Some(bus) => !self.is_durable(bus, &post.id).await,
            None => false,
        };
        let mut state = self.lock();
        // A message that was written meanwhile may have come before it.
        if let Some(place) = state.waiting.iter().position(|waiting| waiting.id == post.id) {
            state.waiting.remove(place);
        }
        state.taken.insert(post.id.clone());
        if is_early {
            state.early.push(post.id.clone());
        }
    }

    /// Whether the stream on `bus` has the event `id`, or it is kept for the account's holder. It may go from one to the other
    /// meanwhile.
    async fn is_durable(&self, bus: &Bus, id: &str) -> bool {
        self.is_stored(bus, id).await || is_kept(bus, id).await || self.is_stored(bus, id).await
    }

    /// Whether the stream on `bus` has the event `id`.
    async fn is_stored(&self, bus: &Bus, id: &str) -> bool {
        loop {
            let last = {
                let state = self.lock();
                if state.stored.contains(id) {
                    return true;
                }
                state.last
            };
            let page = bus.read_history("EVENTS", "nexus.ev.>", last + 1, 1_000).await;
            // A server that was killed cannot be asked, and has nothing new.
            let page = page.unwrap_or_default();
            let Some(newest) = page.last() else { return false };
            let mut state = self.lock();
            state.last = newest.sequence;
            let ids = page
                .iter()
                .map(|one| one.decode::<Event>().expect("an event").id.to_string());
            state.stored.extend(ids);
        }
    }
}

/// Whether the event `id` is in KV `posts`, or was there a moment ago and is stored.
async fn is_kept(bus: &Bus, id: &str) -> bool {
    let event = Event::new(EventId::parse(id).expect("an id"), "any", "any", UnixMillis(1));
    let name = bus.trust().cluster_key().expect("a key").message_id(&event);
    let kept = bus.list_subjects("KV_posts", "$KV.posts.>").await.unwrap_or_default();
    kept.keys().any(|subject| subject.ends_with(&name))
}
