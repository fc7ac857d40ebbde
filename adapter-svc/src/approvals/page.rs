//! The page of a card's link. *Pure.*

use shared::model::approval::{ApprovalStatus, ConfirmationTerms};

use super::link::LinkClaims;

const HEAD: &str = "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
    content=\"width=device-width\"><meta name=\"robots\" content=\"noindex\"><title>Approval</title>\
    <body style=\"font:1rem/1.5 system-ui;max-width:40rem;margin:2rem auto;padding:0 1rem\">";

/// Returns `text` escaped for HTML text and quoted attributes.
#[must_use]
pub fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

/// Returns a page with one message.
#[must_use]
pub fn message_page(text: &str) -> String {
    format!("{HEAD}<p>{}</p>", escape_html(text))
}

/// Returns the page of `confirmation`, with two buttons if it is pending. `at` and `stamp` prove the page's origin.
#[must_use]
pub fn question_page(confirmation: &ConfirmationTerms, link: &LinkClaims, at: i64, stamp: &str) -> String {
    let request = &confirmation.request;
    let head = format!(
        "{HEAD}<h1>{} wants to run {}</h1><pre style=\"white-space:pre-wrap\">{}</pre><p>{} {}</p>",
        escape_html(&confirmation.requested_by),
        escape_html(&request.tool),
        escape_html(&request.arguments.to_string()),
        escape_html(&request.policy),
        escape_html(confirmation.status.name()),
    );

    // A decided approval has no buttons: they could only fail.
    if confirmation.status != ApprovalStatus::Pending {
        return head;
    }

    // The form carries everything that the link had, because the server keeps no state for it.
    let field = |name: &str, value: &str| format!("<input type=hidden name={name} value=\"{}\">", escape_html(value));
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

    let action = format!("/approvals/{}/decide", escape_html(&request.id));
    format!(
        "{head}<form method=post action=\"{action}\">{fields}<button name=say value=approve>Approve</button> \
         <button name=say value=deny>Deny</button></form>"
    )
}
