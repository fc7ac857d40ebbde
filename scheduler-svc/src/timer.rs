//! Durable timers: JetStream's message schedules.
//!
//! A timer is one message on `nexus.schedule.<id>`; the server publishes it on `nexus.fire.<id>` when it is due, also
//! after a restart. Nobody is elected: whoever sets a timer says which one it may replace, by compare-and-set on its
//! subject, so that what a stale replica sets never replaces what a later one did. A fired message may come twice, and
//! the server strips its message id: the payload's own id decides (`docs/contribute/nats-facts.md` "KV and schedules").
//! Source: `docs/design/schedules.md` §2.3.

use std::time::Duration;

use shared::bus::{Bus, Outgoing, PublishError, ReadStreamError, Stored};
use shared::model::time::UnixMillis;
use shared::wire::envelope::Wire;
use shared::wire::subject;
use shared::wire::topology::streams;

/// How long a fired message is kept for whoever is to handle it.
const FIRED_TTL: Duration = Duration::from_secs(7 * 24 * 3_600);
/// How often a timer is tried to be set while others set it, before the caller is told.
const TRIES: u32 = 16;
/// When the server publishes the message.
const SCHEDULE: &str = "Nats-Schedule";
/// On which subject.
const SCHEDULE_TARGET: &str = "Nats-Schedule-Target";
/// How long it keeps it there.
const SCHEDULE_TTL: &str = "Nats-Schedule-TTL";

/// Where a timer is set, and where it is published when it fires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimerPlace {
    /// Its subject; one timer at most stands there.
    pub set: String,
    /// The subject that it fires on.
    pub fires: String,
}

impl TimerPlace {
    /// Of the schedule `id`.
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
    /// What is set cannot be read.
    #[error(transparent)]
    Read(#[from] ReadStreamError),
    /// The server refuses it, or does not answer.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// Others set it all the time.
    #[error("timer {place} is set by others all the time")]
    Contended {
        /// Its subject.
        place: String,
    },
}

/// What became of a wish to set or withdraw a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimerOutcome {
    /// It is as wished.
    Done,
    /// One that does not yield stands there, and stays.
    Newer,
}

/// Sets and withdraws timers.
#[derive(Debug, Clone)]
pub struct Timers {
    bus: Bus,
}

impl Timers {
    /// On `bus`.
    #[must_use]
    pub const fn new(bus: Bus) -> Self {
        Self { bus }
    }

    /// Sets a timer at `place` that fires at `due` and says `payload`, in place of one that `yields`. Where it is due
    /// already it fires at once.
    ///
    /// # Errors
    /// [`SetTimerError`]; what was set before then stands or not.
    pub async fn put<T: Wire + PartialEq>(
        &self,
        place: &TimerPlace,
        due: UnixMillis,
        payload: &T,
        yields: impl Fn(&T) -> bool,
    ) -> Result<TimerOutcome, SetTimerError> {
        let out = Outgoing::new(place.set.clone(), payload)
            .header(SCHEDULE, format!("@at {}", rfc3339(due)))
            .header(SCHEDULE_TARGET, &place.fires)
            .header(SCHEDULE_TTL, format!("{}s", FIRED_TTL.as_secs()));
        let mut expected = 0;
        for _ in 0..TRIES {
            match self.bus.publish(out.clone().expect_last(expected)).await {
                Ok(_) => return Ok(TimerOutcome::Done),
                Err(PublishError::WrongLastSequence { .. }) => {}
                Err(error) => return Err(error.into()),
            }

            expected = match self.standing::<T>(place).await? {
                None => 0,
                // The first try had made it, or another replica set the very same.
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

    /// Withdraws the timer at `place` if it `yields`. What has fired has fired.
    ///
    /// # Errors
    /// [`SetTimerError`]; it then stands or not.
    pub async fn cancel<T: Wire>(
        &self,
        place: &TimerPlace,
        yields: impl Fn(&T) -> bool,
    ) -> Result<TimerOutcome, SetTimerError> {
        for _ in 0..TRIES {
            let Some((stored, set)) = self.standing::<T>(place).await? else {
                return Ok(TimerOutcome::Done);
            };
            if set.is_some_and(|set| !yields(&set)) {
                return Ok(TimerOutcome::Newer);
            }

            // Deleted by its sequence: a later one has another.
            self.bus.delete_message(streams::SCHEDULES, stored.sequence).await?;
        }

        Err(SetTimerError::Contended {
            place: place.set.clone(),
        })
    }

    /// The timer at `place`, where one is set.
    ///
    /// # Errors
    /// [`ReadStreamError`] where the server cannot be asked.
    pub async fn get<T: Wire>(&self, place: &TimerPlace) -> Result<Option<T>, ReadStreamError> {
        Ok(self.standing(place).await?.and_then(|(_, set)| set))
    }

    async fn standing<T: Wire>(&self, place: &TimerPlace) -> Result<Option<(Stored, Option<T>)>, ReadStreamError> {
        let stored = self.bus.last_on_subject(streams::SCHEDULES, &place.set).await?;
        Ok(stored.map(|stored| {
            let set = stored.decode::<T>();
            if let Err(error) = &set {
                tracing::warn!(timer = place.set, %error, "timer cannot be read, it is replaced");
            }
            (stored, set.ok())
        }))
    }
}

/// `at` as the server reads it; what lies beyond the years that RFC 3339 knows is put at its end.
fn rfc3339(at: UnixMillis) -> String {
    const LAST: i64 = 253_402_207_200_000;
    let at = jiff::Timestamp::from_millisecond(at.0.clamp(0, LAST)).unwrap_or_default();
    format!("{at:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_written_as_the_server_reads_them() {
        assert_eq!(rfc3339(UnixMillis(1_700_000_000_050)), "2023-11-14T22:13:20.050Z");
        assert_eq!(rfc3339(UnixMillis(-5)), "1970-01-01T00:00:00.000Z");
        assert!(rfc3339(UnixMillis(i64::MAX)).starts_with("9999-"));
    }
}
