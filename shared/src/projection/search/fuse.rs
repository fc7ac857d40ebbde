//! Reciprocal rank fusion: merges lists of ranked results. *Pure.*

use std::collections::HashMap;

/// Weight of lower ranks: the usual constant of reciprocal rank fusion.
const K: f64 = 60.0;

/// An event and its fused score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RankedHit {
    pub(crate) sequence: u64,
    /// Score from 0 to 1; 1 = the best of every list.
    pub(crate) score: f64,
}

/// Fuses `lists`, each the best first. Of equal scores the newer event comes first.
pub(crate) fn reciprocal_rank(lists: &[&[u64]]) -> Vec<RankedHit> {
    let best = lists.len() as f64 / (K + 1.0);
    let mut scores: HashMap<u64, f64> = HashMap::new();
    for list in lists {
        for (rank, sequence) in list.iter().enumerate() {
            *scores.entry(*sequence).or_default() += 1.0 / (K + 1.0 + rank as f64);
        }
    }

    let mut ranked: Vec<RankedHit> = scores
        .into_iter()
        .map(|(sequence, sum)| RankedHit {
            sequence,
            score: (sum / best).min(1.0),
        })
        .collect();

    ranked.sort_by(|a, b| b.score.total_cmp(&a.score).then(b.sequence.cmp(&a.sequence)));
    ranked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_both_know_comes_first_and_scores_stay_within_bounds() {
        let fused = reciprocal_rank(&[&[1, 2, 3], &[1, 4, 2]]);
        let order: Vec<u64> = fused.iter().map(|ranked| ranked.sequence).collect();
        assert_eq!(order, [1, 2, 4, 3]);
        assert!((fused[0].score - 1.0).abs() < 1e-12);
        assert!(fused.iter().all(|ranked| ranked.score > 0.0 && ranked.score <= 1.0));
        assert_eq!(reciprocal_rank(&[&[]]), []);
        assert!((reciprocal_rank(&[&[9]])[0].score - 1.0).abs() < 1e-12);
    }
}
