//! Metrics: each that the code counts is in the table of its crate and on the page for operators, with its kind and
//! labels, and the other way round.

use std::collections::{BTreeMap, BTreeSet};

use crate::check;
use crate::pages::Page;
use crate::source::{MEMBERS, Source, sources};

/// The page that explains the metrics, and its heading.
const PAGE: &str = "docs/operations.md";
const HEADING: &str = "## Metrics";

/// Kind and names of labels, in their order.
type Shape = (String, Vec<String>);

/// Returns the file with the table of `member`.
fn table_of(member: &str) -> String {
    match member {
        "shared" => "shared/src/metric/tables.rs".to_owned(),
        member => format!("{member}/src/metric_table.rs"),
    }
}

/// Returns the metrics that `source` counts, with the shapes in which it does.
fn counted(source: &Source) -> Vec<(String, Shape)> {
    // Names are in literals, which `code` blanks; a comment or a test is not shipped.
    let shipped = source.shipped_lines().count();
    let text: String = source
        .text
        .lines()
        .take(shipped)
        .fold(String::new(), |text, line| text + line + "\n");
    let mut found = Vec::new();
    for kind in ["counter", "gauge", "histogram"] {
        for (_, rest) in text
            .match_indices(&format!("{kind}!("))
            .map(|(at, mark)| text.split_at(at + mark.len()))
        {
            let Some(call) = rest.split(';').next() else { continue };
            let Some(name) = first_literal(call).filter(|name| name.starts_with("nexus_")) else {
                continue;
            };
            let call = call.split(").").next().unwrap_or_default();
            let labels = call.match_indices("=>").filter_map(|(at, _)| last_literal(&call[..at]));
            found.push((name, (kind.to_owned(), labels.collect())));
        }
    }
    found
}

/// Returns the metrics in a table of the source, with their shapes.
fn listed(table: &str) -> Vec<(String, Shape)> {
    let table = table.split("#[cfg(test)]").next().unwrap_or_default();
    let entries = table.split("Metric::").skip(1);
    let metrics = entries.filter_map(|entry| {
        let kind = entry.split('(').next().unwrap_or_default();
        let name = first_literal(entry).filter(|name| name.starts_with("nexus_"))?;
        let labels = entry
            .match_indices("label(")
            .filter_map(|(at, _)| first_literal(&entry[at..]));
        Some((name, (kind.to_owned(), labels.collect())))
    });
    metrics.collect()
}

fn first_literal(text: &str) -> Option<String> {
    text.split('"').nth(1).map(str::to_owned)
}

fn last_literal(text: &str) -> Option<String> {
    text.trim_end().strip_suffix('"')?.rsplit('"').next().map(str::to_owned)
}

#[test]
fn what_is_counted_is_in_the_tables_and_the_other_way_round() {
    let sources = sources();
    let text_of = |path: &str| {
        sources
            .iter()
            .find(|source| source.path == path)
            .map(|source| source.text.clone())
    };
    let shared: BTreeMap<String, Shape> = listed(&text_of(&table_of("shared")).expect("the table"))
        .into_iter()
        .collect();

    let mut faults = Vec::new();
    for member in MEMBERS {
        let own: BTreeMap<String, Shape> = text_of(&table_of(member))
            .map(|text| listed(&text))
            .unwrap_or_default()
            .into_iter()
            .collect();
        let mut used = BTreeSet::new();
        let of_member = sources
            .iter()
            .filter(|source| source.path.starts_with(&format!("{member}/src/")));
        for source in of_member.filter(|source| !source.path.contains("/tests")) {
            for (name, shape) in counted(source) {
                match own.get(&name).or_else(|| shared.get(&name)) {
                    Some(listed) if *listed == shape => {}
                    Some(listed) => faults.push(format!(
                        "{}: {name} is {shape:?}, and {listed:?} in its table",
                        source.path
                    )),
                    None => faults.push(format!("{}: {name} is in no table", source.path)),
                }
                used.insert(name);
            }
        }
        let unused = own.keys().filter(|name| !used.contains(*name));
        faults.extend(unused.map(|name| format!("{}: {name} is counted nowhere", table_of(member))));
    }

    check("metrics are described where they are counted", faults);
}

/// Returns the metrics in the rows of the page, each with its labels.
fn explained(page: &Page) -> BTreeMap<String, Vec<String>> {
    let section = page.text.split(HEADING).nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with("| `nexus_"));
    let cells = rows.filter_map(|row| row.split(" | ").next());
    let quoted = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let metrics = quoted.map(|metric| {
        let (name, labels) = metric.split_once('{').unwrap_or((metric, "}"));
        let labels = labels
            .trim_end_matches('}')
            .split(',')
            .filter(|label| !label.is_empty());
        (name.to_owned(), labels.map(str::to_owned).collect())
    });
    metrics.collect()
}

#[test]
fn the_page_explains_every_metric_with_its_labels() {
    let sources = sources();
    let tables = sources
        .iter()
        .filter(|source| MEMBERS.iter().any(|member| source.path == table_of(member)));
    let listed: BTreeMap<String, Vec<String>> = tables
        .flat_map(|source| listed(&source.text))
        .map(|(name, (_, labels))| (name, labels))
        .collect();
    let explained = explained(&Page::read(PAGE));

    let missing = listed
        .iter()
        .filter(|(name, labels)| explained.get(*name) != Some(labels));
    let missing = missing.map(|(name, labels)| match explained.get(name) {
        Some(other) => format!("{PAGE}: {name} has the labels {other:?}, and {labels:?} in its table"),
        None => format!("{PAGE}: does not explain {name}"),
    });
    let made_up = explained.keys().filter(|name| !listed.contains_key(*name));
    let made_up = made_up.map(|name| format!("{PAGE}: {name} is in no table"));
    check("operators find every metric", missing.chain(made_up));
}

#[test]
fn shapes_are_read_from_calls_and_tables() {
    let code = "fn f() { metrics::counter!(\"nexus_a_total\", \"x\" => y.name(), \"z\" => \"w\").increment(1); }\n";
    let source = Source {
        path: "shared/src/x.rs".to_owned(),
        text: code.to_owned(),
        code: code.to_owned(),
    };
    let labels = vec!["x".to_owned(), "z".to_owned()];
    let shape = ("nexus_a_total".to_owned(), ("counter".to_owned(), labels));
    assert_eq!(counted(&source), std::slice::from_ref(&shape));

    let table = "Metric::counter(\"nexus_a_total\", \"a help\").by(&[label(\"x\", &[\"p\"]), open_label(\"z\")]),";
    assert_eq!(listed(table), [shape]);
}
