//! The arrows between the files of one crate, read from their `use` paths and from all others that begin with `crate`
//! or `super`: no circle but between a module and its children. A name that a module passes on with `pub use` counts as
//! its own file's.

use std::collections::{BTreeMap, BTreeSet};

use crate::check;
use crate::source::{MEMBERS, Source, sources};

/// A module's path in its crate: `["bus", "publish"]`; the root is empty.
type Module = Vec<String>;
/// Every module that each module names.
type Arrows = BTreeMap<Module, BTreeSet<Module>>;
/// The module that a name of a module comes from, if the module only passes it on.
type PassedOn = BTreeMap<(Module, String), Module>;

/// One path, with the lists of a `use` declaration written out.
#[derive(Debug, Clone, PartialEq, Eq)]
struct UsedPath {
    parts: Vec<String>,
    /// The name that it has in the file.
    name: String,
}

#[test]
fn files_of_a_crate_use_each_other_one_way() {
    let sources = sources();
    let crates = MEMBERS.iter().filter(|name| **name != "tests");

    let faults = crates.flat_map(|name| {
        let arrows = arrows_of(name, &sources);
        circles_in(&arrows)
            .into_iter()
            .map(move |circle| format!("{name}: {}", shown(&circle, &arrows)))
    });

    check("no circle of files inside a crate", faults);
}

/// `a → b` for every arrow within the circle.
fn shown(circle: &BTreeSet<Module>, arrows: &Arrows) -> String {
    let within = circle.iter().flat_map(|from| {
        let targets = arrows[from].iter().filter(|to| circle.contains(*to));
        targets.map(move |to| format!("{} → {}", from.join("/"), to.join("/")))
    });

    within.collect::<Vec<_>>().join(", ")
}

fn arrows_of(name: &str, sources: &[Source]) -> Arrows {
    let folder = format!("{name}/src");
    let files: BTreeMap<Module, &Source> = sources
        .iter()
        .filter(|source| source.is_in(&folder))
        .filter_map(|source| Some((module_of(source.path.strip_prefix(&folder)?)?, source)))
        .collect();
    let modules: BTreeSet<Module> = files.keys().cloned().collect();
    let passed_on = files.iter().flat_map(|(module, source)| {
        let paths = named_paths(source).0.into_iter();
        let passed = paths.filter_map(|path| Some((path.name, resolved(module, &path.parts, &modules)?.0)));
        passed.map(|(name, from)| ((module.clone(), name), from))
    });
    let passed_on: PassedOn = passed_on.collect();

    let arrow = |from: &Module, path: &UsedPath| {
        let (to, name) = resolved(from, &path.parts, &modules)?;
        let to = origin_of(to, name, &passed_on);
        let is_kin = to.starts_with(from) || from.starts_with(&to);
        (!is_kin).then_some(to)
    };
    let arrows_from = |(from, source): (&Module, &&Source)| {
        let (exported, used) = named_paths(source);
        let paths = [exported, used].concat();
        (
            from.clone(),
            paths.iter().filter_map(|path| arrow(from, path)).collect(),
        )
    };
    files.iter().map(arrows_from).collect()
}

/// The module that `name` of `module` comes from.
fn origin_of(module: Module, name: Option<&str>, passed_on: &PassedOn) -> Module {
    let (mut at, Some(name)) = (module.clone(), name) else {
        return module;
    };
    let mut seen = BTreeSet::new();
    while let Some(next) = passed_on.get(&(at.clone(), name.to_owned())) {
        if !seen.insert(at) {
            return module;
        }
        at = next.clone();
    }
    at
}

/// The module of a file below `src`; `None` for programs, tests and the crate's root.
fn module_of(path: &str) -> Option<Module> {
    let path = path.strip_prefix('/')?.strip_suffix(".rs")?;
    let module: Module = path.split('/').map(str::to_owned).collect();

    let is_apart = module[0] == "bin" || ["lib", "main"].contains(&path) || module.iter().any(|part| part == "tests");
    (!is_apart).then_some(module)
}

/// The longest module that `path`, used in `from`, leads to, and the name in it. `None` for another crate, and for the
/// root.
fn resolved<'a>(from: &Module, path: &'a [String], modules: &BTreeSet<Module>) -> Option<(Module, Option<&'a str>)> {
    let first = path.first()?.as_str();
    let mut whole = match first {
        "crate" => path[1..].to_vec(),
        "self" => [from.as_slice(), &path[1..]].concat(),
        "super" => {
            let ups = path.iter().take_while(|part| *part == "super").count();
            [from.get(..from.len().checked_sub(ups)?)?, &path[ups..]].concat()
        }
        _ => [from.as_slice(), path].concat(),
    };

    let is_relative = !["crate", "self", "super"].contains(&first);
    if is_relative && !modules.contains(&whole[..=from.len()]) {
        return None;
    }
    let mut beyond = 0;
    while !whole.is_empty() && !modules.contains(&whole) {
        whole.pop();
        beyond += 1;
    }

    let name = path.get(path.len().checked_sub(beyond)?).map(String::as_str);
    (!whole.is_empty()).then_some((whole, name))
}

/// The paths that the shipped code passes on with `pub use`, and all others that it names.
fn named_paths(source: &Source) -> (Vec<UsedPath>, Vec<UsedPath>) {
    let code: String = source.shipped_lines().flat_map(|(_, line)| [line, "\n"]).collect();
    let (mut passed_on, mut named) = (Vec::new(), Vec::new());
    let (mut rest, mut bodies) = (code.as_str(), String::new());

    while let Some(start) = use_in(rest) {
        let line = rest[..start].rsplit('\n').next().unwrap_or_default();
        let paths = if line.trim_start().starts_with("pub") {
            &mut passed_on
        } else {
            &mut named
        };

        let end = rest[start..].find(';').map_or(rest.len(), |end| start + end);
        write_out(rest[start + 4..end].trim(), &[], paths);
        bodies.push_str(&rest[..start]);
        rest = &rest[end..];
    }

    bodies.push_str(rest);
    named.extend(paths_in(&bodies));
    (passed_on, named)
}

/// The start of the first `use` declaration.
fn use_in(code: &str) -> Option<usize> {
    let found = code.match_indices("use ").map(|(start, _)| start);
    let mut whole = found.filter(|start| !code[..*start].ends_with(|before: char| !before.is_whitespace()));
    whole.next()
}

/// The paths that begin with `crate` or `super`.
fn paths_in(code: &str) -> impl Iterator<Item = UsedPath> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = code.split(move |c: char| !is_part(c));
    let paths = words.filter(|word| ["crate::", "super::"].iter().any(|head| word.starts_with(head)));

    paths.map(|path| {
        let parts: Vec<String> = path
            .split("::")
            .filter(|part| !part.is_empty())
            .map(str::to_owned)
            .collect();
        UsedPath {
            name: parts.last().cloned().unwrap_or_default(),
            parts,
        }
    })
}

/// Adds the paths of one use tree, `a::{b, c::d}`, below `prefix`.
fn write_out(tree: &str, prefix: &[String], paths: &mut Vec<UsedPath>) {
    let parts = |text: &str| {
        let named = text.split("::").map(str::trim).filter(|part| !part.is_empty());
        named.map(str::to_owned).collect::<Vec<_>>()
    };

    let Some((head, list)) = tree.split_once('{') else {
        let (path, alias) = tree.split_once(" as ").unwrap_or((tree, ""));
        let parts = [prefix, &parts(path)].concat();
        let own = parts.last().cloned().unwrap_or_default();
        let name = Some(alias.trim()).filter(|alias| !alias.is_empty());
        paths.push(UsedPath {
            name: name.map_or(own, str::to_owned),
            parts,
        });
        return;
    };
    let prefix = [prefix, &parts(head)].concat();
    for item in items(list.trim_end().strip_suffix('}').unwrap_or(list)) {
        write_out(item.trim(), &prefix, paths);
    }
}

/// The items of a list, split at the commas outside of inner lists.
fn items(list: &str) -> Vec<&str> {
    let (mut found, mut depth, mut start) = (Vec::new(), 0_usize, 0);
    for (index, character) in list.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                found.push(&list[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }

    found.push(&list[start..]);
    found.retain(|item| !item.trim().is_empty());
    found
}

/// Every set of two or more modules that reach each other.
fn circles_in(arrows: &Arrows) -> Vec<BTreeSet<Module>> {
    let reached = |from: &Module| {
        let (mut seen, mut pending) = (BTreeSet::new(), vec![from]);
        while let Some(module) = pending.pop() {
            let next = arrows.get(module).into_iter().flatten();
            pending.extend(next.filter(|to| seen.insert((*to).clone())));
        }
        seen
    };
    let reach: BTreeMap<&Module, BTreeSet<Module>> = arrows.keys().map(|from| (from, reached(from))).collect();

    let circle_of = |from: &Module| {
        let both = |to: &&Module| reach.get(*to).is_some_and(|back| back.contains(from));
        reach[from].iter().filter(both).cloned().collect::<BTreeSet<_>>()
    };
    let circles: BTreeSet<BTreeSet<Module>> = arrows.keys().map(circle_of).filter(|circle| circle.len() > 1).collect();
    circles.into_iter().collect()
}

#[test]
fn use_paths_are_written_out() {
    let mut paths = Vec::new();
    write_out("crate::a::{b, c::{d as e, f}}", &[], &mut paths);

    let shown: Vec<(String, &str)> = paths
        .iter()
        .map(|path| (path.parts.join("::"), path.name.as_str()))
        .collect();
    let expected = [("crate::a::b", "b"), ("crate::a::c::d", "e"), ("crate::a::c::f", "f")];
    assert_eq!(shown, expected.map(|(path, name)| (path.to_owned(), name)));
}

#[test]
fn paths_of_declarations_and_of_bodies_are_named() {
    let text = "pub use a::B;\nuse crate::c::D;\nfn reuse(of: crate::e::F<super::G>) -> H { crate::i::j::<K>() }\n";
    let source = Source {
        path: String::new(),
        text: String::new(),
        code: text.to_owned(),
    };

    let shown = |paths: Vec<UsedPath>| paths.iter().map(|path| path.parts.join("::")).collect::<Vec<_>>();
    let (passed_on, named) = named_paths(&source);
    assert_eq!(shown(passed_on), ["a::B"]);
    assert_eq!(shown(named), ["crate::c::D", "crate::e::F", "super::G", "crate::i::j"]);
}

#[test]
fn a_name_that_is_passed_on_leads_to_its_own_file() {
    let module = |text: &str| text.split('/').map(str::to_owned).collect::<Module>();
    let passed = |from: &str, name: &str, to: &str| ((module(from), name.to_owned()), module(to));
    let passed_on: PassedOn = [passed("a", "X", "a/b"), passed("a/b", "X", "a/b/c")].into();

    assert_eq!(origin_of(module("a"), Some("X"), &passed_on), module("a/b/c"));
    assert_eq!(origin_of(module("a"), Some("Y"), &passed_on), module("a"));
    assert_eq!(origin_of(module("a"), None, &passed_on), module("a"));

    let round: PassedOn = [passed("a", "X", "b"), passed("b", "X", "a")].into();
    assert_eq!(origin_of(module("a"), Some("X"), &round), module("a"));
}

#[test]
fn a_circle_of_three_is_found_and_a_parent_with_its_child_is_none() {
    let module = |text: &str| text.split('/').map(str::to_owned).collect::<Module>();
    let arrows: Arrows = [("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")]
        .map(|(from, to)| (module(from), BTreeSet::from([module(to)])))
        .into();

    let circles = circles_in(&arrows);
    assert_eq!(circles, [BTreeSet::from(["a", "b", "c"].map(module))]);

    let modules = BTreeSet::from(["p", "p/q"].map(module));
    let path = ["q".to_owned(), "X".to_owned()];
    assert_eq!(
        resolved(&module("p"), &path, &modules),
        Some((module("p/q"), Some("X")))
    );
}
