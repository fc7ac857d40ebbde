//! Which files of an event are fetched, and what becomes of them. *Pure.*

use shared::attachments::FileType;
use shared::model::event::{Attachment, AttachmentState, Event, EventDirection, RefusedAttachment};

/// Bounds of files, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SizeLimits {
    /// Maximum size of a file.
    pub(super) file: u64,
    /// Maximum size of all files of an event, as far as their sizes are known before they are fetched.
    pub(super) event: u64,
}

/// The end of an attempt to fetch a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum FetchOutcome {
    /// The file is stored.
    Stored {
        /// SHA-256 in hex.
        hash: String,
        /// Size in bytes.
        size: u64,
        /// Type by its content.
        file_type: FileType,
    },
    /// The file is larger than these bytes, and will not be fetched.
    TooLarge(u64),
    /// The file will not be fetched for another reason.
    Refused(RefusedAttachment),
    /// The file may be fetched later.
    Later,
    /// There is no room for the file now. It may be fetched later.
    Full,
}

/// Returns whether the bytes of `file` are still to be fetched.
pub(super) fn is_open(file: &Attachment) -> bool {
    file.state.is_remote() && file.handle.is_some()
}

/// Returns whether files of `event` are fetched at all: those of strangers, of other bots and of old messages stay where
/// they are, because their senders alone have a say in them, and a deletion has none.
pub(super) fn has_files(event: &Event) -> bool {
    let is_deletion = match event.direction {
        EventDirection::Deleted => true,
        EventDirection::Received
        | EventDirection::Sent
        | EventDirection::Observed
        | EventDirection::Created
        | EventDirection::Updated => false,
    };
    !is_deletion && event.withheld_tags().next().is_none() && event.attachments.iter().any(is_open)
}

/// Returns the indexes of the files of `event` that are to be fetched, and refuses those that are too large by what is said
/// about them.
pub(super) fn plan_fetches(event: &mut Event, limits: SizeLimits) -> Vec<usize> {
    if !has_files(event) {
        return Vec::new();
    }

    let (mut wanted, mut left) = (Vec::new(), limits.event);
    for (index, file) in event.attachments.iter_mut().enumerate() {
        if !is_open(file) {
            continue;
        }
        let size = file.size_bytes.unwrap_or(0);
        let max = limits.file.min(left);
        if size > max {
            file.refuse_too_large(max);
            continue;
        }
        left -= size;
        wanted.push(index);
    }
    wanted
}

/// Writes `outcome` to `file`.
pub(super) fn apply_outcome(file: &mut Attachment, outcome: FetchOutcome) {
    match outcome {
        FetchOutcome::Stored { hash, size, file_type } => {
            file.set_stored(&hash, size);
            file.mime_type = Some(file_type.mime_type);
            file.media_type = file_type.media_type;
        }
        FetchOutcome::TooLarge(max) => file.refuse_too_large(max),
        FetchOutcome::Refused(why) => file.state = AttachmentState::Refused(why),
        FetchOutcome::Later | FetchOutcome::Full => {}
    }
}

#[cfg(test)]
mod tests {
    use shared::model::event::{BACKFILLED, EventId, FROM_BOT, UNPAIRED};
    use shared::model::time::UnixMillis;

    use super::*;

    const LIMITS: SizeLimits = SizeLimits { file: 10, event: 25 };

    fn event(sizes: &[Option<u64>]) -> Event {
        let id = EventId::parse("telegram:main/1/1").expect("an id");
        let mut event = Event::new(id, "telegram", "1", UnixMillis(1));
        event.attachments = sizes
            .iter()
            .map(|size| Attachment {
                size_bytes: *size,
                handle: Some("h".to_owned()),
                ..Attachment::default()
            })
            .collect();
        event
    }

    #[test]
    fn bounds_hold_one_below_at_and_one_above() {
        let states = |sizes: &[Option<u64>]| {
            let mut event = event(sizes);
            let wanted = plan_fetches(&mut event, LIMITS);
            let refused = AttachmentState::Refused(RefusedAttachment::TooLarge);
            let limits = event.attachments.iter().map(|file| {
                assert_eq!(file.max_bytes.is_some(), file.state == refused);
                file.max_bytes
            });
            (wanted, limits.collect::<Vec<_>>())
        };
        assert_eq!(
            states(&[Some(9), Some(10), Some(11)]),
            (vec![0, 1], vec![None, None, Some(6)]),
            "six bytes are left for the third one"
        );
        assert_eq!(states(&[Some(11), None]), (vec![1], vec![Some(10), None]));
        assert_eq!(
            states(&[Some(10), Some(10), Some(6), Some(5), None]),
            (vec![0, 1, 3, 4], vec![None, None, Some(5), None, None])
        );
    }

    #[test]
    fn files_of_strangers_and_of_old_messages_stay_where_they_are() {
        for tag in [UNPAIRED, BACKFILLED, FROM_BOT] {
            let mut event = event(&[Some(1)]);
            event.add_tag(tag);
            assert_eq!(plan_fetches(&mut event, LIMITS), Vec::<usize>::new(), "{tag}");
            assert!(event.attachments[0].state.is_remote());
        }
        let mut deletion = event(&[Some(1)]);
        deletion.direction = EventDirection::Deleted;
        assert_eq!(plan_fetches(&mut deletion, LIMITS), Vec::<usize>::new());

        let mut known = event(&[Some(1), Some(1)]);
        known.attachments[0].state = AttachmentState::Refused(RefusedAttachment::Unavailable);
        known.attachments[1].handle = None;
        assert_eq!(plan_fetches(&mut known, LIMITS), Vec::<usize>::new());
    }
}
