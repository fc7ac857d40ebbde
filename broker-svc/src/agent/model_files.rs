//! Images and recordings of the messages that a model answers, within bounds.
//!
//! The newest messages come first. What a model does not get is named in the text of its message. A recording with a
//! transcript is read, not heard. Source: `docs/design/sessions.md` §5.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use shared::attachments::{AttachmentStore, find_image_type, find_recording_type, recording_type};
use shared::error_chain::describe_error;
use shared::llm::{ModelFiles, ModelImage, ModelRecording};
use shared::model::event::Attachment;
use shared::wire::agent::{ChatMessage, LineRole};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::message_text::{is_image, is_unheard};

/// Maximum size of all files of a request, in bytes: in base64 it is 16 million, of the 20 of the strictest provider.
const MAX_TOTAL_BYTES: u64 = 12_000_000;
/// Bounds of the images of a request. Each is in base64 at most five million bytes, the least of the providers' limits.
const IMAGES: KindBounds = KindBounds {
    files: 8,
    bytes: 3_750_000,
};
/// Bounds of the recordings of a request.
const RECORDINGS: KindBounds = KindBounds {
    files: 8,
    bytes: MAX_TOTAL_BYTES,
};
/// Maximum time for loading the files of a request.
const LOAD_WITHIN: Duration = Duration::from_secs(10);
/// Size of a second of a recording of unknown length, in bytes: less than most recordings have.
const SECOND_BYTES: u64 = 2_000;
/// Size that a second of a recording has at least, in bytes: what its sender says of it must not raise the price further.
const LEAST_SECOND_BYTES: u64 = 250;

/// Size of the files of all requests at once, in units of [`ROOM_UNIT`]: each is in memory as it is and in base64.
const ROOM: usize = 64 * 1024;
/// Unit of [`ROOM`], in bytes.
const ROOM_UNIT: u64 = 1_024;
/// Maximum number of refused requests that are remembered.
const MAX_REFUSED: usize = 1_000;

/// Files by the index of their message.
pub(super) type MessageFiles = BTreeMap<usize, ModelFiles>;

/// Bounds of the files of one kind in a request.
#[derive(Debug, Clone, Copy)]
struct KindBounds {
    /// Maximum number.
    files: usize,
    /// Maximum size of each, in bytes.
    bytes: u64,
}

/// Kind of files that a model takes or refuses as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileKind {
    /// Recordings, which fewer models take.
    Recording,
    /// Images.
    Image,
}

impl FileKind {
    /// Returns the name of its files, for logs.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Recording => "recordings",
            Self::Image => "images",
        }
    }
}

/// A file that a model is to get.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ChosenFile {
    /// Index of its message.
    message: usize,
    /// SHA-256 of its bytes.
    hash: String,
    /// Maximum size, in bytes.
    size: u64,
    /// Length of a recording, in seconds.
    seconds: usize,
}

/// The files that a model is to get.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ChosenFiles {
    images: Vec<ChosenFile>,
    recordings: Vec<ChosenFile>,
}

impl ChosenFiles {
    /// Returns the files of `kind`.
    pub(super) fn of_kind(&self, kind: FileKind) -> &[ChosenFile] {
        match kind {
            FileKind::Recording => &self.recordings,
            FileKind::Image => &self.images,
        }
    }
}

/// The memory of files of requests, and the files that models refused.
#[derive(Debug)]
pub(super) struct FileBudget {
    room: Semaphore,
    refused: Mutex<BTreeSet<(String, Vec<ChosenFile>)>>,
}

impl Default for FileBudget {
    fn default() -> Self {
        Self {
            room: Semaphore::new(ROOM),
            refused: Mutex::default(),
        }
    }
}

impl FileBudget {
    /// Waits for the memory of `chosen`, at most for half of `left`. The files may be in memory while the result lives;
    /// `None` if there is no room in time.
    pub(super) async fn reserve(&self, chosen: &ChosenFiles, left: Duration) -> Option<SemaphorePermit<'_>> {
        let files = chosen.images.iter().chain(&chosen.recordings);
        let bytes: u64 = files.map(|file| file.size).sum();
        let units = u32::try_from(bytes.div_ceil(ROOM_UNIT)).unwrap_or(u32::MAX);
        let permit = tokio::time::timeout(left / 2, self.room.acquire_many(units)).await;
        permit
            .inspect_err(|_| tracing::warn!("no memory for the files of a message in time"))
            .ok()?
            .ok()
    }

    /// Remembers that `model` refused a request with `chosen`, all of one kind, and took it without.
    pub(super) fn note_refused(&self, model: &str, chosen: &[ChosenFile]) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.len() >= MAX_REFUSED {
            refused.clear();
        }
        refused.insert((model.to_owned(), chosen.to_vec()));
    }

    /// Returns `chosen` without the kinds that `model` refused, which the steps of a turn have in common.
    pub(super) fn without_refused(&self, model: &str, mut chosen: ChosenFiles) -> ChosenFiles {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        for files in [&mut chosen.images, &mut chosen.recordings] {
            if refused.contains(&(model.to_owned(), files.clone())) {
                files.clear();
            }
        }
        chosen
    }
}

/// Returns the files of `messages` that a model gets, the newest message's first: images if `images`, and recordings of
/// one of the `types`.
pub(super) fn choose_files(messages: &[ChatMessage], images: bool, types: &[&str]) -> ChosenFiles {
    let mut left = MAX_TOTAL_BYTES;
    // Images come first: they are small, and a recording may have a transcript at its next turn.
    let images = choose_kind(messages, IMAGES, &mut left, |file| images && is_image(file));
    let recordings = choose_kind(messages, RECORDINGS, &mut left, |file| is_playable(file, types));
    ChosenFiles { images, recordings }
}

fn choose_kind(
    messages: &[ChatMessage],
    bounds: KindBounds,
    left: &mut u64,
    is_wanted: impl Fn(&Attachment) -> bool,
) -> Vec<ChosenFile> {
    let mut chosen = Vec::new();
    for (message, said) in messages.iter().enumerate().rev() {
        // Models take files from users alone.
        match said.role {
            LineRole::User => {}
            LineRole::Assistant => continue,
        }
        for file in said.attachments.iter().filter(|file| is_wanted(file)) {
            let size = file.size_bytes.unwrap_or(bounds.bytes);
            let Some(hash) = file.stored_hash() else { continue };
            if chosen.len() == bounds.files || size > bounds.bytes || size > *left {
                continue;
            }

            *left -= size;
            chosen.push(ChosenFile {
                message,
                hash: hash.to_owned(),
                size,
                seconds: recording_seconds(file, size),
            });
        }
    }
    chosen
}

/// Returns the length of a recording of `size` bytes, in seconds: as its platform says, or by its size.
fn recording_seconds(file: &Attachment, size: u64) -> usize {
    let said = file.duration_ms.map(|millis| millis.div_ceil(1_000));
    let seconds = said.unwrap_or(size.div_ceil(SECOND_BYTES));
    usize::try_from(seconds.min(size.div_ceil(LEAST_SECOND_BYTES))).unwrap_or(usize::MAX)
}

/// Returns whether `file` is a recording without a transcript that may be of one of the `types`. What its sender calls
/// something else is not loaded for nothing at each step.
fn is_playable(file: &Attachment, types: &[&str]) -> bool {
    let said = file.mime_type.as_deref().and_then(recording_type);
    is_unheard(file) && !types.is_empty() && said.is_none_or(|said| types.contains(&said))
}

/// Loads the files `chosen` from `store`. Those that are not there any more, or are no image that models take and no
/// recording of one of the `types`, are left out.
pub(super) async fn load_files(
    store: &AttachmentStore,
    chosen: &ChosenFiles,
    types: &[&str],
    left: Duration,
) -> MessageFiles {
    let mut files = MessageFiles::new();
    let loading = async {
        for image in &chosen.images {
            let Some(bytes) = load_file(store, image).await else {
                continue;
            };
            if let Some(mime_type) = find_image_type(&bytes) {
                let of_message: &mut ModelFiles = files.entry(image.message).or_default();
                of_message.images.push(ModelImage { mime_type, bytes });
            }
        }

        for recording in &chosen.recordings {
            let Some(bytes) = load_file(store, recording).await else {
                continue;
            };
            if let Some(mime_type) = find_recording_type(&bytes).filter(|found| types.contains(found)) {
                let of_message: &mut ModelFiles = files.entry(recording.message).or_default();
                of_message.recordings.push(ModelRecording {
                    mime_type,
                    bytes,
                    seconds: recording.seconds,
                });
            }
        }
    };
    if tokio::time::timeout(left.min(LOAD_WITHIN), loading).await.is_err() {
        tracing::warn!("failed to load the files of a message in time");
    }
    files
}

async fn load_file(store: &AttachmentStore, file: &ChosenFile) -> Option<Bytes> {
    match store.load(&file.hash, file.size).await {
        Ok(bytes) => bytes.map(Bytes::from),
        Err(error) => {
            tracing::warn!(error = describe_error(&error), "failed to load a file");
            None
        }
    }
}

/// Returns files in place of `chosen` for an estimate of the price, without bytes.
pub(super) fn estimated_files(chosen: &ChosenFiles) -> MessageFiles {
    let mut files = MessageFiles::new();
    for image in &chosen.images {
        files.entry(image.message).or_default().images.push(ModelImage {
            mime_type: "image/png",
            bytes: Bytes::new(),
        });
    }
    for recording in &chosen.recordings {
        let of_message = files.entry(recording.message).or_default();
        of_message.recordings.push(ModelRecording {
            mime_type: "audio/wav",
            bytes: Bytes::new(),
            seconds: recording.seconds,
        });
    }
    files
}

/// Removes the files of one kind from `files`, and returns the kind; `None` if there are none. A model that refuses a
/// request is asked again without that kind.
pub(super) fn remove_kind(files: &mut MessageFiles) -> Option<FileKind> {
    if files.values().any(|files| !files.recordings.is_empty()) {
        files.values_mut().for_each(|files| files.recordings.clear());
        return Some(FileKind::Recording);
    }
    if files.values().any(|files| !files.images.is_empty()) {
        files.values_mut().for_each(|files| files.images.clear());
        return Some(FileKind::Image);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The types of OpenAI's interface.
    const TYPES: [&str; 2] = ["audio/wav", "audio/mp3"];

    fn file(media_type: &str, number: usize, size: u64) -> Attachment {
        let mut file = Attachment {
            media_type: media_type.to_owned(),
            ..Attachment::default()
        };
        file.set_stored(&format!("{number:064}"), size);
        file
    }

    fn image(number: usize, size: u64) -> Attachment {
        file("image", number, size)
    }

    fn message(attachments: Vec<Attachment>) -> ChatMessage {
        ChatMessage {
            role: LineRole::User,
            content: String::new(),
            attachments,
        }
    }

    fn numbers(chosen: &[ChosenFile]) -> Vec<(usize, usize)> {
        let number = |hash: &str| hash.trim_start_matches('0').parse().unwrap_or(0);
        chosen.iter().map(|file| (file.message, number(&file.hash))).collect()
    }

    fn chosen(messages: &[ChatMessage]) -> Vec<(usize, usize)> {
        numbers(&choose_files(messages, true, &TYPES).images)
    }

    fn heard(attachments: Vec<Attachment>) -> Vec<(usize, usize)> {
        numbers(&choose_files(&[message(attachments)], true, &TYPES).recordings)
    }

    #[test]
    fn bounds_hold_one_below_at_and_one_above() {
        let sizes = [IMAGES.bytes - 1, IMAGES.bytes, IMAGES.bytes + 1];
        let images = (1..).zip(sizes).map(|(number, size)| image(number, size));
        assert_eq!(chosen(&[message(images.collect())]), [(0, 1), (0, 2)]);

        let many = (1..=IMAGES.files + 1).map(|number| image(number, 1));
        assert_eq!(chosen(&[message(many.collect())]).len(), IMAGES.files);

        // Four of three million fill it, and nothing more fits.
        let full = (1..=4).map(|number| image(number, 3_000_000)).chain([image(5, 1)]);
        assert_eq!(chosen(&[message(full.collect())]).len(), 4);
        let below = (1..=3)
            .map(|number| image(number, 3_000_000))
            .chain([image(4, 2_999_999), image(5, 1)]);
        assert_eq!(chosen(&[message(below.collect())]).len(), 5);
    }

    #[test]
    fn the_newest_come_first_and_only_stored_images_come() {
        let older = message((1..=IMAGES.files).map(|number| image(number, 1)).collect());
        let mut remote = image(98, 1);
        remote.state = shared::model::event::AttachmentState::Remote;
        let newer = message(vec![image(50, 1), remote, file("audio", 99, 1)]);

        let found = chosen(&[older, newer]);
        assert_eq!((found[0], found.len()), ((1, 50), IMAGES.files));
        assert!(found[1..].iter().all(|(message, _)| *message == 0));
    }

    #[test]
    fn recordings_share_the_room_that_images_leave() {
        let recording = |number: usize, size: u64| file("audio", number, size);
        let rest = MAX_TOTAL_BYTES - 3_000_000;
        for (size, expected) in [(rest - 1, &[(0, 2)][..]), (rest, &[(0, 2)]), (rest + 1, &[])] {
            assert_eq!(heard(vec![recording(2, size), image(1, 3_000_000)]), expected, "{size}");
        }
        let many = (1..=RECORDINGS.files + 1).map(|number| recording(number, 1));
        assert_eq!(heard(many.collect()).len(), RECORDINGS.files);
    }

    #[test]
    fn a_recording_is_chosen_that_may_be_played_and_has_no_transcript() {
        let said = |number: usize, mime_type: Option<&str>, transcript: Option<&str>| Attachment {
            mime_type: mime_type.map(str::to_owned),
            transcript: transcript.map(str::to_owned),
            ..file("audio", number, 1)
        };
        let files = vec![
            said(1, Some("audio/x-wav"), None),
            said(2, Some("audio/ogg"), None),
            said(3, Some("audio/mpeg"), Some("hello")),
            said(4, Some("audio/mpeg"), None),
            said(5, None, None),
            file("video", 6, 1),
        ];
        assert_eq!(heard(files.clone()), [(0, 1), (0, 4), (0, 5)]);
        let none = choose_files(&[message(files)], true, &[]);
        assert_eq!(none, ChosenFiles::default(), "a provider that takes none");
    }

    #[test]
    fn the_length_of_a_recording_is_said_or_guessed_from_its_size() {
        let seconds = |duration_ms: Option<u64>, size: u64| {
            let recording = Attachment {
                duration_ms,
                ..file("audio", 1, size)
            };
            choose_files(&[message(vec![recording])], false, &TYPES).recordings[0].seconds
        };
        assert_eq!((seconds(Some(7_001), 8_000), seconds(None, 8_000)), (8, 4));
        assert_eq!(seconds(Some(u64::MAX), 8_000), 32, "no more than fits into its bytes");
    }

    #[test]
    fn files_of_an_agent_s_own_lines_are_not_chosen() {
        let own = ChatMessage {
            role: LineRole::Assistant,
            ..message(vec![image(2, 1), file("audio", 3, 1)])
        };
        let found = choose_files(&[message(vec![image(1, 1)]), own], true, &TYPES);
        assert_eq!((numbers(&found.images), found.recordings), (vec![(0, 1)], Vec::new()));
    }

    #[test]
    fn recordings_are_left_out_before_images() {
        let both = message(vec![image(1, 1), file("audio", 2, 1)]);
        let mut files = estimated_files(&choose_files(&[both], true, &TYPES));
        let left = |files: &MessageFiles| (files[&0].images.len(), files[&0].recordings.len());
        assert_eq!(left(&files), (1, 1));

        assert_eq!(remove_kind(&mut files), Some(FileKind::Recording));
        assert_eq!(left(&files), (1, 0));
        assert_eq!(remove_kind(&mut files), Some(FileKind::Image));
        assert_eq!((left(&files), remove_kind(&mut files)), ((0, 0), None));
    }

    #[tokio::test]
    async fn files_wait_for_memory_and_a_refusal_holds_for_the_same_ones_alone() {
        let full = message((1..=4).map(|number| image(number, 3_000_000)).collect());
        let (budget, chosen) = (FileBudget::default(), choose_files(&[full], true, &TYPES));
        let mut held = Vec::new();
        while let Some(room) = budget.reserve(&chosen, Duration::from_millis(20)).await {
            held.push(room);
        }
        assert_eq!(held.len(), 5, "five of twelve million bytes are in 64 MiB");
        held.pop();
        assert!(budget.reserve(&chosen, Duration::from_secs(20)).await.is_some());

        budget.note_refused("m", chosen.of_kind(FileKind::Image));
        let mut fewer = chosen.clone();
        fewer.images.pop();
        assert_eq!(budget.without_refused("m", chosen.clone()), ChosenFiles::default());
        for (model, files) in [("n", chosen), ("m", fewer)] {
            assert_eq!(budget.without_refused(model, files.clone()), files);
        }
    }
}
