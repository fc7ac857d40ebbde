//! Keeping one account's token valid: reading KV `account_tokens`, and renewing the tokens there when their time has come.
//!
//! A step looks into the bucket, and takes over newer tokens. If a renewal is due, the replica with the lease asks Slack;
//! before that it looks again, since another may have been faster. New tokens are used once they are in the bucket. Until then
//! they are kept in memory, and written with each step: that also mends a bucket that was restored to an older state.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::plan::{TokenStep, due_in, next_step, seeds_after};
use super::renewal::{GivenTokens, RenewTokenError, renew_token};
use crate::bus::{Bus, CasError, Kv};
use crate::clock::{SharedClock, pause};
use crate::model::channel::AccountTokens;
use crate::model::time::{UnixMillis, millis_of};
use crate::platform::slack::{SLACK, SlackAccount, TokenRotation};
use crate::platform::token::hash_token;
use crate::platform::token_seal::TokenSeal;
use crate::process::{Health, SecretValue, ShutdownSignal};
use crate::retry::RetryWaits;
use crate::wire::session_mark::LeaseRecord;
use crate::wire::subject::token;
use crate::wire::topology::buckets::{ACCOUNT_TOKENS, LEASES};

/// Interval in which the bucket is read while something is to be done, or waited for.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Longest interval in which it is read: a thousand accounts whose tokens last must not keep the bus busy.
const CALM_LOOK: Duration = Duration::from_secs(30);
/// Maximum time of the first looks at all accounts, during which the service does not start.
const FIRST_LOOK: Duration = Duration::from_secs(5);
/// Maximum time for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time of a call.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a lease lasts: longer than a call and the writing of its answer.
const LEASE: Duration = Duration::from_secs(60);
/// Time after which a renewal is tried again that Slack refused.
const REFUSED_AGAIN: Duration = Duration::from_mins(5);
/// Maximum wait that Slack may ask for: a longer one would outlast the token in use.
const MAX_ASKED: Duration = Duration::from_hours(1);
/// First and longest wait after a call without an answer.
const UNANSWERED_AGAIN: (Duration, Duration) = (Duration::from_secs(2), Duration::from_mins(2));

/// Parts of the process that its keepers share.
#[derive(Debug, Clone)]
pub struct KeeperContext {
    /// Bus of the bucket.
    pub bus: Bus,
    /// Clock of the process.
    pub clock: SharedClock,
    /// State reported by `/readyz`.
    pub health: Health,
    /// Name of this replica, in leases.
    pub instance: String,
}

/// The sealed part of an entry of the bucket.
#[derive(Serialize, Deserialize)]
struct SealedTokens {
    access: String,
    refresh: String,
}

/// The newest tokens that this replica knows.
#[derive(Debug)]
struct OwnTokens {
    record: AccountTokens,
    access: SecretValue,
    refresh: SecretValue,
}

/// Keeps the rotated token of one account valid, together with the keepers of other replicas and of the other service.
pub struct TokenKeeper {
    account: SlackAccount,
    rotation: TokenRotation,
    seal: TokenSeal,
    /// Beginning of the hash of the configured refresh token.
    seed: String,
    /// Key of the account in the bucket.
    key: String,
    /// Part of `/readyz`.
    part: String,
    tokens: Kv<AccountTokens>,
    leases: Kv<LeaseRecord>,
    http: reqwest::Client,
    clock: SharedClock,
    health: Health,
    instance: String,
    own: Option<OwnTokens>,
    /// Whether the bucket does not have our tokens yet, so that they are in this process alone.
    is_unsaved: bool,
    /// Whether every call of this process uses our tokens, and `/readyz` says so.
    is_told: bool,
    /// The bucket's entry at the last look, and the revision at which it can be overwritten.
    stored: (Option<AccountTokens>, u64),
    /// Time before which Slack is not asked again.
    again_at: UnixMillis,
    waits: RetryWaits,
}

// By hand: the account's secrets must not be printed.
impl std::fmt::Debug for TokenKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenKeeper({})", self.key)
    }
}

/// Opens the keepers of those of `accounts`, by name, whose tokens are rotated. The bucket's tokens are in use then, unless the
/// bucket cannot be read in time.
///
/// # Errors
/// Returns the HTTP client's error if it cannot be set up.
pub async fn open_keepers(
    accounts: &BTreeMap<String, SlackAccount>,
    context: &KeeperContext,
) -> Result<Vec<TokenKeeper>, reqwest::Error> {
    if accounts.values().all(|account| account.rotation().is_none()) {
        return Ok(Vec::new());
    }

    let http = reqwest::Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .timeout(ANSWER_TIMEOUT)
        // A redirect would show the secrets to another host.
        .redirect(reqwest::redirect::Policy::none())
        .build()?;
    let mut keepers = Vec::new();
    for (name, account) in accounts {
        if let Some(rotation) = account.rotation() {
            keepers.push(TokenKeeper::new(name, account.clone(), rotation, &http, context));
        }
    }

    let looks = async {
        for keeper in &mut keepers {
            if let Err(error) = keeper.look().await {
                let account = &keeper.key;
                tracing::warn!(account, %error, "failed to read an account's tokens; retrying");
            }
        }
    };
    if tokio::time::timeout(FIRST_LOOK, looks).await.is_err() {
        tracing::warn!("reading the accounts' tokens takes long; retrying");
    }
    Ok(keepers)
}

impl TokenKeeper {
    fn new(
        name: &str,
        account: SlackAccount,
        rotation: TokenRotation,
        http: &reqwest::Client,
        context: &KeeperContext,
    ) -> Self {
        let (first, longest) = UNANSWERED_AGAIN;
        Self {
            seal: TokenSeal::of_secret(rotation.client_secret.reveal()),
            seed: hash_token(&rotation.refresh_token),
            key: format!("{}.{}", token(SLACK), token(name)),
            part: format!("{SLACK}/{name} token"),
            tokens: context.bus.kv(ACCOUNT_TOKENS),
            leases: context.bus.kv(LEASES),
            http: http.clone(),
            clock: context.clock.clone(),
            health: context.health.clone(),
            instance: context.instance.clone(),
            own: None,
            is_unsaved: false,
            is_told: false,
            stored: (None, 0),
            again_at: UnixMillis(0),
            waits: RetryWaits::new(first, longest),
            account,
            rotation,
        }
    }

    /// Keeps the token valid until `shutdown`. Tokens that the bucket does not have yet are written first.
    pub async fn keep(mut self, shutdown: ShutdownSignal) {
        loop {
            if let Err(error) = self.step().await {
                let account = &self.key;
                tracing::warn!(account, %error, "failed to read or write an account's tokens; retrying");
            }
            tokio::select! {
                () = shutdown.requested(), if !self.is_unsaved => return,
                () = pause(self.next_look()) => {}
            }
        }
    }

    /// Returns the time until the bucket is read again.
    fn next_look(&self) -> Duration {
        let settled = self.own.as_ref().filter(|_| self.is_told && !self.is_unsaved);
        let due_in = settled.map_or(0, |own| due_in(&own.record, self.clock.now()));
        let due_in = Duration::from_millis(u64::try_from(due_in).unwrap_or(0));
        due_in.clamp(LOOK_EVERY, CALM_LOOK)
    }

    /// Looks once, and renews the token if its time has come and no other replica is at it.
    async fn step(&mut self) -> Result<(), CasError> {
        if !self.look().await? || self.clock.now() < self.again_at {
            return Ok(());
        }

        let lease_key = format!("tokens.{}", self.key);
        let record = LeaseRecord::held_by(self.instance.clone());
        let lease = match self.leases.create_ttl(&lease_key, &record, LEASE).await {
            Ok(lease) => lease,
            Err(CasError::Conflict { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };

        // Another replica may have renewed it before the lease was ours.
        let done = match self.look().await {
            Ok(true) => self.renew().await,
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        // Tokens that are not stored yet keep it until it lapses: another replica would show the used refresh token again.
        if !self.is_unsaved
            && let Err(error) = self.leases.delete(&lease_key, Some(lease)).await
        {
            tracing::debug!(account = %self.key, %error, "lease of a token was not given back");
        }
        done
    }

    /// Takes over the bucket's tokens, or writes those that it lacks. Returns whether the token is to be renewed.
    async fn look(&mut self) -> Result<bool, CasError> {
        self.stored = self.tokens.find(&self.key).await?;
        let opened = self.stored.0.as_ref().and_then(|stored| self.open(stored));
        let own = self.own.as_ref().map(|own| &own.record);

        match next_step(own, self.stored.0.as_ref(), opened.is_some(), &self.seed) {
            TokenStep::Begin => return Ok(true),
            TokenStep::Leave => {
                let other = "another replica is configured with a refresh token or client secret of its own";
                self.is_told = false;
                self.health.set_degraded(&self.part, other);
                return Ok(false);
            }
            TokenStep::Adopt => self.adopt(opened),
            TokenStep::PutBack => self.save().await?,
        }
        let now = self.clock.now();
        Ok(!self.is_unsaved && self.own.as_ref().is_some_and(|own| due_in(&own.record, now) <= 0))
    }

    /// Uses the tokens `opened` from the bucket from now on.
    fn adopt(&mut self, opened: Option<OwnTokens>) {
        let Some(opened) = opened else { return };
        self.is_unsaved = false;
        // Our own are new too if no call uses them yet: the bucket took them, and its answer was lost.
        if self.is_told && self.own.as_ref().is_some_and(|own| own.record == opened.record) {
            return;
        }
        self.again_at = UnixMillis(0);
        self.waits.reset();
        self.own = Some(opened);
        self.publish();
    }

    /// Writes our tokens into the bucket, and uses them from then on. A rival's write is looked at in the next step.
    async fn save(&mut self) -> Result<(), CasError> {
        let Some(own) = &self.own else { return Ok(()) };
        match self.tokens.update(&self.key, &own.record, self.stored.1).await {
            Ok(_) => {}
            Err(CasError::Conflict { .. }) => return Ok(()),
            Err(error) => return Err(error),
        }
        self.is_unsaved = false;
        self.publish();
        Ok(())
    }

    /// Makes our token the one that every call of this process uses.
    fn publish(&mut self) {
        let Some(own) = &self.own else { return };
        self.is_told = true;
        self.account.token.renew(own.access.clone());
        let until = own.record.expires_at.to_rfc3339();
        self.health
            .set(&self.part, true, format!("renewed; valid until {until}"));
    }

    /// Asks Slack for the next tokens, and writes them.
    async fn renew(&mut self) -> Result<(), CasError> {
        let refresh = match &self.own {
            Some(own) => own.refresh.clone(),
            None => self.rotation.refresh_token.clone(),
        };
        let asked_at = self.clock.now();
        match renew_token(&self.http, &self.account, &self.rotation, &refresh).await {
            Ok(given) => {
                self.hold(&given, asked_at);
                tracing::info!(account = %self.key, expires_in_s = given.expires_in, "a token was renewed");
                self.save().await
            }
            Err(error) => {
                let wait = match &error {
                    RenewTokenError::Refused(_) => REFUSED_AGAIN,
                    RenewTokenError::Limited(asked) => (*asked).min(MAX_ASKED),
                    RenewTokenError::Unanswered(_) => self.waits.next_wait(),
                };
                self.again_at = self.clock.now().plus(millis_of(wait));
                self.report(&error);
                Ok(())
            }
        }
    }

    /// Holds the tokens that Slack gave, asked at `at`, until they are in the bucket.
    fn hold(&mut self, given: &GivenTokens, at: UnixMillis) {
        self.own = Some(self.sealed(given, at));
        (self.is_unsaved, self.is_told) = (true, false);
        self.again_at = UnixMillis(0);
        self.waits.reset();
    }

    /// Returns the tokens that Slack gave, asked at `at`, after those that we have or that the bucket has.
    fn sealed(&self, given: &GivenTokens, at: UnixMillis) -> OwnTokens {
        let before = self.stored.0.as_ref();
        let own = self.own.as_ref().map(|own| &own.record);
        let newest = before.into_iter().chain(own).map(|record| record.generation).max();
        let plain = SealedTokens {
            access: given.access.clone(),
            refresh: given.refresh.clone(),
        };
        let plain = serde_json::to_vec(&plain).unwrap_or_default();

        let mut record = AccountTokens {
            seeds: match own {
                // Others may have gone over to it with a refresh token of theirs.
                Some(own) => own.seeds.clone(),
                None => seeds_after(before, &self.seed),
            },
            generation: newest.unwrap_or_default().saturating_add(1),
            renewed_at: at,
            expires_at: at.plus(given.expires_in.saturating_mul(1_000)),
            sealed: String::new(),
        };
        record.sealed = self.seal.seal(&self.place_of(&record), &plain);
        self.opened_as(&record, given.access.clone(), given.refresh.clone())
    }

    /// Opens an entry of the bucket; `None` if it was sealed with another secret, or says something else since.
    fn open(&self, record: &AccountTokens) -> Option<OwnTokens> {
        let plain = self.seal.open(&self.place_of(record), &record.sealed)?;
        let tokens: SealedTokens = serde_json::from_slice(&plain).ok()?;
        Some(self.opened_as(record, tokens.access, tokens.refresh))
    }

    /// Returns the text that the seal of `record` binds: its key and all that it says. A writer of the bucket without the secret
    /// cannot pass former tokens off as newer ones.
    fn place_of(&self, record: &AccountTokens) -> String {
        let (seeds, generation) = (record.seeds.join(","), record.generation);
        let (renewed_at, expires_at) = (record.renewed_at, record.expires_at);
        format!("{} {seeds} {generation} {renewed_at} {expires_at}", self.key)
    }

    fn opened_as(&self, record: &AccountTokens, access: String, refresh: String) -> OwnTokens {
        let reference = format!("KV {ACCOUNT_TOKENS} {}", self.key);
        OwnTokens {
            record: record.clone(),
            access: SecretValue::received(reference.clone(), access),
            refresh: SecretValue::received(reference, refresh),
        }
    }

    /// Reports that the token was not renewed, and until when the one in use lasts.
    fn report(&self, error: &RenewTokenError) {
        tracing::warn!(account = %self.key, %error, "a token was not renewed");
        let lasts = match &self.own {
            Some(own) => format!("the one in use ends at {}", own.record.expires_at.to_rfc3339()),
            None => "the configured one is in use".to_owned(),
        };
        let detail = format!("the token is not renewed, {lasts}: {error}");
        self.health.set_degraded(&self.part, &detail);
    }
}

#[cfg(test)]
mod tests;
