//! Files of the chat page: markup, scripts and style, each served with the content security policy.

use axum::extract::Path;
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};

use crate::error::RequestRejection;

/// Content security policy of the page: it may load its own script and style and connect to its own host, nothing else.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

fn asset(kind: &'static str, text: &'static str) -> Response {
    let headers: [(HeaderName, &str); 4] = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, text).into_response()
}

/// Returns the HTML of the chat page.
pub async fn page() -> Response {
    asset("text/html; charset=utf-8", include_str!("../../../page/webchat.html"))
}

/// Returns the script `name` of the page.
///
/// # Errors
/// Returns [`RequestRejection::UnknownPath`] for any other name.
pub async fn script(Path(name): Path<String>) -> Result<Response, RequestRejection> {
    let text = match name.as_str() {
        "webchat.js" => include_str!("../../../page/webchat.js"),
        "conversation.js" => include_str!("../../../page/conversation.js"),
        "sidebar.js" => include_str!("../../../page/sidebar.js"),
        "lines.js" => include_str!("../../../page/lines.js"),
        "markdown.js" => include_str!("../../../page/markdown.js"),
        "memory.js" => include_str!("../../../page/memory.js"),
        _unknown => return Err(RequestRejection::UnknownPath),
    };
    Ok(asset("text/javascript; charset=utf-8", text))
}

/// Returns the style sheet of the page.
pub async fn style() -> Response {
    asset("text/css; charset=utf-8", include_str!("../../../page/webchat.css"))
}
