//! Files of replies as parts of their own, for platforms that take them. *Pure.*

use shared::model::reply::Reply;

use crate::part_file::PartFile;
use crate::plan::{MessagePart, PartLayout, plan_parts};

/// Returns the parts of `reply` in order: its text as `layout` requires, and then each of its stored files. A file of more
/// than `max_file_bytes` is named with its size instead.
#[must_use]
pub fn plan_with_files(reply: &Reply, layout: PartLayout, max_file_bytes: u64) -> Vec<MessagePart> {
    let files: Vec<PartFile> = reply.attachments.iter().filter_map(PartFile::of_attachment).collect();
    let mut parts = if reply.content.is_empty() && !files.is_empty() {
        Vec::new()
    } else {
        plan_parts(reply, layout)
    };

    for file in files {
        if file.size > max_file_bytes {
            let content = too_large_text(&file, max_file_bytes);
            parts.extend(plan_parts(
                &Reply {
                    content,
                    ..reply.clone()
                },
                layout,
            ));
            continue;
        }
        parts.push(MessagePart {
            file: Some(file),
            ..MessagePart::default()
        });
    }

    (0..)
        .zip(parts)
        .map(|(index, part)| MessagePart { index, ..part })
        .collect()
}

/// Returns the text in place of a file that the platform does not take.
fn too_large_text(file: &PartFile, max: u64) -> String {
    let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1_000_000.0);
    let name = file.name.replace('`', "'");
    format!(
        "`{name}` has {}, and at most {} can be sent here.",
        megabytes(file.size),
        megabytes(max)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::{ChunkLimit, LengthUnit};
    use crate::examples::reply;
    use shared::model::event::Attachment;

    use crate::plan::TextFormat;

    fn stored(name: &str, size: u64) -> Attachment {
        let mut file = Attachment {
            filename: Some(name.to_owned()),
            media_type: "image".to_owned(),
            ..Attachment::default()
        };
        file.set_stored(&"a".repeat(64), size);
        file
    }

    #[track_caller]
    fn check(content: &str, files: &[Attachment], expected: &[&str]) {
        let mut reply = reply(content);
        reply.attachments = files.to_vec();
        let layout = PartLayout {
            format: TextFormat::TelegramHtml,
            limit: Some(ChunkLimit {
                max: 100,
                unit: LengthUnit::Characters,
            }),
            max_lines: None,
        };
        let parts = plan_with_files(&reply, layout, 10);
        let told: Vec<String> = parts
            .iter()
            .map(|part| match &part.file {
                Some(file) => format!("file {}", file.name),
                None => part.content.clone(),
            })
            .collect();
        assert_eq!(told, expected);
        assert!(
            parts
                .iter()
                .map(|part| part.index)
                .eq(0..u32::try_from(parts.len()).unwrap_or(0))
        );
    }

    #[test]
    fn each_file_is_a_part_behind_the_text_one_below_at_and_one_above_the_limit() {
        let large = "<code>c</code> has 0.0 MB, and at most 0.0 MB can be sent here.";
        check(
            "look",
            &[stored("a", 9), stored("b", 10), stored("c", 11)],
            &["look", "file a", "file b", large],
        );
        check("", &[stored("a", 9)], &["file a"]);
        // What is not stored cannot be sent.
        check("look", &[Attachment::default()], &["look"]);
        check("", &[], &[""]);
    }
}
