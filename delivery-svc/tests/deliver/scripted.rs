//! A platform that answers as its script says.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use delivery_svc::attempt::{CallOutcome, Repetition};
use delivery_svc::channel::{Channel, ChannelTraits, SendRequest};
use delivery_svc::markdown::telegram;
use delivery_svc::plan::{PartLayout, TextFormat};

/// Name of the channel.
pub(crate) const SCRIPTED: &str = "scripted";

/// What the platform does, and what it was asked; clones share both.
#[derive(Clone, Default)]
pub(crate) struct Script {
    pub(crate) repetition: Repetition,
    /// Form and size of parts; `None` = Telegram's.
    layout: Option<PartLayout>,
    /// Outcomes of the next calls; `None` = the call never ends. Further calls are accepted.
    answers: Arc<Mutex<VecDeque<Option<CallOutcome>>>>,
    calls: Arc<Mutex<Vec<String>>>,
}

impl Script {
    /// Creates a script of `answers`.
    pub(crate) fn new(repetition: Repetition, answers: impl IntoIterator<Item = Option<CallOutcome>>) -> Self {
        Self {
            repetition,
            layout: None,
            answers: Arc::new(Mutex::new(answers.into_iter().collect())),
            calls: Arc::default(),
        }
    }

    /// Gives parts the form and size of `layout`.
    pub(crate) const fn with_layout(mut self, layout: PartLayout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// Returns the texts that were sent, in order.
    pub(crate) fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes the call with `text`; returns what the script has for it.
    fn take_answer(&self, text: &str) -> Option<Option<CallOutcome>> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.push(text.to_owned());
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }
}

#[async_trait::async_trait]
impl Channel for Script {
    fn traits(&self, _account: &str) -> ChannelTraits {
        ChannelTraits {
            layout: self.layout.unwrap_or(PartLayout {
                format: TextFormat::TelegramHtml,
                limit: Some(telegram::MESSAGE),
                max_lines: None,
            }),
            waits_for_remote: true,
            repetition: self.repetition,
            finds_parts: false,
            typing_lasts: None,
            previews: false,
            max_file_bytes: None,
        }
    }

    async fn send(&self, shipment: &SendRequest<'_>) -> CallOutcome {
        match self.take_answer(&shipment.part.content) {
            Some(Some(outcome)) => outcome,
            Some(None) => std::future::pending().await,
            None => CallOutcome::Accepted {
                platform_ids: vec!["7".to_owned()],
                live: None,
            },
        }
    }
}
