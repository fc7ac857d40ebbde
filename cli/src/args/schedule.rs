//! Arguments of `nexus schedule`.

use clap::Subcommand;

/// `nexus schedule`.
#[derive(Debug, Subcommand)]
pub enum ScheduleAction {
    /// List schedules.
    List {
        /// Only ids with this prefix: `hook:`, `persona:`, `config:`.
        #[arg(default_value = "")]
        prefix: String,
    },
    /// Show one schedule.
    Show {
        /// Id of the schedule.
        id: String,
    },
    /// Print the next times of a schedule, or of a text such as "cron 0 9 * * MON-FRI".
    Next {
        /// Id of a schedule, or a schedule as text.
        schedule: String,
        /// Time zone for a schedule given as text.
        #[arg(long, value_name = "ZONE")]
        zone: Option<String>,
        /// Maximum number of times.
        #[arg(long, default_value_t = 10, value_name = "N")]
        limit: usize,
    },
    /// Pause a schedule until it is resumed.
    Pause {
        /// Id of the schedule.
        id: String,
        /// Reason, kept with the record.
        #[arg(long, default_value = "")]
        reason: String,
    },
    /// Resume a paused schedule; missed firings are not repeated.
    Resume {
        /// Id of the schedule.
        id: String,
    },
    /// Fire a schedule once, now.
    Fire {
        /// Id of the schedule.
        id: String,
    },
    /// Fire the missed times of a past period, in order, at most 100.
    Backfill {
        /// Id of the schedule.
        id: String,
        /// Start of the period: an age (90s, 15m, 2h, 7d, 1w), an instant (2026-11-22T09:00:00Z) or Unix milliseconds.
        #[arg(long, value_name = "WHEN")]
        since: String,
        /// End of the period, exclusive, in the same form as `--since` [default: now].
        #[arg(long, value_name = "WHEN")]
        until: Option<String>,
    },
}
