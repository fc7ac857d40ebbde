//! The source that reads a bot's account from the gateway.
//!
//! A bot may begin 1,000 sessions in 24 hours; the vendor resets its token if it begins more. The number that is left is
//! asked for before each, and sessions that do not last are begun with growing waits. Source:
//! <https://discord.com/developers/docs/events/gateway#session-start-limit-object>.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::json;
use shared::clock::pause;
use shared::model::time::UnixMillis;
use shared::platform::discord::{DISCORD, SocketUrl};
use shared::platform::policy::DirectPolicy;
use shared::wire::watermark::SourceWatermark;
use tokio::sync::{mpsc, watch};

use super::DiscordBot;
use super::account_context::{AccountContext, SourceResult, stopped};
use super::api_error::ApiCallError;
use super::client::DiscordClient;
use super::drive::LinkDriver;
use super::link::{CloseReason, GatewayLink, GatewaySession};
use super::progress::DiscordProgress;
use super::reader::GatewayReader;
use super::socket::open_socket;
use crate::source::port::{Source, SourceEnd, SourceSink};

/// Number of sessions that are left to other programs of the bot, and to its operator.
const SPARED_STARTS: u64 = 20;

/// Maximum wait for the number of sessions to be full again.
const MAX_START_WAIT: Duration = Duration::from_hours(24);

/// Time for which a session must last, so that the next one is begun without a wait.
const LASTS: Duration = Duration::from_mins(2);

/// Number of connections that end at one position because a message cannot be read, after which the session is given up:
/// a resumed one brings the message again.
const MAX_UNREADABLE: u32 = 3;

/// Number of dispatches on their way to the reader.
const QUEUE: usize = 100;

/// A bot whose account is read from the gateway.
#[derive(Debug)]
pub struct DiscordSource(AccountContext);

impl DiscordSource {
    /// Returns the source of the account of `context`.
    #[must_use]
    pub const fn new(context: AccountContext) -> Self {
        Self(context)
    }
}

#[async_trait]
impl Source for DiscordSource {
    fn channel(&self) -> &'static str {
        DISCORD
    }

    fn account(&self) -> &str {
        &self.0.name
    }

    fn direct_policy(&self) -> DirectPolicy {
        self.0.account.direct
    }

    async fn run(&self, from: Option<SourceWatermark>, sink: &SourceSink) -> SourceEnd {
        let now = self.0.timer.monotonic();
        let mut connector = GatewayConnector {
            context: &self.0,
            sink,
            client: DiscordClient::new(&self.0),
            failures: 0,
            starts: 0,
            live_at: now,
            gateway_from: now,
            unreadable: None,
        };
        match connector.keep_connected(from.as_ref()).await {
            Ok(never) => match never {},
            Err(end) => end,
        }
    }
}

/// Connects to the gateway, again and again.
struct GatewayConnector<'a> {
    context: &'a AccountContext,
    sink: &'a SourceSink,
    client: DiscordClient,
    /// Number of calls and connections that failed one after the other.
    failures: u32,
    /// Number of sessions one after the other that did not last.
    starts: u32,
    /// Time at which the account was read last.
    live_at: Instant,
    /// Time from which the gateway may be asked for.
    gateway_from: Instant,
    /// Position at which the last connection ended whose message could not be read, and the number of those that did.
    unreadable: Option<(GatewaySession, u32)>,
}

impl<'a> GatewayConnector<'a> {
    async fn keep_connected(&mut self, from: Option<&SourceWatermark>) -> SourceResult<std::convert::Infallible> {
        let mut reader = self.open_reader(from).await?;
        loop {
            if !self.sink.is_held() {
                return Err(SourceEnd::Fenced);
            }

            reader.is_live = false;
            let begun = self.context.timer.monotonic();
            let left = self.connect(&mut reader).await?;
            if reader.is_live {
                self.failures = 0;
                self.live_at = self.context.timer.monotonic();
                if self.live_at.saturating_duration_since(begun) > LASTS {
                    self.starts = 0;
                }
            }

            match left {
                Ok(CloseReason::Resume(words)) => self.wait(&words, Duration::ZERO).await?,
                Ok(CloseReason::Unreadable(words)) => {
                    if self.is_unreadable_for_good(&reader) {
                        self.give_up_session(&mut reader, &words).await?;
                    }
                    self.wait(&words, Duration::ZERO).await?;
                }
                Ok(CloseReason::Identify(words)) => {
                    reader.progress.position.session = None;
                    // The vendor asks for one to five seconds.
                    let wait = Duration::from_secs(1) + Duration::from_secs(4).mul_f64(self.context.ids.draw_jitter());
                    self.wait(&words, wait).await?;
                }
                Ok(CloseReason::Stop(words)) => return Err(stopped(words)),
                Err(error) => self.wait_after(&error).await?,
            }
        }
    }

    /// Notes that a message of the gateway could not be read behind the position of `reader`. Returns whether that happened
    /// so often that it will never be read.
    fn is_unreadable_for_good(&mut self, reader: &GatewayReader<'_>) -> bool {
        let at = reader.progress.position.session.clone();
        let before = self.unreadable.take();
        let count = match (&before, &at) {
            (Some((known, count)), Some(at)) if known == at => count.saturating_add(1),
            (_, _) => 1,
        };
        self.unreadable = at.map(|at| (at, count));
        count >= MAX_UNREADABLE
    }

    /// Gives up the session of `reader`, whose next message cannot be read because of `words`. The next session tells the
    /// gap that this leaves.
    async fn give_up_session(&mut self, reader: &mut GatewayReader<'_>, words: &str) -> SourceResult<()> {
        let Some(session) = reader.progress.position.session.take() else {
            return Ok(());
        };
        tracing::error!(
            account = self.context.name,
            seq = session.seq,
            reason = words,
            "a message of the gateway cannot be read; another session is begun"
        );
        metrics::counter!("nexus_source_refused_total", "source" => DISCORD, "reason" => "unreadable").increment(1);
        // The message itself cannot be read, so that it is unknown which secrets it would show.
        let payload = json!({"session": session.id, "behind": session.seq});
        self.sink.give_up_payload(&payload, "unreadable", words).await?;
        self.unreadable = None;
        Ok(())
    }

    /// Asks who the bot is.
    async fn open_reader(&mut self, from: Option<&SourceWatermark>) -> SourceResult<GatewayReader<'a>> {
        let user = loop {
            match self.client.identify().await {
                Ok(user) => break user,
                Err(error) => self.wait_after(&error).await?,
            }
        };
        self.failures = 0;

        let bot = DiscordBot {
            name: self.context.name.clone(),
            user_id: user.id,
            username: user.username,
        };
        let hash = self.context.account.token_hash();
        let progress = DiscordProgress::resume(&bot.user_id, &hash, from, self.sink.now());
        Ok(GatewayReader::new(
            self.context,
            self.sink,
            self.client.clone(),
            bot,
            progress,
        ))
    }

    /// Opens a socket and reads from it until it is left. Returns why, or why there was none.
    async fn connect(&mut self, reader: &mut GatewayReader<'_>) -> SourceResult<Result<CloseReason, ApiCallError>> {
        let session = reader.progress.position.session.clone();
        // If the session's own gateway does not answer, any other resumes it, in turn.
        let may_ask = self.context.timer.monotonic() >= self.gateway_from;
        let is_own_turn = self.failures == 0 || !self.failures.is_multiple_of(2) || !may_ask;
        let own = session.as_ref().filter(|_| is_own_turn);
        let own = own.and_then(|session| SocketUrl::parse(&session.resume_url).ok());
        let found = match own {
            Some(url) => Ok(url),
            None => self.find_gateway(session.is_none()).await?,
        };
        let url = match found {
            Ok(url) => url,
            Err(error) => return Ok(Err(error)),
        };

        // After the waits: another replica may have taken over.
        if !self.sink.is_held() {
            return Err(SourceEnd::Fenced);
        }
        let socket = match open_socket(&self.context.http, &url, self.context.ids.ulid().0).await {
            Ok(socket) => socket,
            Err(error) => return Ok(Err(error)),
        };

        let (items, received) = mpsc::channel(QUEUE);
        let (stored, confirmed) = watch::channel(0);
        let link = GatewayLink::new(session);
        let driver = LinkDriver {
            client: &self.client,
            token: self.context.account.token.reveal(),
            jitter: self.context.ids.draw_jitter(),
            items,
            stored: confirmed,
            account: &self.context.name,
            timer: &self.context.timer,
        };
        let (left, read) = tokio::join!(driver.drive(socket, link), reader.read(received, stored));
        read?;
        reader.store_waiting_texts().await?;
        Ok(Ok(left))
    }

    /// Returns the gateway to which a socket is opened, once a session may be begun if one `is_begun`.
    async fn find_gateway(&mut self, is_begun: bool) -> SourceResult<Result<SocketUrl, ApiCallError>> {
        let found = match self.client.gateway().await {
            Ok(found) => found,
            // A session can be resumed meanwhile.
            Err(ApiCallError::Limited { after, scope }) if !is_begun => {
                self.gateway_from = self.context.timer.monotonic() + after;
                return Ok(Err(ApiCallError::Unreachable(format!("the gateway's limit{scope}"))));
            }
            Err(error) => return Ok(Err(error)),
        };

        if is_begun {
            let starts = found.session_start_limit;
            if starts.remaining <= SPARED_STARTS {
                let wait = Duration::from_millis(starts.reset_after).min(MAX_START_WAIT);
                let words = format!(
                    "the bot has begun almost as many sessions as Discord allows in 24 hours; the next one in {} s",
                    wait.as_secs()
                );
                self.wait(&words, wait).await?;
                return Ok(Err(ApiCallError::Unreachable("no session may be begun".to_owned())));
            }

            if self.starts > 0 {
                let wait = self.context.start_wait(self.starts);
                self.wait("sessions with Discord do not last", wait).await?;
            }
            self.starts = self.starts.saturating_add(1);
        }

        let configured = self.context.account.ws_url.clone();
        let url = configured.map_or_else(|| SocketUrl::parse(&found.url), Ok);
        Ok(url.map_err(|_| ApiCallError::Malformed("invalid gateway URL".to_owned())))
    }

    async fn wait_after(&mut self, error: &ApiCallError) -> SourceResult<()> {
        let wait = self.context.wait_after(error, self.failures.saturating_add(1))?;
        self.wait(&error.to_string(), wait).await
    }

    /// Waits at least `least` after a failure, whose words are `words`.
    async fn wait(&mut self, words: &str, least: Duration) -> SourceResult<()> {
        self.failures = self.failures.saturating_add(1);
        let wait = self.context.retry_wait(self.failures).max(least);
        let silent = self.context.timer.monotonic().saturating_duration_since(self.live_at);
        tracing::warn!(
            account = self.context.name,
            failures = self.failures,
            reason = words,
            wait_ms = wait.as_millis(),
            "connection to Discord ended; connecting again"
        );
        metrics::counter!("nexus_source_failures_total", "source" => DISCORD).increment(1);
        let until = i64::try_from(wait.as_millis()).map_or(i64::MAX, |wait| self.sink.now().plus(wait).0);
        let until = UnixMillis(until).to_rfc3339();
        let told = format!(
            "failing for {} s: {words}; waiting until {until} to connect",
            silent.as_secs()
        );
        self.sink.report(Err(&told));

        if !self.sink.is_held() {
            return Err(SourceEnd::Fenced);
        }
        pause(wait).await;
        Ok(())
    }
}
