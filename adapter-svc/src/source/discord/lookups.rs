//! Calls that a reader makes beside its socket: where something happened, the bot's roles there, and pages of histories.
//!
//! A call that fails waits in its own scope ([`super::call_waits`]); a dispatch that needs it is held for a while, and then
//! left to its channel's history.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use serde_json::Value;
use shared::model::time::millis_of;
use shared::platform::discord::{ChannelPlace, DIRECT_CHANNEL, DISCORD};

use super::MessagePlace;
use super::account_context::{SourceResult, stopped};
use super::api_error::ApiCallError;
use super::call_waits::CallRoute;
use super::drive::HeldDispatch;
use super::finished_call::FinishedCall;
use super::reader::GatewayReader;
use super::taken::TakenBatch;
use crate::source::port::SourceGap;

/// Longest wait of a call for which dispatches are held. For a longer one they are left to the history.
const HOLD_AT_MOST: Duration = Duration::from_mins(1);

/// Maximum number of channels of which it is remembered that what is missing is told.
const MAX_TOLD: usize = 1_000;

impl GatewayReader<'_> {
    /// Returns the call that must be made before the events of `data`, a dispatch of `kind` in `channel`, can be made;
    /// `None` = everything is known. `is_live` says that it came from the gateway, which names the guild.
    pub(super) fn missing_lookup(&self, channel: &str, kind: &str, data: &Value, is_live: bool) -> Option<CallRoute> {
        let place = match self.places.channel(channel) {
            Some(known) => known.clone(),
            None => match told_place(kind, data, is_live) {
                Some(told) => told,
                None => return Some(CallRoute::Place(channel.to_owned())),
            },
        };
        let guild = place.guild_id.filter(|_| mentions_roles(data))?;
        let is_known = self.places.roles(&guild).is_some();
        (!is_known).then_some(CallRoute::Roles(guild))
    }

    /// Returns what surrounds `data`, a dispatch of `kind` in `channel`, as far as it is known.
    pub(super) fn surroundings(&self, channel: &str, kind: &str, data: &Value) -> MessagePlace {
        let known = self.places.channel(channel).cloned();
        let place = known.or_else(|| told_place(kind, data, true)).unwrap_or_default();
        let guild = place.guild_id.as_deref().filter(|_| mentions_roles(data));
        let own_roles = guild.and_then(|guild| self.places.roles(guild)).cloned();
        MessagePlace {
            place,
            own_roles: own_roles.unwrap_or_default(),
        }
    }

    /// Holds `taken`, which happened in `channel`, until what it needs is known.
    pub(super) fn defer(&mut self, channel: &str, taken: HeldDispatch, batch: &mut TakenBatch) {
        let is_full = self.deferred.push(channel, taken, self.instant());
        if is_full || self.held_too_long(channel).is_some() {
            self.leave_out(channel, batch);
        }
    }

    /// Returns the end of the wait of the call that the dispatches of `channel` need, if they cannot be held until then or
    /// were held for too long.
    fn held_too_long(&self, channel: &str) -> Option<Instant> {
        let now = self.instant();
        let (front, since) = self.deferred.front(channel)?;
        let lookup = self.missing_lookup(channel, &front.kind, &front.data, true)?;
        let until = self.waits.wait_of(&lookup, now).unwrap_or(now);
        let must_wait = until.saturating_duration_since(now);
        let has_waited = now.saturating_duration_since(since);
        (must_wait > HOLD_AT_MOST || has_waited > HOLD_AT_MOST).then_some(until)
    }

    /// Lets go of the dispatches of `channel` that are held: messages are read from its history, and a gap says that others
    /// are missing.
    fn leave_out(&mut self, channel: &str, batch: &mut TakenBatch) {
        let now = self.instant();
        // What comes next may be held as long, and told by the same gap.
        let until = self.held_too_long(channel).unwrap_or(now).max(now + HOLD_AT_MOST);
        let (mut messages, mut others) = (0_u64, 0_u64);
        for held in self.deferred.take(channel) {
            let id = held.dispatch.data.get("id").and_then(Value::as_str);
            match id.and_then(|id| id.parse().ok()) {
                Some(id) if held.dispatch.kind == "MESSAGE_CREATE" => {
                    self.progress.leave_to_history(channel, id);
                    messages += 1;
                }
                _ => others += 1,
            }
        }

        tracing::warn!(
            account = self.context.name,
            channel,
            messages,
            others,
            "it is not known where something happened; messages are read from the history, and others are missing"
        );
        metrics::counter!("nexus_source_left_out_total", "source" => DISCORD).increment(messages + others);
        self.told_missing.retain(|_, told| *told > now);
        let is_told = self.told_missing.contains_key(channel);
        batch.gaps.extend(self.progress.take_left_out(self.now()));
        if others == 0 || is_told {
            return;
        }

        if self.told_missing.len() < MAX_TOLD {
            self.told_missing.insert(channel.to_owned(), until);
        }
        let left = millis_of(until.saturating_duration_since(now));
        let from = self.now();
        batch.gaps.push(SourceGap {
            from,
            to: from.plus(left),
            item: Some(channel.to_owned()),
            reason: format!(
                "Discord does not say what channel {channel} is: its messages of this time are read from its history; \
                 edits, deletions, reactions and presses of buttons are missing"
            ),
        });
    }

    /// Leaves the messages that are held to the histories of their channels, because the session that would bring them
    /// again is over. They stay held too: what they need may become known soon.
    pub(super) fn leave_deferred_to_histories(&mut self) {
        let messages = self.deferred.messages();
        for (channel, id) in messages {
            self.progress.leave_to_history(&channel, id);
        }
    }

    /// Starts the calls that may be made at `now`.
    pub(super) fn start_calls(&mut self, now: Instant) {
        if !self.sink.is_held() {
            return;
        }
        if !self.is_looking_up {
            let mut wanted = self.wanted_lookups(now).into_iter();
            if let Some(route) = wanted.find(|route| self.waits.wait_of(route, now).is_none()) {
                self.is_looking_up = true;
                self.start_lookup(route);
            }
        }
        if !self.is_reading_history && now >= self.backfill_from {
            self.start_history(now);
        }
    }

    /// Returns the calls that dispatches and histories need, in the order in which they are made.
    fn wanted_lookups(&self, now: Instant) -> Vec<CallRoute> {
        let fronts = self.deferred.fronts();
        let held = fronts.filter_map(|(channel, front)| self.missing_lookup(channel, &front.kind, &front.data, true));
        let roles = self.wanted_roles.iter().cloned().map(CallRoute::Roles);
        let histories = (now >= self.backfill_from).then(|| self.progress.pending_after(self.last_read.as_deref()));
        let places = histories.into_iter().flatten().map(|(channel, _)| channel);
        let places = places.filter(|channel| self.places.channel(channel).is_none());
        held.chain(roles).chain(places.cloned().map(CallRoute::Place)).collect()
    }

    fn start_lookup(&mut self, route: CallRoute) {
        let (client, own) = (self.client.clone(), self.bot.user_id.clone());
        let call = async move {
            match route {
                CallRoute::Roles(guild) => {
                    let found = client.own_roles(&guild, &own).await;
                    FinishedCall::Roles(guild, found)
                }
                CallRoute::Place(channel) | CallRoute::History(channel) => {
                    let found = client.channel(&channel).await;
                    FinishedCall::Place(channel, found)
                }
            }
        };
        self.calls.push(call.boxed());
    }

    /// Returns the time from `now` until a call may be made that waits; `None` = nothing waits but for calls under way.
    pub(super) fn until_next_call(&self, now: Instant) -> Option<Duration> {
        let pending = !self.progress.position.pending.is_empty();
        let is_wanted = pending || !self.deferred.is_empty() || !self.wanted_roles.is_empty();
        if !is_wanted {
            return None;
        }

        let listed = Some(self.backfill_from).filter(|from| pending && *from > now);
        let next = self.waits.next_end(now).into_iter().chain(listed).min()?;
        Some(next.saturating_duration_since(now))
    }

    /// Takes in the call `finished`, and stores what it leads to.
    pub(super) async fn take_call(&mut self, finished: FinishedCall) -> SourceResult<()> {
        let (channel, after, page) = match finished {
            FinishedCall::Place(channel, answer) => {
                self.is_looking_up = false;
                let route = CallRoute::Place(channel.clone());
                // Of a channel of which the vendor says nothing, the dispatch names the server.
                let front = self.deferred.front(&channel);
                let guild = front.and_then(|(front, _)| front.data.get("guild_id")?.as_str().map(str::to_owned));
                let fallback = ChannelPlace {
                    guild_id: guild,
                    ..ChannelPlace::default()
                };
                let Some(place) = self.settle_call(&route, answer, fallback)? else {
                    return self.store_overdue().await;
                };

                self.places.note_channel(&channel, place);
                return self.store_released().await;
            }
            FinishedCall::Roles(guild, answer) => {
                self.is_looking_up = false;
                let route = CallRoute::Roles(guild.clone());
                let Some(roles) = self.settle_call(&route, answer, Vec::new())? else {
                    return self.store_overdue().await;
                };

                self.wanted_roles.remove(&guild);
                let roles: BTreeSet<String> = roles.into_iter().collect();
                self.places.note_roles(&guild, roles);
                return self.store_released().await;
            }
            FinishedCall::History(channel, after, answer) => {
                self.is_reading_history = false;
                (channel, after, answer)
            }
        };
        self.take_page(&channel, after, page).await
    }

    /// Returns the result of the call of `route` that ended with `answer`, or `fallback` if the vendor refuses it for good;
    /// `None` = it is made again after a wait.
    ///
    /// # Errors
    /// Returns the end of the source if the token is not accepted.
    fn settle_call<T>(
        &mut self,
        route: &CallRoute,
        answer: Result<T, ApiCallError>,
        fallback: T,
    ) -> SourceResult<Option<T>> {
        match answer {
            Ok(found) => {
                self.waits.note_success(route);
                Ok(Some(found))
            }
            Err(error) if error.is_final() => {
                self.waits.note_refused(route, &error, self.instant());
                Ok(Some(fallback))
            }
            Err(error) => {
                self.note_failure(route, &error)?;
                Ok(None)
            }
        }
    }

    /// Notes that a call of `route` failed with `error`, and is to be made again after a wait.
    ///
    /// # Errors
    /// Returns the end of the source if the token is not accepted.
    pub(super) fn note_failure(&mut self, route: &CallRoute, error: &ApiCallError) -> SourceResult<()> {
        if let ApiCallError::Unauthorized(_) = error {
            return Err(stopped(error.to_string()));
        }
        let jitter = self.context.ids.draw_jitter();
        self.waits.note_failure(route, error, jitter, self.instant());
        tracing::warn!(account = self.context.name, call = route.describe(), %error, "call of Discord's API failed; retrying");
        self.report();
        Ok(())
    }

    /// Stores the events of the dispatches whose calls have been made.
    async fn store_released(&mut self) -> SourceResult<()> {
        let mut batch = TakenBatch::default();
        let mut is_released = false;
        for channel in self.deferred.channels() {
            while let Some(held) = self.release(&channel) {
                self.add_events(&channel, held, &mut batch);
                is_released = true;
            }
        }

        if is_released {
            self.release_texts(&mut batch);
            self.store_batch(batch).await?;
        }
        self.report();
        Ok(())
    }

    /// Removes the first of the dispatches of `channel` that are held, if everything that it needs is known.
    fn release(&mut self, channel: &str) -> Option<HeldDispatch> {
        let (front, _) = self.deferred.front(channel)?;
        match self.missing_lookup(channel, &front.kind, &front.data, true) {
            Some(_) => None,
            None => self.deferred.pop(channel),
        }
    }

    /// Lets go of the dispatches whose calls must wait too long.
    async fn store_overdue(&mut self) -> SourceResult<()> {
        let mut batch = TakenBatch::default();
        let channels = self.deferred.channels();
        let overdue: Vec<String> = channels
            .into_iter()
            .filter(|channel| self.held_too_long(channel).is_some())
            .collect();
        for channel in &overdue {
            self.leave_out(channel, &mut batch);
        }
        if overdue.is_empty() {
            return Ok(());
        }
        self.store_batch(batch).await
    }
}

/// Returns the place in `data`, a dispatch of `kind`, as far as it says it itself; `None` = it does not. `is_live` says that
/// it came from the gateway, which names the guild of what happened in one.
fn told_place(kind: &str, data: &Value, is_live: bool) -> Option<ChannelPlace> {
    if kind == "INTERACTION_CREATE"
        && let Some(channel) = data.get("channel").filter(|channel| channel.is_object())
    {
        let told: Option<ChannelPlace> = serde::Deserialize::deserialize(channel).ok();
        let mut told = told?;
        let guild = data.get("guild_id").and_then(Value::as_str).map(str::to_owned);
        told.guild_id = told.guild_id.or(guild);
        return Some(told).filter(|told| told.is_direct() || told.guild_id.is_some());
    }

    let is_direct = is_live && data.get("guild_id").and_then(Value::as_str).is_none();
    is_direct.then(|| ChannelPlace {
        kind: DIRECT_CHANNEL,
        ..ChannelPlace::default()
    })
}

/// Returns whether `data` mentions roles.
pub(super) fn mentions_roles(data: &Value) -> bool {
    let roles = data.get("mention_roles").and_then(Value::as_array);
    roles.is_some_and(|roles| !roles.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_an_interaction_says_what_its_channel_is() {
        let channel = json!({"id": "9", "type": 11, "parent_id": "8", "guild_id": "20"});
        let data = json!({"guild_id": "20", "channel": channel});
        let told = told_place("INTERACTION_CREATE", &data, true).expect("told");
        assert_eq!((told.kind, told.thread_parent()), (11, Some("8")));
        // A member can write fields of any name into no message, but nothing of one is taken for a place either.
        assert_eq!(told_place("MESSAGE_CREATE", &data, true), None);

        let bare = json!({"guild_id": "20", "channel": {"id": "9", "type": 0}});
        let told = told_place("INTERACTION_CREATE", &bare, true).expect("told");
        assert_eq!(told.guild_id.as_deref(), Some("20"));
        let direct = json!({"channel": {"id": "9", "type": 1}});
        assert!(told_place("INTERACTION_CREATE", &direct, true).is_some_and(|told| told.is_direct()));

        // Without a guild the gateway means a direct channel; a history says nothing.
        assert!(told_place("MESSAGE_CREATE", &json!({}), true).is_some_and(|told| told.is_direct()));
        assert_eq!(told_place("MESSAGE_CREATE", &json!({}), false), None);
        assert_eq!(told_place("MESSAGE_CREATE", &data, true), None);
    }
}
