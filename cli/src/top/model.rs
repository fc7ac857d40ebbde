//! The board that follows from two looks at the bus. *Pure.*

use serde::Serialize;
use shared::model::time::UnixMillis;

/// Largest number of waiting dispatches that are counted for one session.
pub const MAX_COUNTED: usize = 100;

/// Position of a stream at one look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamLook {
    /// Name of the stream.
    pub name: &'static str,
    /// Sequence of its last message.
    pub last: u64,
    /// Number of messages in the stream.
    pub messages: u64,
    /// Whether its messages wait to be processed.
    pub waits: bool,
}

/// A session that has something to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SessionLook {
    /// Persona and key of the session.
    pub session: String,
    /// Model calls of the running turn; `None` if no turn runs.
    pub model_calls: Option<u32>,
    /// Start of the running turn.
    pub began_at: Option<UnixMillis>,
    /// Approval that the turn waits for.
    pub awaits: Option<String>,
    /// Dispatches that wait, the one that runs included; at most [`MAX_COUNTED`] are counted.
    pub queued: usize,
}

/// State of the bus at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// Time of the look.
    pub at: UnixMillis,
    /// Streams that are shown.
    pub streams: Vec<StreamLook>,
    /// Number of events that were stored after the last one that was evaluated.
    pub behind: u64,
    /// Number of all sessions that have something to run.
    pub busy: usize,
    /// The first of these sessions.
    pub sessions: Vec<SessionLook>,
}

/// One line of the board about a stream.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rate {
    /// Name of the stream.
    pub stream: &'static str,
    /// Messages per second since the look before; `None` for the first look.
    pub per_second: Option<f64>,
    /// Number of messages in the stream.
    pub messages: u64,
    /// Whether its messages wait to be processed.
    pub waits: bool,
}

/// Everything that the command shows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Board {
    /// Time of the look.
    pub at: UnixMillis,
    /// One line for each stream.
    pub streams: Vec<Rate>,
    /// Approximate number of events that wait to be evaluated.
    pub events_behind: u64,
    /// Number of sessions that have something to run.
    pub busy_sessions: usize,
    /// The first of these sessions, those with the most waiting dispatches first.
    pub sessions: Vec<SessionLook>,
}

impl Board {
    /// Returns the board of `look`, with rates since `before`.
    #[must_use]
    pub fn of(before: Option<&Look>, look: &Look) -> Self {
        let rate = |stream: &StreamLook| {
            let before = before?;
            let known = before.streams.iter().find(|known| known.name == stream.name)?;
            let millis = u32::try_from(look.at.since(before.at))
                .ok()
                .filter(|millis| *millis > 0)?;
            let stored = u32::try_from(stream.last.saturating_sub(known.last)).unwrap_or(u32::MAX);

            Some(f64::from(stored) * 1_000.0 / f64::from(millis))
        };

        let streams = look.streams.iter().map(|stream| Rate {
            stream: stream.name,
            per_second: rate(stream),
            messages: stream.messages,
            waits: stream.waits,
        });

        let mut sessions = look.sessions.clone();
        sessions.sort_by(|one, other| {
            other
                .queued
                .cmp(&one.queued)
                .then_with(|| one.session.cmp(&other.session))
        });

        Self {
            at: look.at,
            streams: streams.collect(),
            events_behind: look.behind,
            busy_sessions: look.busy,
            sessions,
        }
    }
}

impl SessionLook {
    /// Returns a description of the session's work at `now`.
    #[must_use]
    pub fn doing(&self, now: UnixMillis) -> String {
        let seconds = self.began_at.map_or(0, |began| now.since(began).max(0) / 1_000);
        match (&self.awaits, self.model_calls) {
            (Some(approval), _) => format!("waits for approval {approval}"),
            (None, Some(0)) => format!("runs, {seconds} s"),
            (None, Some(calls)) => format!("runs, {seconds} s, {calls} model calls"),
            (None, None) => "waits".to_owned(),
        }
    }

    /// Returns a description of the session's waiting dispatches.
    #[must_use]
    pub fn queue(&self) -> String {
        if self.queued >= MAX_COUNTED {
            format!("{MAX_COUNTED}+")
        } else {
            self.queued.to_string()
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn look(at: i64, events: u64, queued: usize) -> Look {
        let stream = |name, last, waits| StreamLook {
            name,
            last,
            messages: last / 2,
            waits,
        };

        let session = |name: &str, queued, model_calls| SessionLook {
            session: format!("default/{name}"),
            model_calls,
            began_at: model_calls.map(|_| UnixMillis(at - 2_500)),
            awaits: None,
            queued,
        };

        Look {
            at: UnixMillis(at),
            streams: vec![stream("EVENTS", events, false), stream("DELIVERIES", 8, true)],
            behind: 3,
            busy: 7,
            sessions: vec![session("a", 1, None), session("b", queued, Some(2))],
        }
    }

    #[test]
    fn rates_are_what_was_stored_between_two_looks() {
        let (one, two) = (look(10_000, 100, 2), look(12_000, 150, 200));
        let first = Board::of(None, &one);
        assert_eq!(first.streams[0].per_second, None);

        let board = Board::of(Some(&one), &two);
        let rates: Vec<Option<f64>> = board.streams.iter().map(|stream| stream.per_second).collect();
        assert_eq!(rates, [Some(25.0), Some(0.0)]);
        assert_eq!(
            Board::of(Some(&two), &two).streams[0].per_second,
            None,
            "no time has passed"
        );

        let sessions: Vec<&str> = board.sessions.iter().map(|session| session.session.as_str()).collect();
        assert_eq!(sessions, ["default/b", "default/a"], "most to do first");
        assert_eq!(board.sessions[0].queue(), "100+");
        assert_eq!(board.sessions[0].doing(two.at), "runs, 2 s, 2 model calls");
        assert_eq!(board.sessions[1].doing(two.at), "waits");
    }
}
