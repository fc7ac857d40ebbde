//! `cron_agree.jsonl`: what croniter, cronsim, croner and cron-parser say of the same expression.

use jiff::tz::TimeZone;
use serde_json::Value;
use shared::schedule::{Schedule, next_instants};

use crate::fixtures::{instant, rows, shown, text};

fn instants(list: &Value) -> Vec<String> {
    let instants = list.as_array().expect("a list").iter();
    instants.map(|at| at.as_str().expect("an instant").to_owned()).collect()
}

#[test]
fn what_all_agree_on_is_computed() {
    let Some(rows) = rows("cron_agree.jsonl") else { return };
    let (mut agreed, mut differing) = (0, 0);
    for row in &rows {
        let zone_name = text(row, "tz").expect("a zone");
        let expression = text(row, "expr").expect("an expression");
        let schedule = Schedule::parse(&format!("cron {expression}"), zone_name).expect("it is read");
        let from = instant(text(row, "from_utc").expect("a beginning"), &TimeZone::UTC);

        let found: Vec<String> = next_instants(&schedule, from, 5)
            .into_iter()
            .map(|at| {
                shown(Some(at), &TimeZone::UTC)
                    .replace(" +00:00", "Z")
                    .replace(' ', "T")
            })
            .collect();

        let expected = match text(row, "verdict") {
            // Where they differ, croniter fires a doubled time twice; the others fire it once, as we do.
            Some("differ") => {
                differing += 1;
                instants(&row["by_library"]["croner"])
            }
            _ => {
                agreed += 1;
                instants(&row["expect"])
            }
        };

        assert_eq!(found, expected, "{}: {expression} in {zone_name}", row["id"]);
    }

    println!("cron_agree: {agreed} agreed, {differing} by our own rule");
}
