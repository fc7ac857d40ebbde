//! Answers of servers that are not ours: their bodies within bounds, their time, and the wait that they ask for.
//!
//! Source: RFC 9110 §5.6.7, §6.6.1, §10.2.3.

use std::time::{Duration, UNIX_EPOCH};

use reqwest::Response;
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};

use crate::model::time::UnixMillis;

/// The reason why a body was not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadBodyError {
    /// The connection failed, or the time was over. The value may have the URL.
    #[error("failed to read the answer: {0}")]
    Lost(#[source] reqwest::Error),
    /// The body is too long.
    #[error("more than {most} bytes")]
    TooLong {
        /// Maximum size, in bytes.
        most: usize,
    },
}

/// Reads the body of `response`, which has at most `most` bytes.
///
/// # Errors
/// Returns [`ReadBodyError`] if the body breaks off, or is longer.
pub async fn read_bounded(response: &mut Response, most: usize) -> Result<Vec<u8>, ReadBodyError> {
    let mut body = Vec::new();
    read_start(response, &mut body, most.saturating_add(1))
        .await
        .map_err(ReadBodyError::Lost)?;
    if body.len() > most {
        return Err(ReadBodyError::TooLong { most });
    }
    Ok(body)
}

/// Reads the first `most` bytes of the body of `response` into `body`, which is empty. What has arrived before an error, or
/// before the future is dropped, is there.
///
/// # Errors
/// Returns the client's error if the body breaks off before them.
pub async fn read_start(response: &mut Response, body: &mut Vec<u8>, most: usize) -> Result<(), reqwest::Error> {
    while body.len() < most
        && let Some(chunk) = response.chunk().await?
    {
        let room = most - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
    }
    Ok(())
}

/// Returns the time in the header `Date`; `None` if there is none that can be read.
#[must_use]
pub fn read_http_date(headers: &HeaderMap) -> Option<UnixMillis> {
    parse_http_date(headers.get(DATE)?.to_str().ok()?)
}

/// Returns the wait in the header `Retry-After`; `None` if there is none that can be read. A date is compared with the header
/// `Date`, so that the server's clock need not be ours.
#[must_use]
pub fn read_retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?;
    match read_http_date(headers) {
        Some(now) => parse_retry_after(value, now),
        None => parse_seconds(value),
    }
}

/// Parses a `Retry-After` header: seconds, or an HTTP date (in the past = no wait), compared with `now`. Returns `None` for
/// other values. Fractions of a second are read too, which providers send.
#[must_use]
pub fn parse_retry_after(value: &str, now: UnixMillis) -> Option<Duration> {
    if let Some(wait) = parse_seconds(value) {
        return Some(wait);
    }
    let until = parse_http_date(value.trim())?;
    Some(Duration::from_millis(u64::try_from(until.since(now)).unwrap_or(0)))
}

fn parse_seconds(value: &str) -> Option<Duration> {
    let seconds = value.trim().parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn parse_http_date(text: &str) -> Option<UnixMillis> {
    let time = httpdate::parse_http_date(text).ok()?;
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since.as_millis()).ok().map(UnixMillis)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reqwest::header::{HeaderName, HeaderValue};

    use super::*;

    const NOW: UnixMillis = UnixMillis(784_111_777_000);

    /// Returns an answer with `body`, as a server sends it.
    fn answer(body: &str) -> Response {
        axum::http::Response::new(body.to_owned()).into()
    }

    #[tokio::test]
    async fn a_body_has_at_most_its_maximum_size() {
        let read = read_bounded(&mut answer("12345"), 5).await;
        assert_eq!(read.expect("short enough"), b"12345");
        assert_eq!(read_bounded(&mut answer(""), 0).await.expect("nothing"), b"");

        let error = read_bounded(&mut answer("12345"), 4).await.expect_err("too long");
        assert!(matches!(error, ReadBodyError::TooLong { most: 4 }), "{error}");
        assert_eq!(error.to_string(), "more than 4 bytes");
    }

    #[tokio::test]
    async fn of_a_long_body_the_start_is_read() {
        for (most, expected) in [(0, ""), (4, "1234"), (5, "12345"), (6, "12345")] {
            let mut body = Vec::new();
            read_start(&mut answer("12345"), &mut body, most).await.expect("read");
            assert_eq!(body, expected.as_bytes());
        }
    }

    #[test]
    fn the_time_of_the_server_is_in_its_answers() {
        let read = |text: &'static str| {
            let headers = HeaderMap::from_iter([(DATE, HeaderValue::from_static(text))]);
            read_http_date(&headers).map(|time| time.0)
        };
        assert_eq!(read("Tue, 14 Nov 2023 22:13:20 GMT"), Some(1_700_000_000_000));
        assert_eq!([read(""), read("yesterday")], [None, None]);
        assert_eq!(read_http_date(&HeaderMap::new()), None);
    }

    #[test]
    fn a_wait_is_in_seconds_or_until_a_date() {
        for (value, expected) in [
            ("7", Some(7_000)),
            (" 7 ", Some(7_000)),
            ("0.5", Some(500)),
            ("Sun, 06 Nov 1994 08:49:39 GMT", Some(2_000)),
            ("Sun, 06 Nov 1994 08:49:30 GMT", Some(0)),
            ("-1", None),
            ("NaN", None),
            ("soon", None),
            ("", None),
        ] {
            let expected = expected.map(Duration::from_millis);
            assert_eq!(parse_retry_after(value, NOW), expected, "{value:?}");
        }
    }

    #[test]
    fn a_date_is_compared_with_the_clock_of_the_server() {
        let read = |headers: &[(HeaderName, &'static str)]| {
            let headers = headers.iter().cloned();
            let headers: HeaderMap = headers
                .map(|(name, value)| (name, HeaderValue::from_static(value)))
                .collect();
            read_retry_after(&headers).map(|wait| wait.as_secs())
        };
        let until = (RETRY_AFTER, "Sun, 06 Nov 1994 08:49:39 GMT");
        let date = (DATE, "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(read(&[until.clone(), date.clone()]), Some(2));
        assert_eq!(read(&[(RETRY_AFTER, "9"), date.clone()]), Some(9));
        assert_eq!(read(&[(RETRY_AFTER, "9")]), Some(9));
        assert_eq!([read(&[until]), read(&[date]), read(&[])], [None, None, None]);
    }

    proptest! {
        #[test]
        fn any_value_is_read(value in ".*", now in any::<i64>()) {
            let _ = parse_retry_after(&value, UnixMillis(now));
        }
    }
}
