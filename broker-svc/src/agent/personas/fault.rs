//! One fault of a `personas.yaml`. *Pure.*

use shared::process::config::KeyFault;

pub(super) const fn persona_fault(key: String, problem: String) -> KeyFault {
    KeyFault { key, problem }
}
