//! Template text with `{{path}}`, filled from an event. *Pure.*

use serde_json::Value;
use shared::model::event::Event;

use crate::routing::prefilter::{inner_value, scalar_text};

/// Longest text that a template yields, in bytes.
const MAX_TEXT_BYTES: usize = 64 * 1024;

/// A parsed template text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TextTemplate {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Path(Vec<String>),
}

impl TextTemplate {
    /// Parses `text`; the error describes the fault.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once("{{") {
            let (path, behind) = after.split_once("}}").ok_or("expected `}}` after `{{`")?;
            let path: Vec<String> = path.trim().split('.').map(str::to_owned).collect();
            if path.iter().any(String::is_empty) {
                return Err("expected a field such as `{{payload.id}}` in braces".to_owned());
            }
            parts.extend([Part::Text(before.to_owned()), Part::Path(path)]);
            rest = behind;
        }

        parts.push(Part::Text(rest.to_owned()));
        Ok(Self { parts })
    }

    /// Returns the text for `event`; missing values are left out, and objects and lists are inserted as JSON.
    pub(super) fn fill_in(&self, event: &Event) -> String {
        let mut text = String::new();
        for part in &self.parts {
            match part {
                Part::Text(plain) => text.push_str(plain),
                Part::Path(path) => text.push_str(&value(event, path)),
            }
        }
        text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
        text
    }
}

/// Returns a field of the event by its name, else one of its metadata.
fn value(event: &Event, path: &[String]) -> String {
    let mut parts = path.iter();
    let Some(first) = parts.next() else {
        return String::new();
    };

    // A plain name means a field of the event first, and its metadata else.
    if path.len() == 1 {
        match first.as_str() {
            "id" => return event.id.to_string(),
            "channel" => return event.channel.clone(),
            "account" => return event.account().to_owned(),
            "content" => return event.content.clone(),
            "from" => return event.from.id.clone(),
            // A session that is named after a group goes on when the group has another id.
            "peer" => return event.former_peer().unwrap_or(&event.peer.id).to_owned(),
            _ => {}
        }
    }

    let first = event.metadata.get(first);
    let found: Option<&Value> = parts.fold(first, |value, part| inner_value(value?, part));

    found.map_or_else(String::new, |value| {
        scalar_text(value).map_or_else(|| value.to_string(), std::borrow::Cow::into_owned)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use shared::model::event::EventId;
    use shared::model::time::UnixMillis;

    use super::*;

    #[test]
    fn fields_are_filled_in() {
        let id = EventId::parse("webhook:stripe/1").expect("valid");
        let mut event = Event::new(id, "webhook", "stripe", UnixMillis(1));
        event.metadata = json!({"event_type": "paid", "payload": {"amount": 12, "items": [{"sku": "a"}]}})
            .as_object()
            .expect("an object")
            .clone();

        for (template, text) in [
            ("plain", "plain"),
            ("{{event_type}}: {{ payload.amount }}", "paid: 12"),
            ("{{payload.items.0.sku}}/{{payload.items}}", r#"a/[{"sku":"a"}]"#),
            ("{{nothing.here}}|{{peer}}|{{channel}}", "|stripe|webhook"),
        ] {
            let template = TextTemplate::parse(template).expect(template);
            assert_eq!(template.fill_in(&event), text);
        }
    }

    #[test]
    fn mistakes_are_named() {
        assert_eq!(
            TextTemplate::parse("{{open").expect_err("open"),
            "expected `}}` after `{{`"
        );
        assert!(TextTemplate::parse("{{}}").is_err());
    }
}
