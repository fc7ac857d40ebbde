//! Errors with their causes, in one line: for logs, and for answers to people. *Pure.*

use std::error::Error;

/// Returns `error` and its causes, outermost first, separated by `: `.
///
/// ```
/// use shared::error_chain::describe_error;
///
/// #[derive(Debug, thiserror::Error)]
/// #[error("failed to read the spool")]
/// struct ReadSpoolError(#[source] std::io::Error);
///
/// let error = ReadSpoolError(std::io::Error::other("disk full"));
/// assert_eq!(describe_error(&error), "failed to read the spool: disk full");
/// ```
#[must_use]
pub fn describe_error(error: &dyn Error) -> String {
    describe_causes(&error.to_string(), error)
}

/// Returns `text`, which stands for `error`, and the causes of `error`. A cause that the line ends with already is left
/// out: some libraries repeat it in the text of the outer error.
#[must_use]
pub fn describe_causes(text: &str, error: &dyn Error) -> String {
    let mut line = text.to_owned();
    for cause in std::iter::successors(error.source(), |&cause| cause.source()) {
        let cause = cause.to_string();
        if !line.ends_with(&cause) {
            line.push_str(": ");
            line.push_str(&cause);
        }
    }

    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<Self>>,
    }

    /// Returns an error with `texts`, outermost first.
    fn layers(texts: &[&'static str]) -> Layer {
        let (text, inner) = texts.split_first().expect("at least one");
        let source = (!inner.is_empty()).then(|| Box::new(layers(inner)));
        Layer { text, source }
    }

    #[test]
    fn each_cause_is_named_once() {
        assert_eq!(describe_error(&layers(&["alone"])), "alone");
        assert_eq!(describe_error(&layers(&["a", "b", "c"])), "a: b: c");
        assert_eq!(describe_error(&layers(&["a: b", "b", "c"])), "a: b: c");
        assert_eq!(describe_causes("timed out", &layers(&["a", "b"])), "timed out: b");
    }
}
