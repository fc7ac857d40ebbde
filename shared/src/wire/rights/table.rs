//! The rights as a table for people. *Pure.*

use super::{BusRole, Right};

/// Returns the table of `docs/rights.md`: a row for each role.
#[must_use]
pub fn rights_table() -> String {
    let mut table = "| role | account | users | may |\n| --- | --- | --- | --- |\n".to_owned();
    for role in BusRole::ALL {
        let (name, account, purpose) = (role.name(), role.account().name(), role.purpose());
        table.push_str(&format!("| `{name}` | {account} | {purpose} | {} |\n", sentence(role)));
    }
    table
}

/// Returns what a right names, if it is of one kind.
type NamedBy = fn(Right) -> Option<&'static str>;

/// Returns what `role` may do, in one sentence.
fn sentence(role: BusRole) -> String {
    let verbs: [(&str, NamedBy); 11] = [
        ("publish", published),
        ("hear", heard),
        ("ask `nexus.svc.`", asked),
        ("answer on `nexus.svc.`", served),
        ("call `$JS.API.`", called),
        ("read the streams", read),
        ("delete messages of", deleted),
        ("purge subjects of", purged),
        ("read the keys", keys_read),
        ("write the keys", keys_written),
        ("read (r) and write (w) the files", files),
    ];

    let parts = verbs.iter().filter_map(|(verb, of)| {
        let named: Vec<String> = role
            .rights()
            .iter()
            .filter_map(|right| of(*right).map(|name| format!("`{name}`{}", mode(*right))))
            .collect();
        (!named.is_empty()).then(|| format!("{verb} {}", named.join(", ")))
    });

    let denied: Vec<String> = super::role_rights::denied(role)
        .iter()
        .map(|subject| format!("`{subject}`"))
        .collect();
    let exception = (!denied.is_empty()).then(|| format!("never publish {}", denied.join(", ")));

    parts.chain(exception).collect::<Vec<_>>().join("; ")
}

const fn mode(right: Right) -> &'static str {
    match right {
        Right::ReadFiles(_) => " (r)",
        Right::WriteFiles(_) => " (w)",
        Right::Publish(_)
        | Right::Hear(_)
        | Right::Ask(_)
        | Right::Serve(_)
        | Right::Api(_)
        | Right::Read(_)
        | Right::Delete(_)
        | Right::Purge(_)
        | Right::ReadKeys(_)
        | Right::WriteKeys(_) => "",
    }
}

/// Defines a function that returns what a right of one kind names, `None` for the other kinds.
macro_rules! named_by {
    ($($function:ident: $($kind:ident)|+;)*) => {$(
        fn $function(right: Right) -> Option<&'static str> {
            if let $(Right::$kind(name))|+ = right { Some(name) } else { None }
        }
    )*};
}

named_by! {
    published: Publish;
    heard: Hear;
    asked: Ask;
    served: Serve;
    called: Api;
    read: Read;
    deleted: Delete;
    purged: Purge;
    keys_read: ReadKeys;
    keys_written: WriteKeys;
    files: ReadFiles | WriteFiles;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_rights_of_every_role() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/rights.md");
        let text = std::fs::read_to_string(page).expect("docs/rights.md");
        let wanted = rights_table();
        assert!(
            text.contains(&wanted),
            "docs/rights.md should have this table:\n{wanted}"
        );
    }
}
