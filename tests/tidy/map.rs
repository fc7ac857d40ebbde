//! ARCHITECTURE.md: short, and true about rooms and traits.

use std::collections::BTreeSet;

use crate::pages::Page;
use crate::source::{root, sources};
use crate::{SERVICES, check};

const MAX_LINES: usize = 150;
/// In characters.
const MAX_COLUMNS: usize = 120;

fn map() -> Page {
    Page::read("ARCHITECTURE.md")
}

#[test]
fn the_map_fits_on_a_few_screens() {
    let map = map();
    let lines = map.text.lines().count();
    let too_long = (lines > MAX_LINES).then(|| format!("ARCHITECTURE.md: {lines} lines, at most {MAX_LINES}"));

    let numbered = map
        .text
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.chars().count()));
    let wide = numbered.filter(|(_, columns)| *columns > MAX_COLUMNS);
    let wide =
        wide.map(|(number, columns)| format!("ARCHITECTURE.md:{number}: {columns} columns, at most {MAX_COLUMNS}"));

    check("the map is read in one sitting", too_long.into_iter().chain(wide));
}

/// The rooms in the map's tables: the source folder that a heading names, and each room in the first cell of a row.
fn rooms(map: &Page) -> Vec<(usize, String, String)> {
    let mut found = Vec::new();
    let mut folder = None;
    for (number, line) in map.prose() {
        if line.starts_with('#') {
            folder = line.split('`').nth(1).filter(|name| name.ends_with("/src"));
        } else if let (Some(folder), Some(cell)) = (folder, line.strip_prefix("| ")) {
            let cell = cell.split('|').next().unwrap_or_default();
            let names = cell.split('`').skip(1).step_by(2);
            found.extend(names.map(|name| (number, folder.to_owned(), name.to_owned())));
        }
    }
    found
}

#[test]
fn rooms_of_the_map_exist() {
    let rooms = rooms(&map());

    let mapped: BTreeSet<&str> = rooms.iter().map(|(_, folder, _)| folder.as_str()).collect();
    let owed = SERVICES
        .iter()
        .chain(["shared"].iter())
        .map(|member| format!("{member}/src"));
    let unmapped = owed.filter(|folder| !mapped.contains(folder.as_str()));
    let unmapped = unmapped.map(|folder| format!("ARCHITECTURE.md: has no rooms of {folder}"));

    let is_there = |folder: &str, room: &str| {
        let place = root().join(folder).join(room);
        place.is_dir() || place.with_extension("rs").is_file()
    };
    let gone = rooms.iter().filter(|(_, folder, room)| !is_there(folder, room));
    let gone = gone.map(|(number, folder, room)| format!("ARCHITECTURE.md:{number}: {folder} has no room `{room}`"));

    check("the map names rooms that exist, of every crate", unmapped.chain(gone));
}

/// The traits that the map names, in the paragraph that begins with "Traits".
fn named_traits(map: &Page) -> BTreeSet<String> {
    let lines = map.text.lines().skip_while(|line| !line.starts_with("Traits "));
    let paragraph: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
    let paragraph = paragraph.join(" ");
    paragraph.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn traits_of_the_map_are_the_public_ones() {
    let named = named_traits(&map());
    let mut public = BTreeSet::new();
    for source in sources().iter().filter(|source| !source.path.contains("/tests/")) {
        for (_, line) in source.shipped_lines() {
            let name = line.trim_start().strip_prefix("pub trait ").unwrap_or_default();
            let name: String = name.chars().take_while(|c| c.is_alphanumeric()).collect();
            if !name.is_empty() {
                public.insert(name);
            }
        }
    }

    let gone = named
        .difference(&public)
        .map(|name| format!("`{name}` is named and is no public trait"));
    let unnamed = public
        .difference(&named)
        .map(|name| format!("`{name}` is a public trait and is not named"));
    check("ARCHITECTURE.md names the public traits", gone.chain(unnamed));
}
