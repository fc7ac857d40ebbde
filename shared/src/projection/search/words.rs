//! Conversion of a query in words to an FTS5 expression. *Pure.*
//!
//! The expression gates the fusion: an event counts as found by words only if it contains at least [`SHARE`] of the
//! query's meaningful words. A plain OR would find every event that shares one common word, and such a list spoils the
//! results of the vectors (`docs/adr/0007-read-model-in-sqlite.md`).

/// Share of the query's words that an event must contain.
const SHARE: f64 = 0.6;

/// Maximum number of words of a query that count: more would make the expression long, and the longest words are the
/// most specific.
const MAX_WORDS: usize = 8;

/// Words without a meaning of their own.
const STOPWORDS: &str = " a about after all also am an and any are as at be because been before being but by can could did do does \
    doing down for from get got had has have having he her here him his how i if in into is it its just let me more most my no nor \
    not now of off on once only or other our out over own please s same she should so some such t than that the their them then \
    there these they this those through to too under until up us very was we were what when where which while who whom why will \
    with would you your ";

/// Returns the FTS5 expression for `query`, or `None` if it contains no word.
pub(crate) fn fts_expression(query: &str) -> Option<String> {
    let words = meaningful_words(query);
    if words.is_empty() {
        return None;
    }
    let needed = (words.len() as f64 * SHARE).ceil() as usize;
    let mut groups = Vec::new();
    choose_words(&words, needed.max(1), &mut Vec::new(), &mut groups);
    Some(groups.join(" OR "))
}

/// Returns the words that count, in their order; all words if none is meaningful.
fn meaningful_words(query: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for word in query
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
    {
        let word = word.to_lowercase();
        if !all.contains(&word) {
            all.push(word);
        }
    }

    let mut some: Vec<String> = all.iter().filter(|word| !is_stopword(word)).cloned().collect();
    if some.is_empty() {
        some = all;
    }

    while some.len() > MAX_WORDS {
        // Of several shortest words the last is removed.
        let shortest = (0..some.len()).rev().min_by_key(|&at| some[at].chars().count());
        shortest.map(|at| some.remove(at));
    }

    some
}

fn is_stopword(word: &str) -> bool {
    STOPWORDS
        .split(' ')
        .any(|stopword| !stopword.is_empty() && stopword == word)
}

/// Adds every combination of `needed` of `words`, each as one AND.
fn choose_words<'a>(words: &'a [String], needed: usize, taken: &mut Vec<&'a str>, groups: &mut Vec<String>) {
    if needed == 0 {
        let quoted: Vec<String> = taken.iter().map(|word| format!("\"{word}\"")).collect();
        groups.push(format!("({})", quoted.join(" AND ")));
        return;
    }

    for at in 0..words.len().saturating_sub(needed - 1) {
        taken.push(&words[at]);
        choose_words(&words[at + 1..], needed - 1, taken, groups);
        taken.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_of_the_words_are_asked_for() {
        for (query, expected) in [
            ("flight", "(\"flight\")"),
            ("Is my flight late?", "(\"flight\" AND \"late\")"),
            (
                "red green blue",
                "(\"red\" AND \"green\") OR (\"red\" AND \"blue\") OR (\"green\" AND \"blue\")",
            ),
            (
                "to be or not to be",
                "(\"to\" AND \"be\" AND \"or\") OR (\"to\" AND \"be\" AND \"not\") OR (\"to\" AND \"or\" AND \"not\") OR (\"be\" AND \"or\" AND \"not\")",
            ),
            (
                "\"quoted\" NEAR(x*",
                "(\"quoted\" AND \"near\") OR (\"quoted\" AND \"x\") OR (\"near\" AND \"x\")",
            ),
        ] {
            assert_eq!(fts_expression(query).as_deref(), Some(expected), "{query}");
        }

        assert_eq!(fts_expression(" ?!\0 "), None);
    }

    #[test]
    fn a_long_query_stays_bounded() {
        let query: String = (0..1_000).map(|n| format!("word{n} ")).collect();
        let groups = fts_expression(&query).expect("words").split(" OR ").count();
        assert_eq!(groups, 56, "5 of 8");
    }
}
