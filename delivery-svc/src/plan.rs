//! Splitting of replies into parts. *Pure.* Source: `docs/design/channels.md` §2.2.

use shared::model::reply::Reply;

use crate::chunk::{ChunkLimit, split};

/// One message on the platform.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessagePart {
    /// Index of the part, from 0.
    pub index: u32,
    /// Text of the part.
    pub content: String,
}

/// Returns the parts of `reply` in order: one, or as many as `limit` requires.
#[must_use]
pub fn plan_parts(reply: &Reply, limit: Option<ChunkLimit>) -> Vec<MessagePart> {
    let pieces = match limit {
        Some(limit) => split(&reply.content, limit),
        None => vec![reply.content.as_str()],
    };

    (0..)
        .zip(pieces)
        .map(|(index, content)| MessagePart {
            index,
            content: content.to_owned(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::LengthUnit;
    use crate::examples::reply;

    #[test]
    fn one_part_without_a_limit() {
        let reply = reply("first\n\nsecond");
        assert_eq!(
            plan_parts(&reply, None),
            [MessagePart {
                index: 0,
                content: "first\n\nsecond".to_owned()
            }]
        );
    }

    #[test]
    fn numbered_parts_within_the_limit() {
        let parts = plan_parts(
            &reply("first\n\nsecond"),
            Some(ChunkLimit {
                max: 7,
                unit: LengthUnit::Characters,
            }),
        );
        let told: Vec<_> = parts.iter().map(|part| (part.index, part.content.as_str())).collect();
        assert_eq!(told, [(0, "first\n\n"), (1, "second")]);
    }
}
