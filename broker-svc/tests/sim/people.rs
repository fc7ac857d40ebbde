//! Humans and operators: what KV holds of their approvals, their words, the timers, and orders to the session.

use broker_svc::session::{ApprovalNotification, InboxItem, PlacedOrder};
use serde_json::{Value, json};
use shared::model::approval::{ApprovalDecision, ApprovalStatus};
use shared::model::dispatch::derived_ulid;
use shared::model::order::{OrderKind, SessionOrder};
use shared::model::reply::SendDecision;
use shared::model::session::{QueueMode, QueueSettings};
use shared::model::time::UnixMillis;
use ulid::Ulid;

use crate::world::{World, session};

/// How long a human may take, milliseconds.
pub(crate) const EXPIRES_MS: i64 = 9_000;
/// The most that the gates let through of what an approver wrote.
const CAP: u64 = 1_000;
/// Orders of one run, at most.
const MOST_ORDERS: usize = 4;

/// An approval in KV.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kept {
    pub(crate) status: ApprovalStatus,
    pub(crate) expires_at: i64,
    /// What the approver wrote in place of the arguments: see [`edited`].
    pub(crate) edited: Option<u64>,
}

/// Arguments as an approver writes them.
fn edited(amount: u64) -> Value {
    json!({ "amount": amount })
}

/// What the gates make of `arguments`: they cap what an approver wrote.
pub(crate) fn gated(arguments: Value) -> Value {
    let amount = arguments.get("amount").and_then(Value::as_u64);
    amount.map_or(arguments, |amount| edited(amount.min(CAP)))
}

/// Whether a human is asked about the payments of `turn`: follows from the turn alone.
pub(crate) fn asks(turn: Ulid) -> bool {
    (turn.random() / 5).is_multiple_of(2)
}

/// What a session is told of `id`, which ended as `status`.
pub(crate) fn decision(id: &str, status: ApprovalStatus, amount: Option<u64>) -> ApprovalDecision {
    ApprovalDecision {
        id: id.to_owned(),
        status,
        decided_by: None,
        arguments: amount.map(edited),
        response: None,
    }
}

impl World {
    /// Asks; what was asked before stands as it stands.
    pub(crate) fn ask(&mut self, id: &str) -> Kept {
        let expires_at = self.now + EXPIRES_MS;
        let status = ApprovalStatus::Pending;
        let edited = None;
        let asked = Kept {
            status,
            expires_at,
            edited,
        };

        let kept = *self.kept.entry(id.to_owned()).or_insert(asked);
        self.say(&format!("asked {}", kept.status.name()));

        kept
    }

    /// Compare-and-set: of all ends of the waiting the first stands.
    fn decide(&mut self, id: &str, status: ApprovalStatus) {
        if let Some(kept) = self
            .kept
            .get_mut(id)
            .filter(|kept| kept.status == ApprovalStatus::Pending)
        {
            kept.status = status;
            self.say(&format!("{} in KV", status.name()));
        }
    }

    /// Ends the waiting where its time is over; how it stands.
    pub(crate) fn lapse(&mut self, id: &str) -> Option<ApprovalStatus> {
        let kept = self.kept.get(id).copied()?;
        if self.now >= kept.expires_at {
            self.decide(id, ApprovalStatus::Expired);
        }
        self.kept.get(id).map(|kept| kept.status)
    }

    /// What the approver of `id` wrote, where the end of the waiting is their yes.
    pub(crate) fn edited(&self, id: &str, status: ApprovalStatus) -> Option<u64> {
        let kept = self.kept.get(id).filter(|_| status == ApprovalStatus::Approved);
        kept.and_then(|kept| kept.edited)
    }

    /// What the ledger says became of it, once it says so.
    pub(crate) fn bring(&mut self, id: &str, status: ApprovalStatus) {
        if let Some(kept) = self.kept.get_mut(id) {
            let open = [ApprovalStatus::Pending, ApprovalStatus::Approved].contains(&kept.status);
            kept.status = if open { status } else { kept.status };
        }
    }

    /// Tells the session how `id` stands, where it is decided; whoever does may die before it is told.
    pub(crate) fn tell(&mut self, id: &str, faults: bool) {
        let Some(Kept { status, edited, .. }) = self.kept.get(id).copied() else {
            return;
        };

        let is_told = [
            ApprovalStatus::Approved,
            ApprovalStatus::Denied,
            ApprovalStatus::Expired,
        ];

        if !is_told.contains(&status) || faults && self.chance.once_in(4) {
            return;
        }

        let told = |arrival: &InboxItem| matches!(arrival, InboxItem::Decision(told) if told.approval == id);
        // The server knows the id for a while, and sometimes no more.
        if self.arrivals.iter().any(told) && !(faults && self.chance.once_in(6)) {
            return self.claim_perhaps();
        }

        let sequence = self.arrivals.len() as u64 + 1;
        let decision = Some(decision(id, status, edited));
        let approval = id.to_owned();
        self.arrivals.push(InboxItem::Decision(ApprovalNotification {
            sequence,
            approval,
            decision,
        }));

        self.claim_perhaps();
    }

    fn open(&self) -> Vec<String> {
        let open = self
            .kept
            .iter()
            .filter(|(_, kept)| kept.status == ApprovalStatus::Pending);
        open.map(|(id, _)| id.clone()).collect()
    }

    /// A human says something.
    pub(crate) fn word(&mut self) {
        let open = self.open();
        if open.is_empty() {
            return;
        }

        let which = usize::try_from(self.chance.below(open.len() as u64)).unwrap_or(0);
        let status = if self.chance.once_in(3) {
            ApprovalStatus::Denied
        } else {
            ApprovalStatus::Approved
        };

        if self.lapse(&open[which]) == Some(ApprovalStatus::Pending) {
            self.decide(&open[which], status);
            if status == ApprovalStatus::Approved && self.chance.once_in(3) {
                let amount = self.chance.below(2 * CAP);
                let kept = self.kept.get_mut(&open[which]).expect("it is there");
                kept.edited = Some(amount);
            }
        }

        self.tell(&open[which], true);
    }

    /// Timers ring, late or in time.
    pub(crate) fn ring(&mut self, faults: bool) {
        for id in self.open() {
            if self.lapse(&id) == Some(ApprovalStatus::Expired) {
                self.tell(&id, faults);
            }
        }
    }

    /// Somebody orders something; sometimes the same twice.
    pub(crate) fn order(&mut self) {
        let orders = self.arrivals.iter().filter_map(|arrival| match arrival {
            InboxItem::Order(placed) => Some(placed.order.clone()),
            InboxItem::Dispatch(_) | InboxItem::Decision(_) => None,
        });
        let orders: Vec<SessionOrder> = orders.collect();
        if orders.len() >= MOST_ORDERS {
            return;
        }

        let sequence = self.arrivals.len() as u64 + 1;
        let settings = QueueSettings {
            mode: Some(QueueMode::Followup),
            ..QueueSettings::default()
        };

        // What is taken back or edited may have come, be under way, be over, or come later.
        let dispatches: Vec<Ulid> = self.dispatches().map(|pending| pending.dispatch.id).collect();
        let which = usize::try_from(self.chance.below(dispatches.len() as u64 + 1)).unwrap_or(0);
        let dispatch = dispatches.get(which).copied().unwrap_or(Ulid::nil());
        let spares_turn = self.chance.once_in(3);

        let wanted = [
            OrderKind::Abort,
            OrderKind::Interrupt,
            OrderKind::Reset,
            OrderKind::Queue { settings },
            OrderKind::Send {
                decision: Some(SendDecision::Deny),
            },
            OrderKind::Withdraw { dispatch, spares_turn },
            OrderKind::Edit {
                dispatch,
                from: "ada".to_owned(),
                content: format!("edited by order {sequence}"),
                edited_at: UnixMillis(self.now),
            },
        ];

        let wanted = wanted[usize::try_from(self.chance.below(7)).unwrap_or(0)].clone();
        let at = UnixMillis(self.now);
        let order = SessionOrder {
            id: derived_ulid(at, &["order", &sequence.to_string()]),
            target: session(),
            wanted,
            by: "ada".to_owned(),
            reason: String::new(),
            at,
        };

        let again = orders.first().filter(|_| self.chance.once_in(4)).cloned();
        let order = again.unwrap_or(order);
        self.say(&format!("order {}", order.wanted.name()));
        self.arrivals.push(InboxItem::Order(PlacedOrder {
            sequence,
            arrived: at,
            order,
        }));
        self.claim_perhaps();
    }
}
