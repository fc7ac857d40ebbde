//! Forms with files, as the stand-ins of platforms read them.

use axum::http::HeaderMap;
use sha2::{Digest as _, Sha256};

/// A field of a form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) filename: Option<String>,
    pub(crate) bytes: Vec<u8>,
}

impl Field {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// What a stand-in shows of a file: its name, and the beginning of its hash.
pub(crate) fn shown_file(name: &str, bytes: &[u8]) -> String {
    let hash = hex::encode(Sha256::digest(bytes));
    format!("{name} {}", &hash[..8])
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

/// Returns the fields of the form in `body`; `None` if it is no form.
pub(crate) fn read_form(headers: &HeaderMap, body: &[u8]) -> Option<Vec<Field>> {
    let kind = headers.get("content-type")?.to_str().ok()?;
    let boundary = kind.strip_prefix("multipart/form-data; boundary=")?;
    let mark = format!("--{}", boundary.trim_matches('"')).into_bytes();

    let (mut fields, mut rest) = (Vec::new(), body);
    rest = &rest[find(rest, &mark)? + mark.len()..];
    while rest.starts_with(b"\r\n") {
        let end = find(rest, &mark)?;
        let (field, after) = (&rest[2..end - 2], &rest[end + mark.len()..]);
        let head_end = find(field, b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&field[..head_end]).into_owned();
        let value = |key: &str| {
            let from = head.find(&format!("{key}=\""))? + key.len() + 2;
            Some(head[from..].split('"').next()?.to_owned())
        };
        fields.push(Field {
            name: value("; name")?,
            filename: value("; filename"),
            bytes: field[head_end + 4..].to_vec(),
        });
        rest = after;
    }
    Some(fields)
}
