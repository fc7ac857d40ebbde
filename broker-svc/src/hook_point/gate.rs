//! `PreToolUse`: what the hooks of a call make of it. *Pure.*
//!
//! One after the other by (priority, layer, name), each sees the arguments as rewritten so far; the first denial ends
//! it. Where arguments changed after a gate had allowed, the gates see them once more; a change then is a denial. A
//! gate that does not answer denies. Whether a human must decide is said last, of the final arguments. Nothing is kept
//! between two runs, so the whole chain may run again. Source: `docs/design/sessions.md` §7.2.

use std::sync::Arc;

use serde_json::Value;
use shared::model::approval::Ask;

use super::declared::{Hook, OnFailure};
use super::outcome::{HookContext, HookOutcome, RunHookError};

/// What is to become of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Gated {
    /// It runs with these arguments.
    Run {
        /// The final ones.
        arguments: Value,
    },
    /// It does not run.
    Denied {
        /// Why, for the model to read.
        error: String,
    },
    /// A human decides.
    Ask {
        /// Who, and within how long.
        ask: Box<Ask>,
        /// The final arguments.
        arguments: Value,
    },
}

/// The chain of one call, on its way.
#[derive(Debug, Clone)]
pub struct Gate {
    hooks: Vec<Arc<Hook>>,
    at: usize,
    /// The gates see the arguments once more.
    again: bool,
    /// What the next hook is told.
    context: HookContext,
    /// The arguments changed behind a gate, whether or not it was concerned by what they were then.
    changed: bool,
    asks: Vec<Ask>,
    denied: Option<String>,
}

impl Gate {
    /// The chain of `hooks`, in their order, over the call of `context`.
    #[must_use]
    pub const fn new(hooks: Vec<Arc<Hook>>, context: HookContext) -> Self {
        Self {
            hooks,
            at: 0,
            again: false,
            context,
            changed: false,
            asks: Vec::new(),
            denied: None,
        }
    }

    /// The hook that runs next, and what it is told; none where the chain is at its end.
    pub fn due(&mut self) -> Option<(Arc<Hook>, &HookContext)> {
        loop {
            if self.denied.is_some() {
                return None;
            }

            let Some(hook) = self.hooks.get(self.at).cloned() else {
                if self.again || !self.changed {
                    return None;
                }
                self.again = true;
                self.at = 0;
                self.asks.clear();

                continue;
            };

            self.at += 1;

            if hook.should_trigger(&self.context) && (!self.again || hook.is_gate()) {
                return Some((hook, &self.context));
            }
        }
    }

    /// Takes in what `hook` said.
    pub fn heard(&mut self, hook: &Hook, said: Result<HookOutcome, RunHookError>) {
        // A hook that nobody waits for only looks on.
        if !hook.blocking {
            return;
        }

        let said = match said {
            Ok(said) => said,
            Err(error) => {
                if hook.on_failure == OnFailure::Deny {
                    self.denied = Some(format!("hook `{}` could not decide: {error}", hook.name));
                }
                return;
            }
        };

        if !said.allow {
            let error = said
                .error
                .unwrap_or_else(|| format!("hook `{}` does not allow it", hook.name));
            self.denied = Some(error);
            return;
        }

        self.asks.extend(said.ask);

        if let Some(arguments) = said
            .modified_args
            .filter(|arguments| *arguments != self.context.tool_args)
        {
            if self.again {
                self.denied = Some(format!("hook `{}` changed the arguments a second time", hook.name));
                return;
            }

            let before = self.hooks.get(..self.at.saturating_sub(1)).unwrap_or_default();
            self.changed |= before.iter().any(|hook| hook.is_gate());
            self.context.tool_args = arguments;
        }
    }

    /// What the chain comes to.
    #[must_use]
    pub fn result(self) -> Gated {
        let arguments = self.context.tool_args;
        match (self.denied, together(self.asks)) {
            (Some(error), _) => Gated::Denied { error },
            (None, Some(ask)) => Gated::Ask {
                ask: Box::new(ask),
                arguments,
            },
            (None, None) => Gated::Run { arguments },
        }
    }
}

/// What several ask, as one question: layers only tighten, so nobody's wish takes another's place.
#[must_use]
pub fn together(asks: impl IntoIterator<Item = Ask>) -> Option<Ask> {
    asks.into_iter().reduce(|one, other| one.and(&other))
}

#[cfg(test)]
mod tests;
