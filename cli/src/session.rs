//! `nexus session release`: lets a quarantined session run again.

use anyhow::{Context as _, Result, bail};
use shared::bus::{Bus, claim};
use shared::model::session::SessionRef;
use shared::wire::headers::Carrier;
use shared::wire::session_mark::SessionMark;
use shared::wire::subject;
use shared::wire::topology::buckets::SESSION_OVERRIDES;

use crate::args::{Common, SessionAction};
use crate::output::bus;

/// Runs the command.
///
/// # Errors
/// Where the session is not quarantined, or the server cannot be asked.
pub async fn execute(common: &Common, action: SessionAction) -> Result<()> {
    let bus = bus(common).await?;
    match action {
        SessionAction::Release { persona, session } => {
            let session = SessionRef { persona, session };
            let why = release(&bus, &session).await?;
            println!("{session} is released; it was quarantined because its {why}");
            Ok(())
        }
    }
}

/// Takes the quarantine's mark off `session` and claims it; answers why it was quarantined. A broker that has not
/// heard of it yet ends that claim, and claims the session itself once it has.
///
/// # Errors
/// Where the session is not quarantined, or the server cannot be asked.
pub async fn release(bus: &Bus, session: &SessionRef) -> Result<String> {
    let subject = subject::claim(session);
    let key = subject.strip_prefix("nexus.claim.").context("a claim's subject")?;
    let marks = bus.kv::<SessionMark>(SESSION_OVERRIDES);
    let mark = marks.get(key).await?;
    let Some((why, revision)) = mark.and_then(|mark| Some((mark.value.quarantined?, mark.revision))) else {
        bail!("{session} is not quarantined");
    };
    marks.delete(key, Some(revision)).await?;
    claim::publish(bus, session, &Carrier::default()).await?;
    Ok(why)
}

#[cfg(test)]
mod tests {
    use shared::bus::NatsConfig;
    use shared::model::time::UnixMillis;
    use shared::testing::nats::NatsServer;
    use shared::wire::session_mark::ClaimTries;
    use shared::wire::topology::{streams, topology};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_released_session_has_no_mark_and_a_claim() {
        let server = NatsServer::start().await;
        let config = NatsConfig {
            servers: vec![server.url()],
            ..NatsConfig::default()
        };
        let bus = Bus::connect(&config, "test").await.expect("the server is there");
        bus.ensure(&topology(1), false).await.expect("the topology is made");
        let session = SessionRef {
            persona: "default".to_owned(),
            session: "main *".to_owned(),
        };
        let subject = subject::claim(&session);
        let key = subject.strip_prefix("nexus.claim.").expect("a claim's subject");
        let marks = bus.kv::<SessionMark>(SESSION_OVERRIDES);
        let mut mark = SessionMark {
            session: session.clone(),
            quarantined: None,
            tries: Some(ClaimTries { claim: 1, begun: 1 }),
            since: UnixMillis(1),
        };
        marks.put(key, &mark).await.expect("on trial");
        let refused = release(&bus, &session).await.expect_err("not quarantined");
        assert!(refused.to_string().contains("is not quarantined"), "{refused}");
        mark.quarantined = Some("claim came again and again".to_owned());
        marks.put(key, &mark).await.expect("quarantined");
        let why = release(&bus, &session).await.expect("released");
        assert_eq!(why, "claim came again and again");
        assert_eq!(marks.get(key).await.expect("a bucket"), None);
        let claimed = bus.last_on_subject(streams::CLAIMS, &subject).await.expect("claims");
        assert!(claimed.is_some());
    }
}
