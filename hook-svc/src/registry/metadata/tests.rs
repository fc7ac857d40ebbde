use super::*;
use proptest::prelude::*;
use shared::model::hook::{DEFAULT_PRIORITY, DEFAULT_TIMEOUT_MS};

const BODY: &str =
    "export default async function (ctx: HookContext): Promise<HookResult> { return { fire: false }; }\n";

fn check(block: &str) -> Result<HookMetadata, String> {
    parse("work/hook", &format!("{block}\n{BODY}")).map_err(|error| error.to_string())
}

#[test]
fn every_tag_is_read() {
    let block = "/**\n * @name Mom 2FA Helper\n * @description Reads codes\n *   and sends them on\n * @mode one-shot\n \
                 * @priority 85\n * @schedule every 30m\n * @schedule cron 0 9 * * MON-FRI\n * @timezone America/Chicago\n \
                 * @timeout 10s\n * @fallback\n * @match channel=imessage,sms direction=received from=+1555*\n \
                 * @allow net=api.example.com, http://10.0.0.7:8080\n \
                 * @needs-channel sms\n \
                 * @author me@example.com\n */";

    assert_eq!(
        check(block),
        Ok(HookMetadata {
            name: "Mom 2FA Helper".to_owned(),
            description: Some("Reads codes and sends them on".to_owned()),
            mode: HookMode::OneShot,
            priority: 85,
            timeout_ms: 10_000,
            schedules: vec!["every 30m".to_owned(), "cron 0 9 * * MON-FRI".to_owned()],
            timezone: Some("America/Chicago".to_owned()),
            fallback: true,
            match_rule: Some("channel=imessage,sms direction=received from=+1555*".to_owned()),
            allow_net: vec!["https://api.example.com".to_owned(), "http://10.0.0.7:8080".to_owned()],
            needs_channels: vec!["sms".to_owned()],
            other_tags: vec![("author".to_owned(), "me@example.com".to_owned())],
        })
    );
}

#[test]
fn a_file_without_a_block_has_defaults() {
    let metadata = check("// nothing").expect("a plain hook");
    assert_eq!(
        (metadata.name.as_str(), metadata.priority),
        ("work/hook", DEFAULT_PRIORITY)
    );
    assert_eq!(
        (metadata.timeout_ms, metadata.mode),
        (DEFAULT_TIMEOUT_MS, HookMode::Persistent)
    );
}

#[test]
fn the_seed_s_template_is_read() {
    let metadata = check("/**\n * @name My Custom Hook\n * @mode persistent   // or 'one-shot'\n */").expect("reads");
    assert_eq!(
        (metadata.name.as_str(), metadata.mode),
        ("My Custom Hook", HookMode::Persistent)
    );
}

#[test]
fn the_block_with_known_tags_is_taken() {
    let metadata = check("/** Patterns. @see x */\nconst CODE = /\\d+/;\n/** @name Second */").expect("reads");
    assert_eq!(metadata.name, "Second");
}

#[test]
fn malformed_tags_name_their_line() {
    for (tag, message) in [
        (
            "@mode once",
            "line 3: @mode \"once\": expected `persistent` or `one-shot`",
        ),
        ("@mode", "line 3: @mode \"\": expected `persistent` or `one-shot`"),
        ("@priority high", "line 3: @priority \"high\": expected an integer"),
        (
            "@priority 99999999999",
            "line 3: @priority \"99999999999\": expected an integer",
        ),
        (
            "@timeout 10",
            "line 3: @timeout \"10\": expected 1 ms to 5 min, as `500ms`, `10s` or `2m`",
        ),
        (
            "@timeout 6m",
            "line 3: @timeout \"6m\": expected 1 ms to 5 min, as `500ms`, `10s` or `2m`",
        ),
        (
            "@timeout 0s",
            "line 3: @timeout \"0s\": expected 1 ms to 5 min, as `500ms`, `10s` or `2m`",
        ),
        (
            "@schedule daily",
            "line 3: @schedule \"daily\": expected `every …`, `cron …` or `rrule …`",
        ),
        (
            "@timezone no zone",
            "line 3: @timezone \"no zone\": expected a zone such as `America/Chicago`",
        ),
        (
            "@schedule every 5s",
            "line 3: @schedule \"every 5s\": fires more often than once a minute: 5000 and 10000 are 5000 ms apart",
        ),
        (
            "@schedule rrule FREQ=SECONDLY",
            "line 3: @schedule \"rrule FREQ=SECONDLY\": FREQ=SECONDLY is not allowed",
        ),
        (
            "@timezone Mars/Base\n * @schedule every 1h",
            "line 3: @timezone \"Mars/Base\": unknown time zone `Mars/Base`",
        ),
        ("@fallback yes", "line 3: @fallback \"yes\": expected nothing after it"),
        (
            "@match channel",
            "line 3: @match \"channel\": expected `field=value[,value…]` pairs",
        ),
        ("@name", "line 3: @name \"\": expected a name of 1 to 200 characters"),
        ("@name Again\n * @name Twice", "line 4: duplicate tag @name"),
    ] {
        assert_eq!(
            check(&format!("/**\n * Text.\n * {tag}\n */")),
            Err(message.to_owned()),
            "{tag}"
        );
    }
}

#[test]
fn schedules_that_cannot_be_are_refused_with_their_line() {
    for schedule in [
        "cron 99 * * * *",
        "cron 0,30 * * * * *",
        "rrule FREQ=NEVER",
        "every soon",
        "cron 0 9 * *",
    ] {
        let said = check(&format!("/**\n * @name N\n * @schedule {schedule}\n */")).expect_err(schedule);
        assert!(said.starts_with(&format!("line 3: @schedule {schedule:?}: ")), "{said}");
    }

    let many = |count: usize| check(&format!("/**\n{} */", " * @schedule every 1h\n".repeat(count)));
    assert!(many(MAX_SCHEDULES).is_ok());
    assert_eq!(
        many(MAX_SCHEDULES + 1),
        Err("line 18: more than 16 @schedule tags".to_owned())
    );

    // The zone counts at any position, and a schedule may be over.
    let over =
        "/**\n * @schedule rrule DTSTART:20200101T000000 RRULE:FREQ=DAILY;COUNT=3\n * @timezone Europe/Berlin\n */";
    assert!(check(over).is_ok());
}

#[test]
fn what_is_no_hook_is_refused_with_its_line() {
    let error = |source: &str| parse("x", source).expect_err("no hook");
    assert_eq!(error("export const a = 1;\n").fault, HookFault::NoDefaultExport);

    let broken = error("// fine\nexport default function ( {\n");
    assert!(matches!(broken.fault, HookFault::Syntax(_)), "{broken}");
    assert!(broken.line >= 2, "{broken}");
    assert_eq!(
        error(&"x".repeat(MAX_SOURCE_BYTES + 1)).fault,
        HookFault::TooLong(MAX_SOURCE_BYTES + 1)
    );
    assert!(parse("x", "const h = () => ({ fire: false });\nexport { h as default };\n").is_ok());
}

#[test]
fn deep_nesting_is_an_answer_not_a_crash() {
    for opening in [
        "(",
        "[",
        "{",
        "!",
        "a=>",
        "if(a)",
        "`${",
        "new ",
        "a?",
        "type A = [",
        "<A>",
        "x=",
        "class{a=",
    ] {
        let source = opening.repeat(MAX_SOURCE_BYTES / opening.len());
        assert!(parse("x", &source).is_err(), "{opening}");
    }
}

proptest! {
    #[test]
    fn no_input_panics(source in ".{0,400}") {
        let _ = parse("x", &source);
    }

    #[test]
    fn no_block_panics(lines in proptest::collection::vec("( \\* )?@?[a-z]{0,11} ?.{0,30}", 0..8)) {
        let _ = check(&format!("/**\n{}\n*/", lines.join("\n")));
    }

    #[test]
    fn every_allowed_timeout_is_read(seconds in 1_u64..=300) {
        prop_assert_eq!(check(&format!("/** @timeout {seconds}s */")).expect("reads").timeout_ms, seconds * 1_000);
    }
}

#[test]
fn the_channels_that_a_hook_needs_are_read() {
    let read = |tag: &str| {
        parse(
            "h",
            &format!("/**\n * {tag}\n */\nexport default () => ({{ fire: false }});\n"),
        )
    };

    let needs = |tag: &str| read(tag).expect("a hook").needs_channels;
    assert_eq!(needs("@needs-channel sms"), ["sms"]);
    assert_eq!(
        needs("@needs-channel webhook:owner, whatsapp:work // both"),
        ["webhook:owner", "whatsapp:work"]
    );

    for wrong in ["", "a b", "sms:", ":x", "a:b:c", "a,,b", "1,2,3,4,5,6,7,8,9"] {
        let error = read(&format!("@needs-channel {wrong}")).expect_err("malformed");
        assert_eq!(error.line, 2, "{wrong}");
    }
}
