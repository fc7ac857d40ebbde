//! Images of the messages that a model answers, within bounds.
//!
//! The newest messages come first. What is not shown is named in the text of its message. Source:
//! `docs/design/sessions.md` §5.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use shared::attachments::{AttachmentStore, find_image_type};
use shared::error_chain::describe_error;
use shared::llm::ModelImage;
use shared::model::event::Attachment;
use shared::wire::agent::{ChatMessage, LineRole};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Maximum number of images in a request.
const MAX_IMAGES: usize = 8;
/// Maximum size of an image, in bytes: in base64 it is five million, the least of the providers' limits.
const MAX_IMAGE_BYTES: u64 = 3_750_000;
/// Maximum size of all images of a request, in bytes: in base64 it is 16 million, of the 20 of the strictest provider.
const MAX_TOTAL_BYTES: u64 = 12_000_000;
/// Maximum time for loading the images of a request.
const LOAD_WITHIN: Duration = Duration::from_secs(10);

/// Size of the images of all requests at once, in units of [`ROOM_UNIT`]: each is in memory as it is and in base64.
const ROOM: usize = 64 * 1024;
/// Unit of [`ROOM`], in bytes.
const ROOM_UNIT: u64 = 1_024;
/// Maximum number of refused requests that are remembered.
const MAX_REFUSED: usize = 1_000;

/// Images by the index of their message.
pub(super) type MessageImages = BTreeMap<usize, Vec<ModelImage>>;

/// An image that a model is to get.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ChosenImage {
    /// Index of its message.
    message: usize,
    /// SHA-256 of its bytes.
    hash: String,
    /// Maximum size, in bytes.
    size: u64,
}

/// The memory of images of requests, and the images that models refused.
#[derive(Debug)]
pub(super) struct ImageDesk {
    room: Semaphore,
    refused: Mutex<BTreeSet<(String, Vec<ChosenImage>)>>,
}

impl Default for ImageDesk {
    fn default() -> Self {
        Self {
            room: Semaphore::new(ROOM),
            refused: Mutex::default(),
        }
    }
}

impl ImageDesk {
    /// Waits for the memory of `chosen`, at most for half of `left`. The images may be in memory while the result lives;
    /// `None` if there is no room in time.
    pub(super) async fn reserve(&self, chosen: &[ChosenImage], left: Duration) -> Option<SemaphorePermit<'_>> {
        let bytes: u64 = chosen.iter().map(|image| image.size).sum();
        let units = u32::try_from(bytes.div_ceil(ROOM_UNIT)).unwrap_or(u32::MAX);
        let permit = tokio::time::timeout(left / 2, self.room.acquire_many(units)).await;
        permit
            .inspect_err(|_| tracing::warn!("no memory for the images of a message in time"))
            .ok()?
            .ok()
    }

    /// Remembers that `model` refused a request with `chosen`, and took it without.
    pub(super) fn note_refused(&self, model: &str, chosen: &[ChosenImage]) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.len() >= MAX_REFUSED {
            refused.clear();
        }
        refused.insert((model.to_owned(), chosen.to_vec()));
    }

    /// Returns whether `model` refused `chosen`, which the steps of a turn have in common.
    pub(super) fn is_refused(&self, model: &str, chosen: &[ChosenImage]) -> bool {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.contains(&(model.to_owned(), chosen.to_vec()))
    }
}

/// Returns the images of `messages` that a model gets, the newest message's first.
pub(super) fn choose_images(messages: &[ChatMessage]) -> Vec<ChosenImage> {
    let (mut chosen, mut left) = (Vec::new(), MAX_TOTAL_BYTES);
    for (message, said) in messages.iter().enumerate().rev() {
        // Models take images from users alone.
        match said.role {
            LineRole::User => {}
            LineRole::Assistant => continue,
        }
        for file in said.attachments.iter().filter(|file| is_image(file)) {
            let size = file.size_bytes.unwrap_or(MAX_IMAGE_BYTES);
            let Some(hash) = file.stored_hash() else { continue };
            if chosen.len() == MAX_IMAGES || size > MAX_IMAGE_BYTES || size > left {
                continue;
            }
            left -= size;
            let hash = hash.to_owned();
            chosen.push(ChosenImage { message, hash, size });
        }
    }
    chosen
}

/// Loads the images `chosen` from `store`. Those that are not there any more, or are no image that models take, are left
/// out.
pub(super) async fn load_images(store: &AttachmentStore, chosen: &[ChosenImage], left: Duration) -> MessageImages {
    let mut images = MessageImages::new();
    let loading = async {
        for image in chosen {
            let bytes = match store.load(&image.hash, image.size).await {
                Ok(Some(bytes)) => bytes,
                Ok(None) => continue,
                Err(error) => {
                    tracing::warn!(error = describe_error(&error), "failed to load an image");
                    continue;
                }
            };
            if let Some(mime_type) = find_image_type(&bytes) {
                let bytes = Bytes::from(bytes);
                let of_message: &mut Vec<ModelImage> = images.entry(image.message).or_default();
                of_message.push(ModelImage { mime_type, bytes });
            }
        }
    };
    if tokio::time::timeout(left.min(LOAD_WITHIN), loading).await.is_err() {
        tracing::warn!("failed to load the images of a message in time");
    }
    images
}

/// Returns images in place of `chosen` for an estimate of the price, without bytes.
pub(super) fn estimated_images(chosen: &[ChosenImage]) -> MessageImages {
    let mut images = MessageImages::new();
    for image in chosen {
        let of_message = images.entry(image.message).or_default();
        of_message.push(ModelImage {
            mime_type: "image/png",
            bytes: Bytes::new(),
        });
    }
    images
}

/// Returns a line that says how many images of `message` the model does not get, of which it gets `shown`; `None` if it gets
/// all.
pub(super) fn hidden_note(message: &ChatMessage, shown: usize) -> Option<String> {
    let images = message.attachments.iter().filter(|file| is_image(file)).count();
    match images.saturating_sub(shown) {
        0 => None,
        1 => Some("[one image is not shown to you]".to_owned()),
        hidden => Some(format!("[{hidden} images are not shown to you]")),
    }
}

fn is_image(file: &Attachment) -> bool {
    file.media_type == "image"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(number: usize, size: u64) -> Attachment {
        let mut file = Attachment {
            media_type: "image".to_owned(),
            ..Attachment::default()
        };
        file.set_stored(&format!("{number:064}"), size);
        file
    }

    fn message(attachments: Vec<Attachment>) -> ChatMessage {
        ChatMessage {
            role: LineRole::User,
            content: String::new(),
            attachments,
        }
    }

    fn chosen(messages: &[ChatMessage]) -> Vec<(usize, usize)> {
        let number = |hash: &str| hash.trim_start_matches('0').parse().unwrap_or(0);
        choose_images(messages)
            .iter()
            .map(|image| (image.message, number(&image.hash)))
            .collect()
    }

    #[test]
    fn bounds_hold_one_below_at_and_one_above() {
        let sizes = [MAX_IMAGE_BYTES - 1, MAX_IMAGE_BYTES, MAX_IMAGE_BYTES + 1];
        let images = (1..).zip(sizes).map(|(number, size)| image(number, size));
        assert_eq!(chosen(&[message(images.collect())]), [(0, 1), (0, 2)]);

        let many = (1..=MAX_IMAGES + 1).map(|number| image(number, 1));
        assert_eq!(chosen(&[message(many.collect())]).len(), MAX_IMAGES);

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
        let older = message((1..=MAX_IMAGES).map(|number| image(number, 1)).collect());
        let mut remote = image(98, 1);
        remote.state = shared::model::event::AttachmentState::Remote;
        let mut voice = image(99, 1);
        voice.media_type = "audio".to_owned();
        let newer = message(vec![image(50, 1), remote, voice]);
        let found = chosen(&[older, newer.clone()]);
        assert_eq!((found[0], found.len()), ((1, 50), MAX_IMAGES));
        assert!(found[1..].iter().all(|(message, _)| *message == 0));

        assert_eq!(
            hidden_note(&newer, 1).as_deref(),
            Some("[one image is not shown to you]")
        );
        assert_eq!(
            hidden_note(&newer, 0).as_deref(),
            Some("[2 images are not shown to you]")
        );
        assert_eq!(hidden_note(&newer, 2), None);
    }

    #[test]
    fn images_of_an_agent_s_own_lines_are_not_chosen() {
        let own = ChatMessage {
            role: LineRole::Assistant,
            ..message(vec![image(2, 1)])
        };
        assert_eq!(chosen(&[message(vec![image(1, 1)]), own]), [(0, 1)]);
    }

    #[tokio::test]
    async fn images_wait_for_memory_and_a_refusal_holds_for_the_same_ones_alone() {
        let full = message((1..=4).map(|number| image(number, 3_000_000)).collect());
        let (desk, chosen) = (ImageDesk::default(), choose_images(&[full]));
        let mut held = Vec::new();
        while let Some(room) = desk.reserve(&chosen, Duration::from_millis(20)).await {
            held.push(room);
        }
        assert_eq!(held.len(), 5, "five of twelve million bytes are in 64 MiB");
        held.pop();
        assert!(desk.reserve(&chosen, Duration::from_secs(20)).await.is_some());

        desk.note_refused("m", &chosen);
        assert!(desk.is_refused("m", &chosen));
        assert!(!desk.is_refused("n", &chosen) && !desk.is_refused("m", &chosen[1..]));
    }
}
