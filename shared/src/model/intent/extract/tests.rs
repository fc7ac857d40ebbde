use proptest::prelude::*;

use super::*;

const WISH: &str = r#"{"kind":"remind","parameters":{"subject":"interview","message":"good luck"},"schedule":{"type":"after","seconds":60}}"#;

fn element(text: &str) -> String {
    format!("<hook-intent>{text}</hook-intent>")
}

fn refused(answer: &str) -> (RefusalCode, String) {
    let found = extract_wishes(answer);
    assert!(found.proposals.is_empty(), "{answer}: {found:?}");
    assert_eq!(found.refusals.len(), 1, "{answer}: {found:?}");
    assert!(!found.text.contains("hook-intent"), "{answer}: {}", found.text);
    (found.refusals[0].code, found.text)
}

#[test]
fn an_answer_without_an_element_is_untouched() {
    for answer in ["", "  hello\n\n", "```\ncode\n```", "a < b, hook-intent"] {
        let found = extract_wishes(answer);
        assert_eq!((found.text.as_str(), found.proposals.len()), (answer, 0));
    }
}

#[test]
fn a_wish_is_cut_out_and_read() {
    let answer = format!("I will remind you.\n\n{}\n\nSleep well.", element(WISH));
    let found = extract_wishes(&answer);
    assert_eq!(found.text, "I will remind you.\n\nSleep well.");
    assert_eq!(found.refusals, []);
    assert_eq!(found.proposals[0].kind, "remind");
    assert_eq!(found.proposals[0].parameters["subject"], "interview");
}

#[test]
fn white_space_and_lines_within_are_fine() {
    let pretty = WISH.replace(',', ",\n\n  ");
    let found = extract_wishes(&format!("\n\n{}\n", element(&format!("\n {pretty} \n"))));
    assert_eq!((found.text.as_str(), found.proposals.len()), ("", 1), "{found:?}");
}

#[test]
fn several_in_blocks_of_their_own() {
    let answer = format!("{}\n\nand\n\n{}", element(WISH), element(WISH));
    let found = extract_wishes(&answer);
    assert_eq!((found.proposals.len(), found.text.as_str()), (2, "and"));
}

#[test]
fn everything_else_is_refused_whole_and_says_why() {
    let twice = WISH.replacen('{', r#"{"kind":"remind","#, 1);
    let nested = WISH.replace(r#""subject":"#, r#""subject":"x","subject":"#);
    let unknown = WISH.replacen('{', r#"{"colour":1,"#, 1);

    let runtime = WISH.replacen('{', r#"{"agent":"me","#, 1);
    for (answer, code) in [
        (
            format!("<hook-intent kind=\"x\">{WISH}</hook-intent>"),
            RefusalCode::Attributes,
        ),
        (format!("<hook-intent >{WISH}</hook-intent>"), RefusalCode::Attributes),
        (format!("<hook-intents>{WISH}</hook-intent>"), RefusalCode::Attributes),
        (format!("<hook-intent>{WISH}"), RefusalCode::Unclosed),
        (format!("{WISH}</hook-intent>"), RefusalCode::Unclosed),
        (format!("</hook-intent>{WISH}<hook-intent>"), RefusalCode::Unclosed),
        (element(&format!("<!-- x -->{WISH}")), RefusalCode::Comment),
        (format!("```\n{}\n```", element(WISH)), RefusalCode::CodeFence),
        (format!("```\n\n{}\n\n```", element(WISH)), RefusalCode::CodeFence),
        (element(&format!("\n```json\n{WISH}\n```\n")), RefusalCode::CodeFence),
        (format!("Here: {}", element(WISH)), RefusalCode::Prose),
        (format!("Here it is:\n{}", element(WISH)), RefusalCode::Prose),
        (format!("{}\nDone.", element(WISH)), RefusalCode::Prose),
        (element(&format!("please {WISH}")), RefusalCode::NotAnObject),
        (element(&format!("{WISH} thanks")), RefusalCode::SecondRoot),
        (element(&format!("{WISH}{WISH}")), RefusalCode::SecondRoot),
        (element(&format!("[{WISH}]")), RefusalCode::NotAnObject),
        (element(""), RefusalCode::NotAnObject),
        (element(&element(WISH)), RefusalCode::SecondRoot),
        (format!("{}\n{}", element(WISH), element(WISH)), RefusalCode::SecondRoot),
        (
            element(&format!("{} // note", &WISH[..WISH.len() - 1])),
            RefusalCode::NotAnObject,
        ),
        (element(&twice), RefusalCode::DuplicateField),
        (element(&nested), RefusalCode::DuplicateField),
        (element(&unknown), RefusalCode::BadFields),
        (element(&runtime), RefusalCode::BadFields),
        (element(r#"{"kind":"remind"}"#), RefusalCode::BadFields),
        (
            element(&format!("{{{}}}", " ".repeat(MAX_ELEMENT_BYTES))),
            RefusalCode::TooMuch,
        ),
    ] {
        assert_eq!(refused(&answer).0, code, "{answer}");
    }
}

#[test]
fn prose_beside_a_refused_element_stays() {
    let (_, text) = refused(&format!("Hello.\n\nHere: {} so there.", element(WISH)));
    assert_eq!(text, "Hello.\n\nHere:  so there.");
}

#[test]
fn no_more_than_so_many_are_taken() {
    let answer = vec![element(WISH); MAX_ELEMENTS + 2].join("\n\n");
    let found = extract_wishes(&answer);
    assert_eq!((found.proposals.len(), found.refusals.len()), (MAX_ELEMENTS, 2));
    assert!(
        found
            .refusals
            .iter()
            .all(|refusal| refusal.code == RefusalCode::TooMuch)
    );
}

#[test]
fn nesting_without_end_is_refused_and_not_a_crash() {
    let deep = format!("{{\"kind\":{}", "[".repeat(20_000));
    assert_eq!(refused(&element(&deep)).0, RefusalCode::NotAnObject);
}

proptest! {
    #[test]
    fn nothing_panics_and_no_tag_reaches_the_user(
        parts in proptest::collection::vec(prop_oneof![
            Just("<hook-intent>".to_owned()), Just("</hook-intent>".to_owned()), Just("<hook-intent".to_owned()),
            Just("\n".to_owned()), Just("\n\n".to_owned()), Just("```".to_owned()), Just(WISH.to_owned()),
            Just("{\"kind\":".to_owned()), Just("}".to_owned()), "\\PC{0,12}", Just("<!--".to_owned()),
        ], 0..24)
    ) {
        let answer = parts.concat();
        let found = extract_wishes(&answer);
        if answer.contains(NAME) || answer.contains(CLOSING) {
            prop_assert!(!found.text.contains(OPENING), "{}", found.text);
        }
        prop_assert!(found.proposals.len() <= MAX_ELEMENTS);
    }

    #[test]
    fn a_wish_among_blocks_is_always_read_and_the_rest_stays(before in "[a-z ]{1,20}", after in "[a-z ]{1,20}") {
        prop_assume!(!before.trim().is_empty() && !after.trim().is_empty());
        let found = extract_wishes(&format!("{before}\n\n{}\n\n{after}", element(WISH)));
        prop_assert_eq!(found.proposals.len(), 1);
        let rest = format!("{before}\n\n{after}");
        prop_assert_eq!(found.text, rest.trim());
    }

    #[test]
    fn any_text_never_panics(text in "\\PC{0,200}") {
        let _ = extract_wishes(&text);
        let _ = extract_wishes(&element(&text));
    }
}
