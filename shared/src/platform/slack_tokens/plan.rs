//! Which tokens of an account are the newest, and when they are renewed. *Pure.*

use crate::model::channel::AccountTokens;
use crate::model::time::UnixMillis;

/// Time before the end of a token from which on it is renewed, in milliseconds: as long before as Slack's own libraries do it.
/// If Slack refuses, an operator has this long before the account stops.
const AHEAD_MS: i64 = 2 * 3_600_000;

/// Maximum number of configured refresh tokens that an entry remembers.
const MAX_SEEDS: usize = 8;

/// The next step for an account's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TokenStep {
    /// Use the tokens of the bucket.
    Adopt,
    /// Write our tokens into the bucket, which has none or older ones: they were not written yet, or it was restored.
    PutBack,
    /// Renew the token with the configured refresh token, which no replica has used.
    Begin,
    /// Leave the bucket alone: a process with another configuration wrote the entry.
    Leave,
}

/// Returns the next step for a replica with the tokens `own`, and the configured refresh token with the hash `seed`, if the bucket
/// has `stored`, which it `can_open`.
pub(super) fn next_step(
    own: Option<&AccountTokens>,
    stored: Option<&AccountTokens>,
    can_open: bool,
    seed: &str,
) -> TokenStep {
    let Some(stored) = stored else {
        return if own.is_some() {
            TokenStep::PutBack
        } else {
            TokenStep::Begin
        };
    };
    let is_ours = can_open && stored.seeds.iter().any(|known| known == seed);

    match own {
        Some(own) if is_ahead(own, stored) => TokenStep::PutBack,
        Some(_) | None if is_ours => TokenStep::Adopt,
        Some(_) => TokenStep::Leave,
        // The replica that started last has the newest configuration.
        None => TokenStep::Begin,
    }
}

/// Returns whether `own` came out of `stored`: by a newer configuration, even if `stored` was renewed meanwhile, or by later
/// renewals.
fn is_ahead(own: &AccountTokens, stored: &AccountTokens) -> bool {
    let newest_in = |of: &AccountTokens, other: &AccountTokens| {
        let newest = of.seeds.last();
        newest.is_none_or(|newest| other.seeds.contains(newest))
    };
    newest_in(stored, own) && (!newest_in(own, stored) || own.generation > stored.generation)
}

/// Returns the time from `now` until `tokens` are to be renewed, in milliseconds; none is left if it is not above 0.
pub(super) fn due_in(tokens: &AccountTokens, now: UnixMillis) -> i64 {
    let lifetime = tokens.expires_at.since(tokens.renewed_at);
    tokens.expires_at.since(now).saturating_sub(AHEAD_MS.min(lifetime / 2))
}

/// Returns the hashes of the refresh tokens of which tokens come that are renewed with that of hash `seed`, after `stored`.
pub(super) fn seeds_after(stored: Option<&AccountTokens>, seed: &str) -> Vec<String> {
    let known = stored.map(|stored| stored.seeds.as_slice()).unwrap_or_default();
    let mut seeds: Vec<String> = known.iter().filter(|known| *known != seed).cloned().collect();
    seeds.push(seed.to_owned());
    let surplus = seeds.len().saturating_sub(MAX_SEEDS);
    seeds.split_off(surplus)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    fn tokens(generation: u64, seeds: &[&str]) -> AccountTokens {
        AccountTokens {
            seeds: seeds.iter().map(|seed| (*seed).to_owned()).collect(),
            generation,
            renewed_at: UnixMillis(0),
            expires_at: UnixMillis(12 * HOUR),
            sealed: String::new(),
        }
    }

    #[test]
    fn the_newest_tokens_of_the_same_chain_are_used() {
        let (older, newer) = (tokens(4, &["a"]), tokens(5, &["a"]));
        for (own, stored, expected) in [
            (None, None, TokenStep::Begin),
            (None, Some(&newer), TokenStep::Adopt),
            (Some(&older), Some(&newer), TokenStep::Adopt),
            // Another replica was faster with the same refresh token: the stored tokens count.
            (Some(&newer), Some(&newer), TokenStep::Adopt),
            // Not written yet, or the bucket was restored or lost.
            (Some(&newer), Some(&older), TokenStep::PutBack),
            (Some(&newer), None, TokenStep::PutBack),
        ] {
            assert_eq!(next_step(own, stored, true, "a"), expected, "{own:?} {stored:?}");
        }
    }

    #[test]
    fn a_new_refresh_token_begins_a_chain_that_the_others_follow() {
        let former = tokens(5, &["a"]);
        assert_eq!(next_step(None, Some(&former), true, "b"), TokenStep::Begin);
        let next = tokens(6, &["a", "b"]);
        assert_eq!(seeds_after(Some(&former), "b"), next.seeds);
        assert_eq!(next_step(Some(&next), Some(&former), true, "b"), TokenStep::PutBack);

        // One of the former chain was renewed meanwhile.
        let rival = tokens(6, &["a"]);
        assert_eq!(next_step(Some(&next), Some(&rival), true, "b"), TokenStep::PutBack);
        assert_eq!(
            next_step(Some(&tokens(7, &["a"])), Some(&next), true, "a"),
            TokenStep::Adopt
        );

        // A replica that still has the former configuration goes over, and one that starts with it does not begin a new chain.
        assert_eq!(next_step(Some(&former), Some(&next), true, "a"), TokenStep::Adopt);
        assert_eq!(next_step(None, Some(&next), true, "a"), TokenStep::Adopt);

        // Neither of two strangers overwrites the other.
        let stranger = tokens(1, &["c"]);
        assert_eq!(next_step(Some(&next), Some(&stranger), true, "b"), TokenStep::Leave);
        assert_eq!(next_step(Some(&stranger), Some(&next), true, "c"), TokenStep::Leave);
    }

    #[test]
    fn what_cannot_be_opened_is_not_used() {
        let stored = tokens(5, &["a"]);
        assert_eq!(next_step(None, Some(&stored), false, "a"), TokenStep::Begin);
        assert_eq!(
            next_step(Some(&tokens(4, &["a"])), Some(&stored), false, "a"),
            TokenStep::Leave
        );
    }

    #[test]
    fn a_token_is_renewed_two_hours_before_its_end_or_halfway() {
        let long = tokens(1, &["a"]);
        assert_eq!(due_in(&long, UnixMillis(10 * HOUR - 1)), 1);
        assert_eq!(due_in(&long, UnixMillis(10 * HOUR)), 0);
        assert!(due_in(&long, UnixMillis(100 * HOUR)) < 0);
        let short = AccountTokens {
            expires_at: UnixMillis(HOUR),
            ..tokens(1, &["a"])
        };
        assert_eq!(due_in(&short, UnixMillis(0)), HOUR / 2);
    }

    #[test]
    fn a_chain_remembers_a_bounded_number_of_refresh_tokens() {
        let mut stored = tokens(1, &["0"]);
        for number in 1..20 {
            stored.seeds = seeds_after(Some(&stored), &number.to_string());
        }
        assert_eq!(stored.seeds, ["12", "13", "14", "15", "16", "17", "18", "19"]);
        assert_eq!(seeds_after(Some(&stored), "12").last().map(String::as_str), Some("12"));
    }
}
