//! An owner at a call that a human must confirm: asked, suspended, taken up again.

use broker_svc::approval::question::MAX_ASKS;
use broker_svc::session::{ApprovalNotification, PlacedOrder};
use broker_svc::turn::Turn;
use broker_svc::turn::arguments::args_hash;
use broker_svc::turn::journal::{CallApproval, call_standing};
use serde_json::Value;
use shared::model::approval::{ApprovalRequest, ApprovalStatus};
use shared::model::dispatch::derived_ulid;
use shared::model::event::EventId;
use shared::model::ledger::{DispatchRef, DropReason, LedgerEntry, ToolCall, ToolOutcome};
use shared::model::order::OrderKind;
use shared::model::time::UnixMillis;
use ulid::Ulid;

use crate::owner::{Fate, Owner};
use crate::people::{asks, decision, gated};
use crate::world::World;

/// What follows at a call.
pub(crate) enum Confirmed {
    /// It runs, with these arguments.
    Run(Value),
    /// It is over, or answered already.
    On,
    /// The turn waits.
    Suspended,
    /// The session is not this owner's any more.
    Gone,
}

impl Owner {
    pub(crate) fn decided(&mut self, world: &mut World, id: &str, status: ApprovalStatus) {
        let decision = decision(id, status, world.edited(id, status));
        let entry = LedgerEntry::ApprovalDecided {
            decision,
            sequence: None,
            cursor: None,
        };
        self.stage(world, entry);
    }

    /// Whether the turn that waits goes on waiting.
    pub(crate) fn stays_suspended(&mut self, world: &mut World) -> bool {
        let Some(awaited) = self.fold.awaited_approval().cloned() else {
            return false;
        };

        if self.canceled || self.machine.is_steering() {
            self.decided(world, &awaited.approval, ApprovalStatus::Canceled);
            return false;
        }

        if world.now < awaited.expires_at.0 {
            return true;
        }

        let status = world.lapse(&awaited.approval).unwrap_or(ApprovalStatus::Expired);
        self.decided(world, &awaited.approval, status);

        false
    }

    /// What the humans say to `call` of `turn`.
    pub(crate) fn confirm(&mut self, world: &mut World, turn: &Turn, call: &ToolCall, faults: bool) -> Confirmed {
        let running = self.fold.running.as_ref().expect("a turn runs");
        let call = ToolCall {
            arguments: gated(running.arguments_of(call)),
            ..call.clone()
        };

        let hash = args_hash(&call.arguments);
        let needed = call.name == "pay" && asks(turn.id);
        let standing = call_standing(running, &call.call, &hash, None);
        let superseded = running
            .last_asked(&call.call)
            .filter(|asked| asked.status == ApprovalStatus::Approved);
        let superseded = superseded.map(|asked| asked.approval.clone());

        let refused = match standing {
            CallApproval::None if needed => return self.ask(world, turn, &call, hash, faults),
            CallApproval::None | CallApproval::Approved => return Confirmed::Run(call.arguments),
            CallApproval::Superseded if running.times_asked(&call.call) < MAX_ASKS => {
                if let Some(id) = superseded {
                    self.decided(world, &id, ApprovalStatus::Superseded);
                    self.superseded.push(id);
                }
                return self.ask(world, turn, &call, hash, faults);
            }
            CallApproval::Pending => return Confirmed::Suspended,
            CallApproval::Denied { .. } => "denied",
            CallApproval::Expired => "expired",
            CallApproval::Canceled => "canceled",
            CallApproval::Superseded => "superseded",
            CallApproval::Used => "used",
        };

        let outcome = ToolOutcome::Error {
            error: refused.to_owned(),
        };
        let call = call.call;
        let unseen = false;
        self.stage(world, LedgerEntry::ToolFinished { call, outcome, unseen });

        Confirmed::On
    }

    fn ask(&mut self, world: &mut World, turn: &Turn, call: &ToolCall, hash: String, faults: bool) -> Confirmed {
        if !self.commit(world, faults) || faults && world.chance.once_in(15) {
            return Confirmed::Gone;
        }

        let running = self.fold.running.as_ref().expect("a turn runs");
        let times = running.times_asked(&call.call).to_string();
        let parts = ["approval", &turn.id.to_string(), &call.call, &hash, &times];
        let id = derived_ulid(running.began_at, &parts).to_string();
        let kept = world.ask(&id);

        // Asked in KV, and not in the ledger.
        if faults && world.chance.once_in(8) {
            return Confirmed::Gone;
        }

        let request = ApprovalRequest {
            id: id.clone(),
            call: call.call.clone(),
            tool: call.name.clone(),
            arguments: call.arguments.clone(),
            arguments_hash: hash,
            policy: String::new(),
            approvers: Vec::new(),
            expires_at: UnixMillis(kept.expires_at),
            asked_in: None,
        };

        self.stage(world, LedgerEntry::ApprovalRequested { request });

        for id in std::mem::take(&mut self.superseded) {
            // Said in KV once the ledger says it, or by nobody.
            if self.commit(world, faults) {
                world.bring(&id, ApprovalStatus::Superseded);
                world.say("superseded");
            } else {
                return Confirmed::Gone;
            }
        }

        if kept.status != ApprovalStatus::Pending {
            self.decided(world, &id, kept.status);
            return Confirmed::On;
        }

        if self.commit(world, faults) {
            Confirmed::Suspended
        } else {
            Confirmed::Gone
        }
    }

    /// The word that a turn waits for, or one that nobody does.
    pub(crate) fn take_decision(&mut self, world: &mut World, told: ApprovalNotification) {
        let ApprovalNotification {
            sequence,
            approval,
            decision,
        } = told;
        let awaited = self.fold.awaited_approval();
        let decision = decision.filter(|_| awaited.is_some_and(|awaited| awaited.approval == approval));
        if let Some(decision) = decision {
            let cursor = Some(self.cursor_after(&[sequence]));
            let sequence = Some(sequence);
            let entry = LedgerEntry::ApprovalDecided {
                decision,
                sequence,
                cursor,
            };

            return self.stage(world, entry);
        }

        let id = approval.parse().unwrap_or(Ulid::nil());
        self.drop_named(world, "approval", id, sequence);
    }

    pub(crate) fn drop_named(&mut self, world: &mut World, kind: &str, id: Ulid, sequence: u64) {
        let cursor = self.cursor_after(&[sequence]);
        let dropped = LedgerEntry::DispatchDropped {
            dispatch: DispatchRef {
                id,
                sequence,
                event_id: EventId::parse(format!("{kind}:{id}")).expect("an id"),
                content: String::new(),
                stranger: None,
            },
            reason: DropReason::ApprovalNotAwaited,
            detail: None,
            cursor,
        };

        self.stage(world, dropped);
    }

    /// An order is carried out.
    pub(crate) fn carry(&mut self, world: &mut World, placed: PlacedOrder) {
        let PlacedOrder { sequence, order, .. } = placed;
        if order.wanted == OrderKind::Reset {
            let reason = "by ada".to_owned();
            self.stage(world, LedgerEntry::SessionReset { reason });
        }

        let cursor = self.cursor_after(&[sequence]);
        let order = Box::new(order);
        let entry = LedgerEntry::Ordered {
            order,
            sequence,
            cursor,
        };

        self.stage(world, entry);
    }

    /// Whether `call` may be begun; ends the turn's part where not.
    pub(crate) fn admit(&mut self, world: &mut World, turn: Turn, call: ToolCall, faults: bool) -> Fate {
        match self.confirm(world, &turn, &call, faults) {
            Confirmed::Run(arguments) => {
                let started = LedgerEntry::ToolStarted {
                    call: call.call.clone(),
                    name: call.name.clone(),
                    args_hash: args_hash(&arguments),
                    arguments: (arguments != call.arguments).then_some(arguments),
                };

                self.stage(world, started);
                self.call(world, turn, call, faults)
            }
            Confirmed::On => {
                self.goes_on(turn);
                Fate::On
            }
            Confirmed::Suspended => self.rest(world, faults),
            Confirmed::Gone => Fate::Gone,
        }
    }

    /// What KV is to say of the questions of the turn that is over.
    pub(crate) fn give_up(&self) -> Vec<(String, ApprovalStatus)> {
        let running = self.fold.running.iter();
        let marks = running.flat_map(|running| {
            running.asked.iter().map(|asked| {
                let begun = running.was_begun(&asked.call) && asked.status == ApprovalStatus::Approved;
                let status = if begun {
                    ApprovalStatus::Consumed
                } else {
                    ApprovalStatus::Canceled
                };

                (asked.approval.clone(), status)
            })
        });

        marks.collect()
    }
}
