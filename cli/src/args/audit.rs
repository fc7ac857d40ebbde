//! Arguments of `nexus audit`.

use clap::Args;

/// `nexus audit`.
#[derive(Debug, Args)]
pub struct AuditOptions {
    /// Only records of this topic: approval, backfill, breaker, dlq, held, intent, owner, pairing.
    #[arg(long)]
    pub topic: Option<String>,
    /// With `--topic`: only records about this id, number or hook.
    #[arg(long, requires = "topic", value_name = "ID")]
    pub about: Option<String>,
    /// Maximum number of records.
    #[arg(long, default_value_t = 50, value_name = "N")]
    pub limit: usize,
}
