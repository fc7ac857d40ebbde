//! One fault of a `personas.yaml`. *Pure.*

use std::fmt;

/// Something that is wrong with a `personas.yaml`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersonaFault {
    /// Dotted path of the key.
    pub key: String,
    /// What was found and what is expected.
    pub problem: String,
}

impl fmt::Display for PersonaFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.problem)
    }
}

pub(super) fn fault(key: String, problem: String) -> PersonaFault {
    PersonaFault { key, problem }
}
