//! The page of a card's link. *Pure.*

use shared::model::approval::{ApprovalStatus, Confirmation};

use super::link::Link;

const HEAD: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
    content=\"width=device-width\"><meta name=\"robots\" content=\"noindex\"><title>Approval</title>\
    <body style=\"font:1rem/1.5 system-ui;max-width:40rem;margin:2rem auto;padding:0 1rem\">";

/// Returns `text` escaped for HTML text and quoted attributes.
#[must_use]
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

/// Returns a page with one message.
#[must_use]
pub fn said(text: &str) -> String {
    format!("{HEAD}<p>{}</p>", escaped(text))
}

/// Returns the page of `confirmation`, with two buttons if it is pending. `at` and `stamp` prove the page's origin.
#[must_use]
pub fn question(confirmation: &Confirmation, link: &Link, at: i64, stamp: &str) -> String {
    let request = &confirmation.request;
    let head = format!(
        "{HEAD}<h1>{} wants to run {}</h1><pre style=\"white-space:pre-wrap\">{}</pre><p>{} {}</p>",
        escaped(&confirmation.requested_by),
        escaped(&request.tool),
        escaped(&request.arguments.to_string()),
        escaped(&request.policy),
        escaped(confirmation.status.name()),
    );

    if confirmation.status != ApprovalStatus::Pending {
        return head;
    }

    let field = |name: &str, value: &str| format!("<input type=hidden name={name} value=\"{}\">", escaped(value));
    let fields = [
        field("by", &link.by),
        field("channel", &link.channel),
        field("hash", &link.hash),
        field("until", &link.until.to_string()),
        field("sig", &link.sig),
        field("at", &at.to_string()),
        field("stamp", stamp),
    ]
    .concat();

    let action = format!("/approvals/{}/decide", escaped(&request.id));
    format!(
        "{head}<form method=post action=\"{action}\">{fields}<button name=say value=approve>Approve</button> \
         <button name=say value=deny>Deny</button></form>"
    )
}
