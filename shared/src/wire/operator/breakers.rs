//! Requests about circuit breakers of hooks (`nexus.svc.breaker.*`), and the record of a reset. *Pure.*

use serde::{Deserialize, Serialize};
use ulid::Ulid;

use crate::breaker::Breaker;
use crate::model::time::UnixMillis;
use crate::wire::envelope::WireMessage;

/// Maximum number of breakers in one list.
pub const MAX_LISTED_BREAKERS: usize = 1_000;

/// Request of `nexus.svc.breaker.list`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ListBreakers {
    /// Whether breakers at rest are listed too: of hooks whose last error is long ago.
    pub all: bool,
    /// Only breakers behind this hook in the order of ids; absent = from the first on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
}

/// Answer of `nexus.svc.breaker.list`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakerList {
    /// Breakers in the order of their hooks' ids.
    pub breakers: Vec<Breaker>,
    /// Whether there are more behind the last one.
    #[serde(default)]
    pub more: bool,
    /// Values that cannot be read: key and error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<(String, String)>,
}

/// Request of `nexus.svc.breaker.reset`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResetBreaker {
    /// Id of the hook.
    pub hook: String,
    /// User that asks, for the record.
    pub by: String,
}

/// A record in `AUDIT`: an operator lets a hook run again. It is written before the breaker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakerRecord {
    /// Id of the hook.
    pub hook_id: String,
    /// Id of the operation.
    pub operation: Ulid,
    /// User that asked, as the request says.
    pub by: String,
    /// Time of the request.
    pub at: UnixMillis,
    /// Number of failures in a row until then.
    pub failures: u32,
}

impl WireMessage for BreakerRecord {
    const SCHEMA: &'static str = "breaker_record";
}
