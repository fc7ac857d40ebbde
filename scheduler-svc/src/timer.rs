//! Durable timers, on JetStream's message schedules.
//!
//! A timer is one message on `nexus.schedule.<id>`. The server publishes it on `nexus.fire.<id>` when it is due, also
//! after a restart. No replica is elected: the caller states which timer it may replace, by compare-and-set on its
//! subject, so that a stale replica never replaces the timer of a later one. A fired message may arrive twice, and the
//! server strips its message id: the payload's own id decides (`docs/contribute/nats-facts.md` "KV and schedules").
//! Source: `docs/design/schedules.md` §2.3.

use std::time::Duration;

use shared::bus::{Bus, OutgoingMessage, PublishError, ReadStreamError, StoredMessage};
use shared::model::time::UnixMillis;
use shared::wire::envelope::WireMessage;
use shared::wire::subject;
use shared::wire::topology::streams;

/// How long a fired message is kept for its handler.
const FIRED_TTL: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Time from a new connection to the next look for timers that are lost, as those can be that are due while the server
/// restarts: a timer of that moment counts as overdue then.
pub(crate) const AFTER_CONNECTION: Duration = Duration::from_secs(75);
/// Number of attempts to set a timer while other writers set it, before the caller gets the error.
const TRIES: u32 = 16;
/// Header with the time at which the server publishes the message.
const SCHEDULE: &str = "Nats-Schedule";
/// Header with the subject on which the server publishes it.
const SCHEDULE_TARGET: &str = "Nats-Schedule-Target";
/// Header with the time for which the server keeps it there.
const SCHEDULE_TTL: &str = "Nats-Schedule-TTL";

/// Subjects of a timer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimerPlace {
    /// Subject on which it is set; holds at most one timer.
    pub set: String,
    /// Subject on which it fires.
    pub fires: String,
}

impl TimerPlace {
    /// Returns the subjects of the schedule `id`.
    #[must_use]
    pub fn of_schedule(id: &str) -> Self {
        Self {
            set: subject::schedule(id),
            fires: subject::fire(id),
        }
    }
}

/// A timer could not be set or withdrawn.
#[derive(Debug, thiserror::Error)]
pub enum SetTimerError {
    /// The current timer cannot be read.
    #[error(transparent)]
    Read(#[from] ReadStreamError),
    /// The server rejects the timer, or does not answer.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// Other writers set the timer too often.
    #[error("timer {place}: too many concurrent updates")]
    Contended {
        /// Subject of the timer.
        place: String,
    },
}

/// Outcome of setting or withdrawing a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimerOutcome {
    /// The timer is set or withdrawn as requested.
    Done,
    /// A timer that must not be replaced is set there, and stays.
    Newer,
}

/// Sets and withdraws timers.
#[derive(Debug, Clone)]
pub struct TimerStore {
    bus: Bus,
}

impl TimerStore {
    /// Builds the timers on `bus`.
    #[must_use]
    pub const fn new(bus: Bus) -> Self {
        Self { bus }
    }

    /// Sets a timer at `place` that fires at `due` with `payload`, in place of one that `yields`. If it is due
    /// already, it fires at once.
    ///
    /// # Errors
    /// Returns [`SetTimerError`]. The former timer may still be set then, or not.
    pub async fn set_timer<T: WireMessage + PartialEq>(
        &self,
        place: &TimerPlace,
        due: UnixMillis,
        payload: &T,
        yields: impl Fn(&T) -> bool,
    ) -> Result<TimerOutcome, SetTimerError> {
        let out = OutgoingMessage::new(place.set.clone(), payload)
            .header(SCHEDULE, format!("@at {}", format_rfc3339(due)))
            .header(SCHEDULE_TARGET, &place.fires)
            .header(SCHEDULE_TTL, format!("{}s", FIRED_TTL.as_secs()));
        // 0 = no timer may be stored at this place yet.
        let mut expected = 0;
        for _ in 0..TRIES {
            match self.bus.publish(out.clone().expect_last(expected)).await {
                Ok(_) => return Ok(TimerOutcome::Done),
                Err(PublishError::WrongLastSequence { .. }) => {}
                Err(error) => return Err(error.into()),
            }

            expected = match self.stored_timer::<T>(place).await? {
                None => 0,
                // The first try was stored, or another replica set the same timer.
                Some((stored, Some(set)))
                    if set == *payload && stored.headers.get(SCHEDULE) == out.headers.get(SCHEDULE) =>
                {
                    return Ok(TimerOutcome::Done);
                }
                Some((_, Some(set))) if !yields(&set) => return Ok(TimerOutcome::Newer),
                Some((stored, _)) => stored.sequence,
            };
        }

        Err(SetTimerError::Contended {
            place: place.set.clone(),
        })
    }

    /// Withdraws the timer at `place` if it `yields`. A timer that has fired cannot be withdrawn.
    ///
    /// # Errors
    /// Returns [`SetTimerError`]. The timer may still be set then, or not.
    pub async fn cancel_timer<T: WireMessage>(
        &self,
        place: &TimerPlace,
        yields: impl Fn(&T) -> bool,
    ) -> Result<TimerOutcome, SetTimerError> {
        for _ in 0..TRIES {
            let Some((stored, set)) = self.stored_timer::<T>(place).await? else {
                return Ok(TimerOutcome::Done);
            };
            if set.is_some_and(|set| !yields(&set)) {
                return Ok(TimerOutcome::Newer);
            }

            // Deleted by its sequence, because a later timer has another one.
            self.bus.delete_message(streams::SCHEDULES, stored.sequence).await?;
        }

        Err(SetTimerError::Contended {
            place: place.set.clone(),
        })
    }

    /// Returns the timer at `place`, if one is set.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if the server cannot be asked.
    pub async fn get<T: WireMessage>(&self, place: &TimerPlace) -> Result<Option<T>, ReadStreamError> {
        Ok(self.stored_timer(place).await?.and_then(|(_, set)| set))
    }

    async fn stored_timer<T: WireMessage>(
        &self,
        place: &TimerPlace,
    ) -> Result<Option<(StoredMessage, Option<T>)>, ReadStreamError> {
        let stored = self.bus.last_on_subject(streams::SCHEDULES, &place.set).await?;
        Ok(stored.map(|stored| {
            let set = stored.decode::<T>();
            if let Err(error) = &set {
                tracing::warn!(timer = place.set, %error, "unreadable timer replaced");
            }
            (stored, set.ok())
        }))
    }
}

/// Formats `at` for the server. Times outside the years of RFC 3339 are clamped.
fn format_rfc3339(at: UnixMillis) -> String {
    const LAST: i64 = 253_402_207_200_000;
    let at = jiff::Timestamp::from_millisecond(at.0.clamp(0, LAST)).unwrap_or_default();
    format!("{at:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_written_as_the_server_reads_them() {
        assert_eq!(
            format_rfc3339(UnixMillis(1_700_000_000_050)),
            "2023-11-14T22:13:20.050Z"
        );
        assert_eq!(format_rfc3339(UnixMillis(-5)), "1970-01-01T00:00:00.000Z");
        assert!(format_rfc3339(UnixMillis(i64::MAX)).starts_with("9999-"));
    }
}
