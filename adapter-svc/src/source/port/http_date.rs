//! The time that a platform's server tells in its answers. Source: RFC 9110 §6.6.1.

use reqwest::header::{DATE, HeaderMap};
use shared::model::time::UnixMillis;

/// Returns the time in the header `Date`; `None` if there is none that can be read.
pub(crate) fn read_http_date(headers: &HeaderMap) -> Option<UnixMillis> {
    let date = headers.get(DATE)?.to_str().ok()?;
    let time = httpdate::parse_http_date(date).ok()?;
    let since = time.duration_since(std::time::UNIX_EPOCH).ok()?;
    i64::try_from(since.as_millis()).ok().map(UnixMillis)
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

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
}
