//! Reading the decisions about pairings in `AUDIT`.

use super::connect::Bus;
use super::error::ReadStreamError;
use crate::model::pairing::PairingRecord;
use crate::wire::topology::streams;

/// Subjects of all decisions.
const DECISIONS: &str = "nexus.audit.pairing.>";
/// Number of records that are read at once.
const PAGE: usize = 500;

impl Bus {
    /// Returns all decisions about pairings, oldest first. A record that cannot be decoded is left out and logged.
    ///
    /// # Errors
    /// Returns [`ReadStreamError`] if `AUDIT` cannot be read.
    pub async fn pairing_records(&self) -> Result<Vec<PairingRecord>, ReadStreamError> {
        let (mut records, mut from) = (Vec::new(), 1);
        loop {
            let page = self.read_history(streams::AUDIT, DECISIONS, from, PAGE).await?;
            let Some(last) = page.last() else { return Ok(records) };
            from = last.sequence + 1;

            for stored in &page {
                match stored.decode() {
                    Ok(record) => records.push(record),
                    Err(error) => tracing::warn!(sequence = stored.sequence, %error, "unreadable record of a pairing"),
                }
            }
        }
    }
}
