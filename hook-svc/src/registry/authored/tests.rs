use super::*;
use crate::registry::sync::tests::record;

fn request(name: &str, script: &str) -> CreateHook {
    CreateHook {
        name: name.to_owned(),
        description: "Says\n */ @mode one-shot hello".to_owned(),
        mode: HookMode::OneShot,
        script: script.to_owned(),
        created_by: "agent:atlas".to_owned(),
        made_in: None,
    }
}

#[test]
fn a_body_becomes_a_file_and_a_file_stays_one() {
    let source = file_of(&request(
        "greet",
        "const { event } = ctx;\nreturn { fire: event.content === 'hi' };",
    ))
    .expect("a hook");
    let metadata = metadata::parse("greet", &source).expect("it parses");
    assert_eq!((metadata.name.as_str(), metadata.mode), ("greet", HookMode::OneShot));
    assert_eq!(metadata.description.as_deref(), Some("Says * / @mode one-shot hello"));
    assert!(source.contains("const { event } = ctx;\n  {"), "{source}");
    assert!(!source.contains("llm") && !source.contains("dbPath"), "{source}");

    let plain = file_of(&request("greet", "export default () => ({ fire: true });")).expect("a hook");
    assert_eq!(
        metadata::parse("greet", &plain).expect("it parses").mode,
        HookMode::OneShot
    );

    let own = "/** @name Own\n * @mode persistent */\nexport default () => ({ fire: true });";
    assert_eq!(file_of(&request("greet", own)).expect("a hook"), own);
}

#[test]
fn names_and_ids_are_checked_and_syntax_is_told_with_its_line() {
    for name in ["", "Greet", "a/b", "a.b", &"x".repeat(65)] {
        let refused = file_of(&request(name, "return { fire: true };")).expect_err("no name");
        assert!(matches!(refused, AuthorHookError::Name(_)), "{name}: {refused}");
    }

    let broken = file_of(&request("greet", "return {{{")).expect_err("no hook");
    assert!(broken.to_string().starts_with("line "), "{broken}");

    for (id, fits) in [
        ("work/a-b_c.d", true),
        ("a", true),
        ("", false),
        ("/a", false),
        ("a//b", false),
        ("../a", false),
        ("a b", false),
    ] {
        assert_eq!(check_id(id).is_ok(), fits, "{id}");
    }
}

const HOOK: &str = "export default () => ({ fire: true });";

fn write(
    origin: &HookOrigin,
    source: &str,
    current: Option<&HookRecord>,
) -> Result<Option<HookRecord>, AuthorHookError> {
    let hook = AuthoredHook {
        id: "h",
        source,
        created_by: "operator",
        made_in: None,
        origin,
    };

    written_record(hook, current, UnixMillis(9))
}

#[test]
fn a_push_replaces_what_was_pushed_and_a_tool_makes_new_hooks_alone() {
    let (pushed, tool) = (HookOrigin::Pushed, HookOrigin::Tool);
    let first = write(&pushed, HOOK, None).expect("written").expect("new");
    assert!(first.enabled && first.origin == pushed);
    assert_eq!(
        write(&pushed, HOOK, Some(&first)),
        Ok(None),
        "the same again changes nothing"
    );

    let other = format!("{HOOK}\n");
    let next = write(&pushed, &other, Some(&first)).expect("written").expect("changed");
    assert_eq!(next.source, other);
    assert!(matches!(
        write(&tool, &other, Some(&first)),
        Err(AuthorHookError::Taken { .. })
    ));

    let off = disabled_record(&first, Some("noisy"));
    let next = write(&pushed, &other, Some(&off)).expect("written").expect("changed");
    assert_eq!(
        (next.enabled, next.disabled_reason.as_deref()),
        (false, Some("noisy")),
        "a push is no switch"
    );
}

#[test]
fn a_directorys_hook_is_not_overwritten_or_deleted_but_switched() {
    let file = record("h");
    for origin in [HookOrigin::Pushed, HookOrigin::Tool] {
        assert!(matches!(
            write(&origin, HOOK, Some(&file)),
            Err(AuthorHookError::Taken { .. })
        ));
    }

    let kept = deleted_record(&file).expect_err("it is a file");
    assert_eq!(
        kept.to_string(),
        "hook h is a file in directory hooks: delete the file, or run `nexus hook disable h`"
    );

    let off = disabled_record(&file, None);
    assert_eq!((off.enabled, &off.disabled_reason), (false, &None));
    assert!(enabled_record(&off).enabled);
}

#[test]
fn a_deleted_hook_keeps_its_source_and_frees_its_name() {
    let made = write(&HookOrigin::Tool, HOOK, None).expect("written").expect("new");
    let gone = deleted_record(&made).expect("deleted");
    assert!(is_deleted(&gone) && gone.source == HOOK);
    let again = write(&HookOrigin::Tool, HOOK, Some(&gone))
        .expect("written")
        .expect("new again");
    assert!(again.enabled && again.disabled_reason.is_none());
}

#[test]
fn the_status_shown_is_what_keeps_it_from_running() {
    let state = |status| HookState {
        status,
        ..HookState::default()
    };
    let good = record("h");
    let broken = HookRecord {
        parse_error: Some("line 3".to_owned()),
        ..good.clone()
    };

    let off = disabled_record(&good, None);
    let none = ConfiguredChannels::default();
    let view = |record: &HookRecord, state: Option<&HookState>, breaker: Option<&Breaker>, there| {
        hook_view(record, state, breaker, there, UnixMillis(9))
    };
    let open = opened(&source_hash(&good));
    for (record, status, breaker, shown) in [
        (&good, HookStatus::Active, None, HookStatus::Active),
        (&good, HookStatus::Active, Some(&open), HookStatus::Paused),
        (&good, HookStatus::Disabled, Some(&open), HookStatus::Disabled),
        (&broken, HookStatus::Active, None, HookStatus::Errored),
        (&off, HookStatus::Active, Some(&open), HookStatus::Disabled),
    ] {
        assert_eq!(view(record, Some(&state(status)), breaker, &none).status, shown);
    }

    // A missing channel keeps the hook from running if nothing else does.
    let needs = |record: &HookRecord| {
        let mut needing = record.clone();
        needing.metadata.needs_channels = vec!["sms:home".to_owned()];
        needing
    };
    let there = ConfiguredChannels {
        accounts: [("sms".to_owned(), ["home".to_owned()].into())].into(),
    };

    let waiting = view(&needs(&good), None, Some(&open), &none);
    assert_eq!(waiting.status, HookStatus::Waiting);
    assert!(
        waiting
            .disabled_reason
            .is_some_and(|reason| reason.contains("`sms:home`"))
    );
    assert_eq!(view(&needs(&good), None, None, &there).status, HookStatus::Active);
    assert_eq!(view(&needs(&off), None, None, &none).status, HookStatus::Disabled);
    assert_eq!(view(&needs(&broken), None, None, &none).status, HookStatus::Errored);

    let fired = HookState {
        fired_once: Some(shared::model::hook::FiredOnce {
            event_id: shared::model::event::EventId::parse("a:1").expect("valid"),
            result: shared::model::hook::HookResult::default(),
        }),
        trigger_count: 1,
        ..state(HookStatus::Disabled)
    };

    let again = restarted_state(Some(&fired)).expect("it had fired");
    assert_eq!((restarted_state(Some(&again)), restarted_state(None)), (None, None));

    let next = (next_life(Some(&fired)), next_life(None));
    assert_eq!(next, (again.clone(), HookState::default()));
    assert_eq!(
        (again.status, again.fired_once, again.trigger_count),
        (HookStatus::Active, None, 1)
    );
}

/// A breaker that is open for the source with `content_hash`.
fn opened(content_hash: &str) -> Breaker {
    Breaker {
        circuit: BreakerState::Open { until: UnixMillis(100) },
        ..Breaker::for_hook("h", content_hash)
    }
}

#[test]
fn the_health_shown_is_that_of_the_breaker_for_the_source_in_force() {
    let good = record("h");
    let changed = HookRecord {
        source: format!("{}\n", good.source),
        ..good.clone()
    };
    // The hash of a file that does not parse names a source that does not run.
    let unparsed = HookRecord {
        content_hash: "of an invalid file".to_owned(),
        ..good.clone()
    };

    let none = ConfiguredChannels::default();
    let open = opened(&source_hash(&good));
    let closed = open.reset();
    for status in [HookStatus::Active, HookStatus::Degraded, HookStatus::Paused] {
        let state = HookState {
            status,
            ..HookState::default()
        };
        let shown = |record, breaker| hook_view(record, Some(&state), breaker, &none, UnixMillis(200)).status;

        assert_eq!(shown(&good, Some(&open)), HookStatus::Paused);
        assert_eq!(shown(&unparsed, Some(&open)), HookStatus::Paused);
        assert_eq!(shown(&good, Some(&closed)), HookStatus::Active);
        assert_eq!(shown(&good, None), HookStatus::Active);
        assert_eq!(shown(&changed, Some(&open)), HookStatus::Active);

        // Neither enabling it nor its next life closes the breaker.
        assert_eq!(next_life(Some(&state)).status, status);
        assert_eq!(restarted_state(Some(&state)), None);
    }
}

#[test]
fn agents_change_their_own_hooks_and_operators_all() {
    let mut own = record("greet");
    own.created_by = "agent:atlas".to_owned();

    for by in [None, Some(OPERATOR), Some("agent:atlas")] {
        assert!(may_change(&own, by).is_ok(), "{by:?}");
    }

    let refused = may_change(&own, Some("agent:bella")).expect_err("it is another's");
    assert_eq!(
        refused.to_string(),
        "hook greet belongs to agent:atlas; only its author and operators can change it"
    );
    assert!(
        may_change(&record("filed"), Some("agent:atlas")).is_err(),
        "the directory's"
    );
}
