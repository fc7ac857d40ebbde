use proptest::prelude::*;
use shared::clock::{Clock as _, SystemClock};

use super::*;

fn session(seq: u64) -> GatewaySession {
    GatewaySession {
        id: "s1".to_owned(),
        resume_url: "wss://resume.example.com".to_owned(),
        seq,
    }
}

fn hello() -> Value {
    json!({"t": null, "s": null, "op": 10, "d": {"heartbeat_interval": 41_250}})
}

fn ready() -> Value {
    json!({"t": "READY", "s": 1, "op": 0, "d": {"session_id": "s2", "resume_gateway_url": "wss://r"}})
}

struct Run {
    link: GatewayLink,
    now: Instant,
}

impl Run {
    fn new(session: Option<GatewaySession>) -> Self {
        Self {
            link: GatewayLink::new(session),
            now: SystemClock.monotonic(),
        }
    }

    fn frame(&mut self, frame: &Value) -> Vec<LinkStep> {
        self.link.on_frame(frame, "secret", 0.5, self.now)
    }

    fn pass(&mut self, millis: u64) -> Vec<LinkStep> {
        self.now += Duration::from_millis(millis);
        self.link.on_time(self.now)
    }
}

#[test]
fn a_session_is_begun_and_a_known_one_resumed_from_what_is_stored() {
    let mut run = Run::new(None);
    let steps = run.frame(&hello());
    let LinkStep::Send(identify) = &steps[0] else {
        panic!("{steps:?}")
    };
    assert_eq!(
        (&identify["op"], &identify["d"]["token"]),
        (&json!(2), &json!("secret"))
    );
    assert_eq!(identify["d"]["intents"], 46_593);
    assert!(
        matches!(&run.frame(&ready())[..], [LinkStep::Dispatch(dispatch)] if dispatch.kind == "READY" && dispatch.session == "s2")
    );
    assert_eq!(
        run.link.session.as_ref().map(|session| session.resume_url.as_str()),
        Some("wss://r")
    );

    let mut run = Run::new(Some(session(7)));
    run.link.confirm(9);
    run.link.confirm(8);
    let resume = json!({"op": 6, "d": {"token": "secret", "session_id": "s1", "seq": 9}});
    assert_eq!(run.frame(&hello()), [LinkStep::Send(resume)]);
}

#[test]
fn heartbeats_say_what_is_stored_and_an_unanswered_one_ends_the_connection() {
    let mut run = Run::new(None);
    run.frame(&hello());
    run.frame(&ready());
    assert_eq!(run.pass(20_000), []);
    assert_eq!(run.pass(625), [LinkStep::Send(json!({"op": 1, "d": null}))]);
    assert_eq!(run.frame(&json!({"op": 11})), [LinkStep::Alive]);

    run.frame(&json!({"op": 0, "s": 5, "t": "MESSAGE_CREATE", "d": {}}));
    run.link.confirm(4);
    assert_eq!(run.pass(41_250), [LinkStep::Send(json!({"op": 1, "d": 4}))]);
    // The gateway may ask for one at any time.
    assert_eq!(
        run.frame(&json!({"op": 1, "d": null})),
        [LinkStep::Send(json!({"op": 1, "d": 4}))]
    );
    assert_eq!(run.pass(41_249), []);
    assert!(matches!(&run.pass(1)[..], [LinkStep::Close(CloseReason::Resume(_))]));
    assert_eq!(run.link.session.as_ref().map(|session| session.seq), Some(4));
}

#[test]
fn what_the_gateway_asks_for_is_done() {
    let leaves = |frame: Value| Run::new(Some(session(3))).frame(&frame);
    assert!(matches!(
        &leaves(json!({"op": 7, "d": null}))[..],
        [LinkStep::Close(CloseReason::Resume(_))]
    ));
    assert!(matches!(
        &leaves(json!({"op": 9, "d": true}))[..],
        [LinkStep::Close(CloseReason::Resume(_))]
    ));
    assert!(matches!(
        &leaves(json!({"op": 9, "d": false}))[..],
        [LinkStep::Close(CloseReason::Identify(_))]
    ));
    assert!(matches!(
        &leaves(json!({"op": 0, "s": 1, "t": "READY", "d": {}}))[..],
        [LinkStep::Close(CloseReason::Identify(_))]
    ));
    assert_eq!(leaves(json!({"op": 99})), []);
    assert_eq!(leaves(json!("strange")), []);
}

#[test]
fn close_codes_resume_begin_anew_or_stop_with_words() {
    for (code, expected) in [
        (None, "resume"),
        (Some(1006), "resume"),
        (Some(4000), "resume"),
        (Some(4008), "resume"),
        (Some(1000), "identify"),
        (Some(1001), "identify"),
        (Some(4007), "identify"),
        (Some(4009), "identify"),
        (Some(4004), "stop"),
        (Some(4011), "stop"),
        (Some(4013), "stop"),
        (Some(4014), "stop"),
    ] {
        let told = match close_reason(code, "words") {
            CloseReason::Resume(_) => "resume",
            CloseReason::Unreadable(_) => "unreadable",
            CloseReason::Identify(_) => "identify",
            CloseReason::Stop(_) => "stop",
        };
        assert_eq!(told, expected, "{code:?}");
    }
    assert!(
        matches!(close_reason(Some(4014), ""), CloseReason::Stop(words) if words.contains("MESSAGE CONTENT INTENT"))
    );
}

#[test]
fn no_token_is_printed() {
    for session in [None, Some(session(3))] {
        let steps = Run::new(session).frame(&hello());
        let printed = format!("{steps:?}");
        assert!(
            printed.starts_with("[Send(op ") && !printed.contains("secret"),
            "{printed}"
        );
    }
}

proptest! {
    #[test]
    fn any_frame_is_taken_in_without_panic(op in 0_u64..14, number in any::<Option<u64>>(), text in "\\PC*", flag in any::<bool>()) {
        let mut run = Run::new(flag.then(|| session(3)));
        for data in [json!(null), json!(flag), json!(text), json!(number), json!({"heartbeat_interval": number, "session_id": text})] {
            let _ = run.frame(&json!({"op": op, "s": number, "t": text, "d": data}));
            let _ = run.pass(1_000);
        }
    }
}
