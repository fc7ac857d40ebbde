//! `PreToolUse`: the decision of the hooks about a call. *Pure.*
//!
//! The hooks run one after the other by (priority, layer, name). Each sees the arguments as rewritten so far, and the
//! first denial ends the chain. If arguments changed after a gate had allowed them, the gates see them once more; a
//! change in that round is a denial. A gate that fails denies. Whether a human must decide is determined last, for
//! the final arguments. Nothing is kept between two runs, so the whole chain may run again. Source:
//! `docs/design/sessions.md` §7.2.

use std::sync::Arc;

use serde_json::Value;
use shared::model::approval::ApprovalAsk;

use super::declared::{DeclaredHook, OnFailure};
use super::outcome::{HookContext, HookOutcome, RunHookError};

/// Decision about a call.
#[derive(Debug, Clone, PartialEq)]
pub enum GateDecision {
    /// The call runs with these arguments.
    Run {
        /// Final arguments after all rewrites.
        arguments: Value,
    },
    /// The call does not run.
    Denied {
        /// Reason for the denial, for the model to read.
        error: String,
    },
    /// A human must decide first.
    Ask {
        /// Persons to ask, and the time that they have.
        ask: Box<ApprovalAsk>,
        /// Final arguments after all rewrites.
        arguments: Value,
    },
}

/// The running chain of hooks over one call.
#[derive(Debug, Clone)]
pub struct GateChain {
    hooks: Vec<Arc<DeclaredHook>>,
    at: usize,
    /// Whether the gates see the arguments for the second time.
    again: bool,
    /// Context for the next hook.
    context: HookContext,
    /// Whether the arguments changed after a gate, even one that did not apply to the earlier arguments.
    changed: bool,
    asks: Vec<ApprovalAsk>,
    denied: Option<String>,
}

impl GateChain {
    /// Creates the chain of `hooks`, in their order, over the call of `context`.
    #[must_use]
    pub const fn new(hooks: Vec<Arc<DeclaredHook>>, context: HookContext) -> Self {
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

    /// Returns the hook that runs next and its context; `None` at the end of the chain.
    pub fn next_due(&mut self) -> Option<(Arc<DeclaredHook>, &HookContext)> {
        loop {
            if self.denied.is_some() {
                return None;
            }

            let Some(hook) = self.hooks.get(self.at).cloned() else {
                // The chain is at its end: it starts once more if a gate has judged other arguments.
                if self.again || !self.changed {
                    return None;
                }
                self.again = true;
                self.at = 0;
                // The questions to people were about the former arguments.
                self.asks.clear();

                continue;
            };

            self.at += 1;

            if hook.should_trigger(&self.context) && (!self.again || hook.is_gate()) {
                return Some((hook, &self.context));
            }
        }
    }

    /// Applies the outcome of `hook` to the chain.
    pub fn apply_outcome(&mut self, hook: &DeclaredHook, said: Result<HookOutcome, RunHookError>) {
        // A hook that is not waited for only observes.
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

        // The first denial decides: later hooks are not asked.
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
            // A second pass that changes the arguments again would never end.
            if self.again {
                self.denied = Some(format!("hook `{}` changed the arguments a second time", hook.name));
                return;
            }

            // Gates before this hook have judged other arguments, so they must be asked again.
            let before = self.hooks.get(..self.at.saturating_sub(1)).unwrap_or_default();
            self.changed |= before.iter().any(|hook| hook.is_gate());
            self.context.tool_args = arguments;
        }
    }

    /// Returns the decision of the chain.
    #[must_use]
    pub fn into_result(self) -> GateDecision {
        let arguments = self.context.tool_args;
        match (self.denied, combine_asks(self.asks)) {
            (Some(error), _) => GateDecision::Denied { error },
            (None, Some(ask)) => GateDecision::Ask {
                ask: Box::new(ask),
                arguments,
            },
            (None, None) => GateDecision::Run { arguments },
        }
    }
}

/// Combines several asks into one question: layers only tighten, so no ask replaces another.
#[must_use]
pub fn combine_asks(asks: impl IntoIterator<Item = ApprovalAsk>) -> Option<ApprovalAsk> {
    asks.into_iter().reduce(|one, other| one.and(&other))
}

#[cfg(test)]
mod tests;
