//! `nexus tail`: messages as they come, from hook-svc.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use shared::bus::Bus;
use shared::clock::pause;
use shared::wire::operator::tail::{MAX_TAILED, TAILED_STREAMS, TailMessages, TailPage, TailedMessage};

use crate::args::{Common, TailOptions};
use crate::complain;
use crate::connect::connect_bus;
use crate::exit::{Exit, failure};
use crate::output::{Column, LinePrinter};
use crate::service::call_service;

/// Service that answers.
const SERVICE: &str = "hook-svc";
/// Longest wait of one request for a message, in milliseconds.
const WAIT_MS: u64 = 2_000;
/// Longest time that an answer may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// Pause before hook-svc is asked again, after no replica answered.
const AGAIN: Duration = Duration::from_millis(500);

/// Runs the command.
///
/// # Errors
/// Fails if a stream is unknown or hook-svc does not answer. Returns `ReaderGone` if the reader has gone.
pub async fn execute(common: &Common, options: TailOptions) -> Result<()> {
    for name in &options.streams {
        if !TAILED_STREAMS.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            let known = TAILED_STREAMS.join(", ").to_lowercase();
            return Err(failure(Exit::Usage, format!("no stream `{name}`: one of {known}")));
        }
    }

    let bus = connect_bus(common).await?;
    let mut tail = Tail::begin(
        &bus,
        TailMessages {
            streams: options.streams,
            text: options.filter,
            last: options.last,
            ..TailMessages::default()
        },
    );
    let printer = LinePrinter::new(
        common,
        &[
            (Column::clock("TIME"), 12),
            (Column::id("STREAM"), 11),
            (Column::number("SEQUENCE"), 7),
            (Column::id("ID"), 0),
            (Column::text("TEXT"), 0),
        ],
    );

    let mut left = options.limit.unwrap_or(u64::MAX);
    while left > 0 {
        for message in tail.next(left).await? {
            left -= 1;
            let cells = [
                message.at.into(),
                (&message.stream).into(),
                message.sequence.into(),
                (&message.id).into(),
                (&message.text).into(),
            ];
            printer.print(&message.id, &message_json(&message), &cells)?;
        }
    }

    Ok(())
}

fn message_json(message: &TailedMessage) -> Value {
    let mut json = json!({
        "stream": message.stream, "sequence": message.sequence, "subject": message.subject,
        "at": message.at, "payload": message.payload,
    });
    if let Some(bytes) = message.left_out_bytes {
        json["left_out_bytes"] = bytes.into();
    }
    json
}

/// Messages of streams as they come. The place of the reader is here: hook-svc keeps nothing, and any replica goes on.
#[derive(Debug)]
pub struct Tail {
    bus: Bus,
    question: TailMessages,
    is_begun: bool,
}

impl Tail {
    /// Returns the messages that `question` asks for.
    #[must_use]
    pub fn begin(bus: &Bus, question: TailMessages) -> Self {
        Self {
            bus: bus.clone(),
            question,
            is_begun: false,
        }
    }

    /// Returns the next messages, at most `most`; none if there are none for a moment. Says on the standard error how
    /// many were left out.
    ///
    /// # Errors
    /// Fails if hook-svc refuses, or does not answer the first time. Later its replicas may be away for a while.
    pub async fn next(&mut self, most: u64) -> Result<Vec<TailedMessage>> {
        let most = usize::try_from(most).unwrap_or(MAX_TAILED).min(MAX_TAILED);
        let mut is_away = false;
        loop {
            let question = TailMessages {
                limit: most,
                wait_ms: if self.is_begun { WAIT_MS } else { 0 },
                ..self.question.clone()
            };
            let asked = call_service(&self.bus, SERVICE, "nexus.svc.events.tail", &question, PATIENCE);
            let page: TailPage = match asked.await {
                Ok(page) => page,
                Err(error) if self.is_begun && Exit::of_error(&error) == Exit::Unreachable => {
                    if !is_away {
                        complain!("{error}; waiting for it");
                    }
                    is_away = true;
                    pause(AGAIN).await;
                    continue;
                }
                Err(error) => return Err(error),
            };

            self.is_begun = true;
            self.question.cursors = page.cursors;
            if page.dropped > 0 {
                complain!(
                    "{} messages were left out: they come faster than they are read",
                    page.dropped
                );
            }
            return Ok(page.messages);
        }
    }
}
