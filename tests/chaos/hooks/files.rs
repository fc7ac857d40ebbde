//! The hooks directory: what lies in it, and what somebody does to it meanwhile.

use std::path::{Path, PathBuf};
use std::time::Duration;

use shared::clock::{Clock as _, SystemClock, pause};
use shared::model::time::UnixMillis;

use super::{Over, is_over};

/// How often somebody saves a file.
const EDIT_EVERY: Duration = Duration::from_millis(300);

/// Answers every event of `chaos`.
const ANSWER: &str = r#"/** @name answer
 * @match channel=chaos */
export default ({ event }) => ({ fire: true, routing: { session: "s-" + event.peer.id } });
"#;

/// Goes where the model says, which says something else each time.
const ASKS: &str = r#"/** @name asks
 * @timeout 1m
 * @match channel=ask */
export default async ({ event, llm }) => ({ fire: true, routing: { session: "ask-" + await llm("where to, " + event.id) } });
"#;

/// Fires as the model says; where it does not, the other one does.
const MAYBE: &str = r#"/** @name maybe
 * @timeout 1m
 * @match channel=fall */
export default async ({ event, llm }) => ({ fire: Number(await llm("whether, " + event.id)) % 2 === 0 });
"#;
const FALLS: &str = r#"/** @name falls
 * @fallback
 * @match channel=fall */
export default () => ({ fire: true });
"#;

/// Finds the very event that it sees in the read model, once.
const READS: &str = r#"/** @name reads
 * @timeout 1m
 * @match channel=read */
import Database from "better-sqlite3";
export default ({ event, dbPath }) => {
  const db = new Database(dbPath, { readonly: true });
  const { n } = db.prepare("SELECT count(*) AS n FROM events WHERE id = ?").get(event.id);
  db.close();
  return { fire: true, routing: { session: "n-" + n } };
};
"#;

/// Fires whether or not what was saved last parses.
const FLIPS: &str = r#"/** @name flips
 * @match channel=chaos */
export default () => ({ fire: true, routing: { session: "flips" } });
"#;
const BROKEN: &str = "/** @name flips */\nexport default () => {{{\n";

/// Is there and gone again.
const COMES: &str = r#"/** @name comes
 * @match channel=chaos */
export default () => ({ fire: true, routing: { session: "comes" } });
"#;

/// Says which edit it is of.
fn edited(version: usize) -> String {
    format!(
        "/** @name edited\n * @match channel=chaos */\n\
         export default () => ({{ fire: true, routing: {{ session: \"v-{version}\" }} }});\n"
    )
}

/// What lies there in the beginning.
pub(super) fn at_first() -> Vec<(&'static str, String)> {
    let still = [
        ("answer.ts", ANSWER),
        ("asks.ts", ASKS),
        ("maybe.ts", MAYBE),
        ("falls.ts", FALLS),
        ("reads.ts", READS),
        ("flips.ts", FLIPS),
        ("comes.ts", COMES),
    ];

    let mut files: Vec<_> = still.map(|(name, text)| (name, text.to_owned())).to_vec();
    files.push(("edited.ts", edited(0)));

    files
}

/// Saves, breaks, mends, deletes and makes files until it is over; answers when `edited` was saved in which version,
/// from 1 on. In the end all parse and are there.
pub(super) async fn edit(folder: PathBuf, over: Over) -> Vec<UnixMillis> {
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).expect("a hook file");
    let mut edits = Vec::new();
    let mut save = |folder: &Path| {
        let version = edits.len() + 1;
        std::fs::write(folder.join("edited.ts"), edited(version)).expect("a hook file");
        edits.push(SystemClock.now());
    };

    let mut tick = 0;
    while !is_over(&over) {
        pause(EDIT_EVERY).await;
        tick += 1;
        save(&folder);

        match tick % 6 {
            1 => write("flips.ts", BROKEN),
            3 => std::fs::remove_file(folder.join("comes.ts")).expect("it was there"),
            4 => write("flips.ts", FLIPS),
            0 => write("comes.ts", COMES),
            _ => {}
        }
    }

    write("flips.ts", FLIPS);
    write("comes.ts", COMES);
    save(&folder);

    edits
}
