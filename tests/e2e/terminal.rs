//! Whatever strangers write: no command prints anything that steers the operator's terminal.

use std::time::Duration;

use serde_json::Value;
use tests::command::Said;
use tests::eventually::eventually;
use tests::world::{Setup, World};

use crate::story::{PATIENCE, event, send};

/// A stranger's name: clears the screen by a one-byte sequence, and turns round what follows.
const NAME: &str = "eve\u{9b}2J\u{202e}gnp.";
/// The part of it that no door takes away.
const TURNED: &str = "eve";
/// What they say: a title of the window, a line written over, an address that is none.
const TEXT: &str =
    "hello\u{1b}]0;owned\u{7} pay\rnothing \u{2066}there\u{2069} \u{1b}]8;;http://evil\u{1b}\\here\u{1b}]8;;\u{1b}\\";
/// A hook that fails in the stranger's words, and one that answers where no account is.
const HOOKS: [(&str, &str); 2] = [
    (
        "echoes.ts",
        "/** @name echoes */\nexport default (ctx) => { throw new Error(ctx.event.content + ctx.event.peer.id); };\n",
    ),
    (
        "answers.ts",
        r#"/** @name answers */
export default (ctx) => {
  if (ctx.event.direction !== "received") return { fire: false };
  return { fire: true, routing: { session: "s-" + ctx.event.peer.id },
    deliveryContext: { channel: "webhook", accountId: "nobody", peerId: ctx.event.peer.id, replyToId: ctx.event.id } };
};
"#,
    ),
];

/// What of `said` could steer a terminal.
fn steering(said: &Said) -> Option<char> {
    let turns_round =
        |c: char| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let steers = |c: char| turns_round(c) || c.is_control() && c != '\n' && c != '\t';
    [&said.out, &said.err]
        .into_iter()
        .find_map(|text| text.chars().find(|c| steers(*c)))
}

#[tokio::test(flavor = "multi_thread")]
#[expect(clippy::too_many_lines, reason = "a story or a table is read from top to bottom")]
async fn no_command_prints_what_steers_the_terminal() {
    let world = World::start(Setup {
        hooks: HOOKS.map(|(name, text)| (name, text.to_owned())).to_vec(),
        ..Setup::default()
    })
    .await;

    // Which characters a name may have is the door's affair: what it lets in is printed somewhere.
    let strange: String = NAME.chars().filter(|c| !c.is_control()).collect();
    for peer in [strange.as_str(), "eve"] {
        let mut sent = event(&format!("strange-{}", peer.len()), peer, TEXT);
        sent["from"]["displayName"] = Value::from(NAME);
        send(&world, &sent).await;
    }

    let dead = eventually("a dead letter", PATIENCE, async || {
        let said = world.nexus(&["dlq", "list"]).await;
        if said.out.contains(TURNED) {
            Ok(said.out)
        } else {
            Err(said.out)
        }
    })
    .await;
    let number = dead.split_whitespace().find(|word| word.parse::<u64>().is_ok());
    let number = number.expect("its number").to_owned();

    let wish = serde_json::json!({
        "kind": "remind", "parameters": {"subject": TEXT, "target": "x/y", "message": TEXT},
        "schedule": {"type": "absolute", "at": 4_000_000_000_000_i64},
    });
    let _ = world
        .nexus(&["intent", "propose", &wish.to_string(), "--session", &strange])
        .await;

    let session = format!("s-{strange}");
    let id = format!("e2e:strange-{}", strange.len());
    let mut seen = 0;
    let commands: [&[&str]; 25] = [
        &["doctor"],
        &["tail", "--last", "5", "--limit", "5"],
        &["top", "--plain", "--limit", "1"],
        &["trace", &id],
        &["events", "search", "hello"],
        &["events", "show", &id],
        &["dlq", "list"],
        &["dlq", "show", &number],
        &["recover", "list"],
        &["breaker", "list", "--all"],
        &["session", "list"],
        &["session", "show", "default", &session],
        &["session", "wait", "default", &session],
        &["hook", "list"],
        &["hook", "show", "echoes"],
        &["hook", "logs", "echoes"],
        &["hook", "logs", "answers"],
        &["hook", "show", NAME],
        &["schedule", "list"],
        &["intent", "list"],
        &["approval", "list"],
        &["approval", "show", NAME],
        &["owner", "list"],
        &["session", "show", NAME, NAME],
        &["events", "show", NAME],
    ];

    for command in commands {
        for json in [false, true] {
            let arguments: Vec<&str> = json
                .then_some("--json")
                .into_iter()
                .chain(command.iter().copied())
                .collect();
            let said = tokio::time::timeout(Duration::from_secs(60), world.nexus(&arguments)).await;
            let said = said.unwrap_or_else(|_| panic!("nexus {arguments:?} does not end"));

            assert_eq!(steering(&said), None, "nexus {arguments:?}: {said:?}");
            seen += usize::from(said.out.contains("202e") || said.err.contains("202e"));
        }
    }

    assert!(seen >= 6, "the stranger's name was printed by {seen} commands only");
    world.stack.stop().await;
}
