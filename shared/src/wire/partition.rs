//! Assignment of sessions to parts, and of partitions to replicas: rendezvous hashing with bounded loads. *Pure.*
//!
//! Plain rendezvous hashing splits 16 partitions among three replicas as 8/4/4 (`docs/contribute/nats-facts.md`
//! "Owning"). Each replica therefore takes at most its fair share, rounded up; a partition that exceeds it goes to
//! the next replica in the partition's order of preference.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use crate::model::session::SessionRef;

use super::subject::{key_part, session_key};
use super::topology::PARTITIONS;

/// Returns the part of a session: the same for all dispatches and claims of it, for ever.
#[must_use]
pub fn session_part(session: &SessionRef) -> u16 {
    key_part(&session_key(session))
}

/// Returns the partition in the subject of a stored message (`nexus.<stream>.<partition>.…`).
#[must_use]
pub fn stored_partition(subject: &str) -> Option<u16> {
    subject.split('.').nth(2)?.parse().ok()
}

/// Returns the partition of a published message, as the server computes it: FNV-1a of the `tokens` of its subject that
/// the stream's transform names.
#[must_use]
pub fn hashed_partition<'a>(tokens: impl Iterator<Item = &'a str>) -> u16 {
    const BASIS: u32 = 0x811c_9dc5;
    const PRIME: u32 = 0x0100_0193;

    let hash = tokens
        .flat_map(str::bytes)
        .fold(BASIS, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(PRIME));
    u16::try_from(hash % u32::from(PARTITIONS)).unwrap_or(0)
}

/// A set of parts, of which there are at most 64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PartSet(u64);

impl PartSet {
    /// Returns whether `part` is in the set.
    #[must_use]
    pub const fn contains(self, part: u16) -> bool {
        part < 64 && self.0 & (1 << part) != 0
    }

    /// Returns the parts of the set, in order.
    pub fn iter(self) -> impl Iterator<Item = u16> {
        (0..64).filter(move |part| self.contains(*part))
    }

    /// Returns the number of parts in the set.
    #[must_use]
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Returns whether the set has no part.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl FromIterator<u16> for PartSet {
    fn from_iter<I: IntoIterator<Item = u16>>(parts: I) -> Self {
        let known = parts.into_iter().filter(|part| *part < 64);
        Self(known.fold(0, |bits, part| bits | 1 << part))
    }
}

/// Returns the owner of each of `partitions`, by index; empty if there are no members. All replicas that see the same
/// members, in any order, compute the same owners.
#[must_use]
pub fn partition_owners(partitions: u16, members: &[String]) -> Vec<String> {
    let mut members: Vec<&str> = members.iter().map(String::as_str).collect();
    // Every replica must use the same order, without duplicates.
    members.sort_unstable();
    members.dedup();

    if members.is_empty() {
        return Vec::new();
    }

    let share = usize::from(partitions).div_ceil(members.len());
    let mut load: BTreeMap<&str, usize> = BTreeMap::new();

    (0..partitions)
        .map(|partition| {
            let mut ranked: Vec<(u64, &str)> = members.iter().map(|m| (owner_weight(partition, m), *m)).collect();
            ranked.sort_unstable_by(|a, b| b.cmp(a));
            let owner = ranked
                .into_iter()
                .map(|(_, member)| member)
                .find(|member| load.get(member).copied().unwrap_or(0) < share)
                // Never used: the shares together cover all partitions.
                .unwrap_or(members[0]);

            *load.entry(owner).or_default() += 1;
            owner.to_owned()
        })
        .collect()
}

fn owner_weight(partition: u16, member: &str) -> u64 {
    let mut hash = Sha256::new();
    hash.update(partition.to_be_bytes());
    hash.update(member.as_bytes());
    let digest = hash.finalize();
    u64::from_be_bytes([
        digest[0], digest[1], digest[2], digest[3], digest[4], digest[5], digest[6], digest[7],
    ])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::topology::SESSION_PARTS;

    proptest! {
        #[test]
        fn shares_are_fair_and_agreed(count in 1_usize..9, seed in any::<u32>()) {
            let mut members: Vec<String> = (0..count).map(|i| format!("m-{seed}-{i}")).collect();
            let owners_here = partition_owners(64, &members);
            members.reverse();
            prop_assert_eq!(&partition_owners(64, &members), &owners_here);
            for member in &members {
                let held = owners_here.iter().filter(|owner| *owner == member).count();
                prop_assert!(held <= 64_usize.div_ceil(count), "{} holds {}", member, held);
            }
        }

        #[test]
        fn a_joining_replica_moves_few(count in 1_usize..8) {
            let mut members: Vec<String> = (0..count).map(|i| format!("replica-{i}")).collect();
            let before = partition_owners(64, &members);
            members.push("newcomer".to_owned());
            let after = partition_owners(64, &members);
            let moved = before.iter().zip(&after).filter(|(b, a)| b != a).count();
            prop_assert!(moved <= 64_usize.div_ceil(count + 1) * 2, "{} moved", moved);
        }
    }

    #[test]
    fn sessions_are_spread_over_all_parts() {
        let mut counts = vec![0; usize::from(SESSION_PARTS)];
        for number in 0..1_600 {
            let session = SessionRef {
                persona: "default".to_owned(),
                session: format!("telegram:dm:{number}"),
            };
            counts[usize::from(session_part(&session))] += 1;
        }
        assert!(counts.iter().all(|count| (60..=140).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_set_has_the_parts_that_it_was_made_of() {
        let set: PartSet = [3, 0, 63, 3].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 3, 63]);
        assert_eq!(
            (set.len(), set.contains(3), set.contains(4), set.contains(64)),
            (3, true, false, false)
        );
        assert!(PartSet::default().is_empty() && !set.is_empty());
    }

    #[test]
    fn nobody_there_owns_nothing() {
        assert!(partition_owners(64, &[]).is_empty());
    }
}
