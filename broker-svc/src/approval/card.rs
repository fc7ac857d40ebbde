//! The card that shows an approval to humans, and the code with which they reply. *Pure.*

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::Sha256;
use shared::model::approval::{
    ApprovalStatus, AskedIn, CARD, CardReason, ConfirmationTerms, DeciderScope, ShownCard, decision_interactive,
};
use shared::model::approval_api::link_text;
use shared::model::dispatch::{DeliveryContext, derived_ulid};
use shared::model::identity::Identities;
use shared::model::reply::{Reply, ReplyAction};
use shared::platform::accounts::is_platform;
use shared::wire::unknown::UnknownFields;
use ulid::Ulid;

use super::reply::SHOWN_DIGITS;
use super::scope::describe_scope;
use crate::agent::message_text::shorten_text;
use crate::config::{ApprovalsConfig, LinkConfig};

/// Number of characters of a reply code, from the alphabet of ULIDs, which has no two that look alike.
const CODE_LETTERS: usize = 8;
/// Maximum text of the arguments on a card, bytes of JSON. Platforms show them as code, in which nothing is escaped.
const MAX_ARGUMENTS: usize = 700;

/// Maximum length of the words of a person or an agent on a card, in bytes. The card must fit into one message, also if
/// the platform needs a mark before each character: a plan of several parts is kept with its code and its link.
const MAX_WORDS: usize = 300;

/// Maximum length of a name on a card, in bytes.
const MAX_NAME: usize = 64;

/// Returns a new reply code: the last characters of `random`, from a ULID's random part.
#[must_use]
pub fn mint_code(random: Ulid) -> String {
    let mut letters = random.to_string();
    letters.split_off(letters.len() - CODE_LETTERS)
}

/// Returns `code` as people write it: `K7Q2-M9PX`.
#[must_use]
pub fn format_code(code: &str) -> String {
    match (code.get(..CODE_LETTERS / 2), code.get(CODE_LETTERS / 2..)) {
        (Some(first), Some(rest)) => format!("{first}-{rest}"),
        (Some(_), None) | (None, _) => code.to_owned(),
    }
}

/// Returns the code of `confirmation` as people write it; empty if the question was never asked.
fn code_of(confirmation: &ConfirmationTerms) -> String {
    confirmation.trail.code.as_deref().map(format_code).unwrap_or_default()
}

/// Returns the cards of `confirmation` that are to be shown for the reason `why`: in the conversation that waits, and to the
/// persons who may decide, if the configuration has a destination of theirs. An escalation goes to the owner. The same
/// input gives the same ids.
#[must_use]
pub fn plan_cards(
    confirmation: &ConfirmationTerms,
    why: CardReason,
    identities: &Identities,
    config: &ApprovalsConfig,
) -> Vec<ShownCard> {
    let Some(asked) = confirmation.request.asked_in.as_deref() else {
        return Vec::new();
    };
    let (waits, persons) = match why {
        CardReason::Asked => (true, decider_ids(&asked.scope, identities)),
        CardReason::Escalated => (false, decider_ids(&DeciderScope::Owner, identities)),
    };

    // Two persons may share a place: it gets one card.
    let mut all: Vec<(DeliveryContext, Vec<String>)> = Vec::new();
    for person in persons {
        let Some(place) = config.places.get(&person) else {
            continue;
        };
        match all.iter_mut().find(|(known, _)| known == place) {
            Some((_, sharing)) => sharing.push(person),
            None => all.push((place.clone(), vec![person])),
        }
    }
    // A person without a place of their own sees the card in the conversation that waits.
    if (waits || all.is_empty()) && !all.iter().any(|(known, _)| *known == asked.place) {
        all.push((asked.place.clone(), Vec::new()));
    }

    all.retain(|(place, _)| !place.channel.is_empty());
    let card = |(place, persons)| ShownCard {
        id: card_id(confirmation, why, &place),
        reason: why,
        place,
        persons,
    };
    all.into_iter().map(card).collect()
}

/// Returns the id of a card, derived from approval and place: a repeated card is delivered once.
fn card_id(confirmation: &ConfirmationTerms, why: CardReason, place: &DeliveryContext) -> Ulid {
    let kind = match why {
        CardReason::Asked => "card",
        CardReason::Escalated => "escalation",
    };
    let to = serde_json::to_string(place).unwrap_or_default();
    derived_ulid(confirmation.requested_at, &[kind, &confirmation.request.id, &to])
}

/// Returns the ids of the persons that `scope` names, each once.
fn decider_ids(scope: &DeciderScope, identities: &Identities) -> Vec<String> {
    match scope {
        DeciderScope::Initiator => Vec::new(),
        DeciderScope::Owner => identities.owner.iter().cloned().collect(),
        DeciderScope::Named { names: persons } | DeciderScope::Quorum { n: _, of: persons } => persons.clone(),
        DeciderScope::All { of } => {
            let mut all: Vec<String> = Vec::new();
            for person in of.iter().flat_map(|part| decider_ids(part, identities)) {
                if !all.contains(&person) {
                    all.push(person);
                }
            }

            all
        }
    }
}

/// Returns the replies that show the cards of `confirmation` with the reason `why`, as its trail has them.
#[must_use]
pub fn build_cards(confirmation: &ConfirmationTerms, why: CardReason, config: &ApprovalsConfig) -> Vec<Reply> {
    let Some(asked) = confirmation.request.asked_in.as_deref() else {
        return Vec::new();
    };

    let card = |shown: &ShownCard| {
        let person = shown.persons.first();
        let link = person.and_then(|person| decision_link(confirmation, person, &shown.place.channel, config));

        Reply {
            id: shown.id,
            turn: asked.turn,
            session: asked.session.clone(),
            delivery_context: shown.place.clone(),
            content: text(confirmation, asked, why, link.as_deref()),
            attachments: Vec::new(),
            interactive: Some(card_buttons(confirmation, asked, link.as_deref())),
            causation: asked.causation.clone(),
            action: None,
            unknown: UnknownFields::default(),
            send: None,
            failed: false,
        }
    };

    let shown = confirmation.trail.cards.iter().filter(|shown| shown.reason == why);
    shown.map(card).collect()
}

/// Returns the changes that turn the cards of `confirmation` on platforms into its decision, without buttons; none if it is
/// not decided. They follow from the approval alone: no setting that was changed since leaves a card with its buttons.
#[must_use]
pub fn build_decided_cards(confirmation: &ConfirmationTerms) -> Vec<Reply> {
    let (Some(content), Some(asked)) = (decided_text(confirmation), confirmation.request.asked_in.as_deref()) else {
        return Vec::new();
    };
    // Written in the approver's own place, and not for the others.
    let comment = confirmation.response.as_deref();
    let commented = comment.map(|comment| format!("{content}\nComment: {}", shorten_line(comment, MAX_WORDS)));
    let is_home = |shown: &ShownCard| {
        let by = confirmation.decided_by.as_ref();
        by.is_some_and(|by| shown.persons.contains(by))
    };

    // Pages and programs read the approval's state themselves.
    let cards = confirmation.trail.cards.iter();
    let on_platform = cards.filter(|shown| is_platform(&shown.place.channel));
    let decided = on_platform.map(|shown| {
        let (of_card, status) = (shown.id.to_string(), confirmation.status.name());
        Reply {
            id: derived_ulid(confirmation.requested_at, &["decided", &of_card, status]),
            turn: asked.turn,
            session: asked.session.clone(),
            delivery_context: shown.place.clone(),
            content: match &commented {
                Some(commented) if is_home(shown) => commented.clone(),
                Some(_) | None => content.clone(),
            },
            attachments: Vec::new(),
            interactive: Some(decision_interactive(&confirmation.request.id)),
            causation: asked.causation.clone(),
            action: Some(ReplyAction::Edit {
                target: format!("out:{of_card}"),
            }),
            send: None,
            failed: false,
            unknown: UnknownFields::default(),
        }
    });
    decided.collect()
}

/// Returns the text of the cards of `confirmation` once it is decided; `None` if it is not.
fn decided_text(confirmation: &ConfirmationTerms) -> Option<String> {
    let by = confirmation.decided_by.as_deref().unwrap_or("an approver");
    let by = shorten_line(by, MAX_NAME);
    let head = match confirmation.status {
        // The card of a used approval names the approver.
        ApprovalStatus::Pending | ApprovalStatus::Consumed => return None,
        ApprovalStatus::Approved => format!("Approved by {by}"),
        ApprovalStatus::Denied => format!("Denied by {by}"),
        ApprovalStatus::Expired => "Expired without a decision".to_owned(),
        ApprovalStatus::Canceled => "Withdrawn: no decision is needed any more".to_owned(),
        ApprovalStatus::Superseded => "Replaced by a newer request".to_owned(),
    };

    let request = &confirmation.request;
    let edited = confirmation.trail.edited.as_ref();
    let arguments = edited.map_or(&request.arguments, |edited| &edited.arguments);
    let lines = [head, wish_text(confirmation), arguments_block(arguments)];
    Some(lines.join("\n"))
}

/// Returns the link with which `person` decides, for a card to their own destination on `channel`.
fn decision_link(
    confirmation: &ConfirmationTerms,
    person: &str,
    channel: &str,
    config: &ApprovalsConfig,
) -> Option<String> {
    let LinkConfig { base, secret } = config.link.as_ref()?;
    let (id, until) = (&confirmation.request.id, confirmation.request.expires_at.0);
    let hash = &confirmation.request.arguments_hash;
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.reveal().as_bytes()).ok()?;
    mac.update(link_text(id, person, channel, hash, until).as_bytes());
    let signature = hex::encode(mac.finalize().into_bytes());
    let (by, on) = (escape_query(person), escape_query(channel));

    let base = base.trim_end_matches('/');
    Some(format!(
        "{base}/approvals/{id}?by={by}&channel={on}&hash={hash}&until={until}&sig={signature}"
    ))
}

/// Returns `text` escaped as a value in a URL's query.
fn escape_query(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

fn text(confirmation: &ConfirmationTerms, asked: &AskedIn, why: CardReason, link: Option<&str>) -> String {
    let request = &confirmation.request;
    let head = match why {
        CardReason::Asked => "Approval needed",
        CardReason::Escalated => "Still pending",
    };
    let until = jiff::Timestamp::from_millisecond(request.expires_at.0).unwrap_or_default();
    let code = code_of(confirmation);

    let mut lines = vec![
        format!("{head}: {}", wish_text(confirmation)),
        arguments_block(&request.arguments),
    ];
    if !request.policy.is_empty() {
        lines.push(format!("Policy: {}", shorten_line(&request.policy, MAX_NAME)));
    }

    let reason = asked.reason.iter();
    lines.extend(reason.map(|reason| format!("Why: {}", shorten_line(reason, MAX_WORDS))));
    let scope = describe_scope(&asked.scope);
    lines.push(format!(
        "To be decided by {}, until {until:.0}.",
        shorten_line(&scope, MAX_WORDS)
    ));
    lines.extend(link.map(|link| format!("Decide: {link}")));
    lines.push(format!("Reply: approve {code} or deny {code}"));

    lines.join("\n")
}

/// Returns what is to be decided, in one line.
fn wish_text(confirmation: &ConfirmationTerms) -> String {
    let by = shorten_line(&confirmation.requested_by, MAX_NAME);
    let tool = shorten_line(&confirmation.request.tool, MAX_NAME);
    format!("{by} wants to run {tool}")
}

/// Returns the first `bytes` of `words` in one line, and a mark if there are more.
fn shorten_line(words: &str, bytes: usize) -> String {
    let line = words.split_whitespace().collect::<Vec<_>>().join(" ");
    match shorten_text(&line, bytes) {
        short if short.len() < line.len() => format!("{short}…"),
        whole => whole,
    }
}

/// Returns the beginning of `arguments` as a code block: the hash binds all of them.
fn arguments_block(arguments: &Value) -> String {
    // No fence ends within it, and the JSON is the same.
    let all = arguments.to_string().replace('`', "\\u0060");
    let shown = match shorten_text(&all, MAX_ARGUMENTS) {
        short if short.len() < all.len() => format!("{short}… [cut]"),
        whole => whole,
    };
    format!("```\n{shown}\n```")
}

/// Returns the description from which platforms make buttons.
fn card_buttons(confirmation: &ConfirmationTerms, asked: &AskedIn, link: Option<&str>) -> Value {
    let request = &confirmation.request;
    let code = code_of(confirmation);
    let shown = confirmation.standing_hash().get(..SHOWN_DIGITS).unwrap_or_default();

    json!({
        "kind": CARD, "link": link, "approval": request.id, "code": code, "tool": request.tool,
        "arguments_hash": confirmation.standing_hash(), "expires_at": request.expires_at, "scope": asked.scope,
        "buttons": [
            {"label": "Approve", "say": format!("approve {code} #{shown}")},
            {"label": "Deny", "say": format!("deny {code} #{shown}")},
        ],
    })
}

#[cfg(test)]
mod tests {
    use shared::model::approval::is_decision;

    use super::*;
    use crate::approval::machine::tests::{confirmation, identities};

    #[test]
    fn a_card_says_what_who_until_when_and_how() {
        let mut asked = confirmation(ApprovalStatus::Pending);
        asked.trail.code = Some("K7Q2M9PX".to_owned());

        if let Some(asked_in) = &mut asked.request.asked_in {
            asked_in.place.channel = "telegram".to_owned();
        }

        let at_home = DeliveryContext {
            channel: "webchat".to_owned(),
            peer_id: Some("a".to_owned()),
            ..DeliveryContext::default()
        };
        let config = ApprovalsConfig {
            places: [("ann".to_owned(), at_home.clone())].into_iter().collect(),
            link: None,
        };

        asked.trail.cards = plan_cards(&asked, CardReason::Asked, &identities(), &config);
        let all = build_cards(&asked, CardReason::Asked, &config);
        assert_eq!(all.len(), 2, "the conversation that waits, and the owner's own");
        assert_ne!(all[0].id, all[1].id);
        assert_eq!(
            asked.trail.cards,
            plan_cards(&asked, CardReason::Asked, &identities(), &config),
            "the same again"
        );

        for part in [
            "pay",
            "60000",
            "the owner",
            "approve K7Q2-M9PX",
            "deny K7Q2-M9PX",
            "1970-01-01T00:00:02Z",
        ] {
            assert!(all[0].content.contains(part), "{part}: {}", all[0].content);
        }

        let planned = plan_cards(&asked, CardReason::Escalated, &identities(), &config);
        asked.trail.cards.extend(planned);
        let escalated = build_cards(&asked, CardReason::Escalated, &config);
        assert_eq!((escalated.len(), &escalated[0].delivery_context), (1, &at_home));
        assert!(!all.iter().any(|card| card.id == escalated[0].id));
    }

    /// An approval asked on Telegram, in `status`, with a home of the owner in the web chat.
    fn on_telegram(status: ApprovalStatus) -> (ConfirmationTerms, ApprovalsConfig) {
        let mut asked = confirmation(status);
        asked.trail.code = Some("K7Q2M9PX".to_owned());
        asked.decided_by = Some("ann".to_owned());
        if let Some(asked_in) = &mut asked.request.asked_in {
            asked_in.place.channel = "telegram".to_owned();
        }
        let home = DeliveryContext {
            channel: "webchat".to_owned(),
            peer_id: Some("a".to_owned()),
            ..DeliveryContext::default()
        };
        let places = [("ann".to_owned(), home)].into_iter().collect();
        let config = ApprovalsConfig { places, link: None };
        asked.trail.cards = plan_cards(&asked, CardReason::Asked, &identities(), &config);
        (asked, config)
    }

    #[test]
    fn a_decision_edits_the_cards_on_platforms_and_tells_no_code() {
        for (status, head) in [
            (ApprovalStatus::Approved, "Approved by ann"),
            (ApprovalStatus::Denied, "Denied by ann"),
            (ApprovalStatus::Expired, "Expired"),
            (ApprovalStatus::Canceled, "Withdrawn"),
            (ApprovalStatus::Superseded, "Replaced"),
        ] {
            let (asked, config) = on_telegram(status);
            let cards = build_cards(&asked, CardReason::Asked, &config);
            let card = cards.iter().find(|card| card.delivery_context.channel == "telegram");
            let card = card.expect("a card on the platform");

            let decided = build_decided_cards(&asked);
            let [edit] = &decided[..] else {
                panic!("{decided:?}");
            };
            let target = format!("out:{}", card.id);
            assert_eq!(edit.action, Some(ReplyAction::Edit { target }));
            assert_eq!(
                (&edit.delivery_context, &edit.session),
                (&card.delivery_context, &card.session)
            );
            assert!(edit.content.starts_with(head), "{}", edit.content);
            assert!(is_decision(edit.interactive.as_ref()), "it may change a card");
            assert!(!format!("{edit:?}").contains("K7Q2"), "{edit:?}");
        }
        for status in [ApprovalStatus::Pending, ApprovalStatus::Consumed] {
            let (asked, _) = on_telegram(status);
            assert!(build_decided_cards(&asked).is_empty());
        }
    }

    #[test]
    fn an_escalated_card_is_edited_too_and_long_words_fit_into_one_message() {
        let (mut asked, mut config) = on_telegram(ApprovalStatus::Denied);
        for home in config.places.values_mut() {
            home.channel = "discord".to_owned();
        }
        asked.trail.escalated_at = Some(asked.requested_at);
        let shown = [CardReason::Asked, CardReason::Escalated].into_iter();
        let shown = shown.flat_map(|why| plan_cards(&asked, why, &identities(), &config));
        asked.trail.cards = shown.collect();
        asked.request.arguments = json!({ "text": "`".repeat(5_000) });
        asked.response = Some("_no_ ".repeat(5_000));

        let decided = build_decided_cards(&asked);
        assert_eq!(decided.len(), 3, "the conversation, the owner, and the owner again");
        let targets: std::collections::BTreeSet<_> = decided
            .iter()
            .filter_map(|card| card.action.as_ref())
            .map(ReplyAction::target)
            .collect();
        assert_eq!(targets.len(), 3);
        // With a mark before each character outside the block.
        let most = |card: &Reply| card.content.chars().count() + (card.content.chars().count() - MAX_ARGUMENTS);
        assert!(decided.iter().all(|card| most(card) < 2_000));
        let commented = |card: &&Reply| card.content.contains("Comment: _no_");
        let homes: Vec<&str> = decided
            .iter()
            .filter(commented)
            .map(|card| card.delivery_context.channel.as_str())
            .collect();
        assert_eq!(
            homes,
            ["discord", "discord"],
            "the approver's own place alone has the comment"
        );
    }

    #[test]
    fn long_arguments_are_cut_and_marked() {
        let mut asked = confirmation(ApprovalStatus::Pending);
        asked.request.arguments = json!({ "text": "ü".repeat(5_000) });
        if let Some(asked_in) = &mut asked.request.asked_in {
            asked_in.place.channel = "telegram".to_owned();
        }
        let config = ApprovalsConfig::default();
        asked.trail.cards = plan_cards(&asked, CardReason::Asked, &identities(), &config);
        let card = build_cards(&asked, CardReason::Asked, &config).remove(0);
        assert!(card.content.len() < 2_000 && card.content.contains("[cut]"));
    }
}
