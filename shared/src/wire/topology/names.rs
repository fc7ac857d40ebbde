//! Names of streams and buckets. *Pure.*

/// Names of the streams.
pub mod streams {
    /// The Event Ledger: all events.
    pub const EVENTS: &str = "EVENTS";
    /// Dispatches of fired hooks.
    pub const DISPATCHES: &str = "DISPATCHES";
    /// One message per session that has work.
    pub const CLAIMS: &str = "CLAIMS";
    /// The Agent Ledger: the history of all sessions.
    pub const LEDGER: &str = "LEDGER";
    /// Replies on their way to a channel.
    pub const DELIVERIES: &str = "DELIVERIES";
    /// Replies of destinations that failed at first, kept in order so that their partition goes on.
    pub const PARKED: &str = "PARKED";
    /// Receipts: the outcomes of deliveries.
    pub const RECEIPTS: &str = "RECEIPTS";
    /// Outcomes of every hook for every event.
    pub const INVOCATIONS: &str = "INVOCATIONS";
    /// Timers of schedules, intents and approvals.
    pub const SCHEDULES: &str = "SCHEDULES";
    /// Audit records: decisions and changes, with their author.
    pub const AUDIT: &str = "AUDIT";
    /// Dead letters: messages that were given up.
    pub const DLQ: &str = "DLQ";
}

/// Names of the KV buckets.
pub mod buckets {
    /// Holders of partitions and tasks.
    pub const LEASES: &str = "leases";
    /// Replicas that are running.
    pub const MEMBERS: &str = "members";
    /// Tries of the message that may have crashed its handler, per partition.
    pub const ATTEMPTS: &str = "attempts";
    /// The hook registry: sources and metadata.
    pub const HOOKS: &str = "hooks";
    /// Run-time state of hooks.
    pub const HOOK_STATE: &str = "hook_state";
    /// Model usage of hooks, by day.
    pub const HOOK_SPEND: &str = "hook_spend";
    /// Results of hooks that called the model or searched, by event.
    pub const HOOK_RESULTS: &str = "hook_results";
    /// Counts of rate limits within turns, by hook, tool and user.
    pub const HOOK_LIMITS: &str = "hook_limits";
    /// Accounts that delivery-svc is configured with.
    pub const CHANNELS: &str = "channels";
    /// Accounts whose token a platform refuses.
    pub const STOPPED_ACCOUNTS: &str = "stopped_accounts";
    /// Renewed tokens of accounts, sealed.
    pub const ACCOUNT_TOKENS: &str = "account_tokens";
    /// Circuit breakers of hooks.
    pub const BREAKERS: &str = "breakers";
    /// Approvals and their state.
    pub const APPROVALS: &str = "approvals";
    /// Intents of agents, their marks and budget books.
    pub const INTENTS: &str = "intents";
    /// Schedules with their progress.
    pub const SCHEDULES: &str = "schedules";
    /// Identities, and the owner's links.
    pub const IDENTITIES: &str = "identities";
    /// Overrides of sessions, such as a quarantine.
    pub const SESSION_OVERRIDES: &str = "session_overrides";
    /// Decisions that a restore leaves open.
    pub const RESTORE: &str = "restore";
    /// Floor of the sweeper, and marks that the agent of a session is not reachable.
    pub const SESSION_CHECKPOINTS: &str = "session_checkpoints";
    /// Witnesses: the last known positions of streams with done-markers.
    pub const POSITIONS: &str = "positions";
    /// How far each source of an account has come.
    pub const WATERMARKS: &str = "watermarks";
    /// The last backfill of each account.
    pub const BACKFILLS: &str = "backfills";
    /// Paired strangers of an account, and those with a code.
    pub const PAIRINGS: &str = "pairings";
    /// Messages whose outcome is unknown, until an operator decides.
    pub const HELD: &str = "held";
    /// Events with files that are still to be fetched.
    pub const FETCHES: &str = "fetches";
    /// Events that platforms have posted, until the replica that holds the account has stored them.
    pub const POSTS: &str = "posts";
    /// Merged events, and the messages that are parts of them.
    pub const MERGES: &str = "merges";
    /// Threads that began with a message to an account.
    pub const THREADS: &str = "threads";
}

/// Names of the object buckets.
pub mod objects {
    /// Copies of the read model, for replicas that have none.
    pub const SNAPSHOTS: &str = "snapshots";
    /// Maximum size of a copy, in bytes.
    pub const MAX_SNAPSHOT_BYTES: u64 = 1 << 29;
    /// Maximum size of all copies, in bytes: two that are kept, one that is being made, and the overhead of the
    /// pieces. Servers reserve this much of their storage.
    pub const MAX_SNAPSHOTS_BYTES: i64 = (3 << 29) + (1 << 26);
    /// Files of messages, by the SHA-256 of their bytes.
    pub const ATTACHMENTS: &str = "attachments";
    /// Maximum size of all files of messages, in bytes, so that they never fill the disk of the other streams. Servers
    /// reserve this much of their storage.
    pub const MAX_ATTACHMENTS_BYTES: i64 = 10 << 30;
}
