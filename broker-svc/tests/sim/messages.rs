//! What people write to the session.

use std::sync::Arc;

use broker_svc::session::{InboxItem, PendingDispatch};
use shared::model::dispatch::{DeliveryContext, Dispatch};
use shared::model::event::EventId;
use shared::model::permission::{PermissionLevel, PermissionSet};
use shared::model::session::QueueMode;
use shared::model::time::UnixMillis;
use shared::testing::sample;
use shared::wire::headers::TraceCarrier;

use crate::world::{World, session};

/// Dispatches that come in one run, at most.
const MOST_DISPATCHES: u64 = 14;

impl World {
    pub(crate) fn dispatch(&mut self) {
        let number = self.arrivals.len() as u64 + 1;

        if self.dispatches().count() as u64 >= MOST_DISPATCHES {
            return;
        }

        use QueueMode::{Collect, Followup, Interrupt, Steer, SteerBacklog};

        let modes = [Followup, Followup, Collect, Steer, SteerBacklog, Interrupt];
        let mode = modes[usize::try_from(self.chance.below(6)).unwrap_or(0)];
        let event_id = EventId::parse(format!("test:{number}")).expect("an event id");
        let timestamp = UnixMillis(self.now);

        let permissions = PermissionSet {
            level: if self.chance.once_in(4) {
                PermissionLevel::Minimal
            } else {
                PermissionLevel::Full
            },
            ..PermissionSet::default()
        };

        let peer = self.chance.below(2).to_string();
        let dispatch = made(number, event_id, timestamp, mode, permissions, peer);
        self.say(&format!("dispatch {number} {mode:?}"));
        self.push(Arc::new(dispatch));
    }

    /// The same dispatch again, beyond the server's window.
    pub(crate) fn duplicate(&mut self) {
        let Some(first) = self.dispatches().next() else { return };
        let again = Arc::clone(&first.dispatch);
        if self.dispatches().count() < 2 * usize::try_from(MOST_DISPATCHES).unwrap_or(0) {
            self.say("the first dispatch again");
            self.push(again);
        }
    }

    fn push(&mut self, dispatch: Arc<Dispatch>) {
        self.arrivals.push(InboxItem::Dispatch(PendingDispatch {
            sequence: self.arrivals.len() as u64 + 1,
            arrived: UnixMillis(self.now),
            dispatch,
            carrier: TraceCarrier::default(),
            is_repeated: false,
            is_redriven: false,
        }));
        self.claim_perhaps();
    }

    pub(crate) fn dispatches(&self) -> impl Iterator<Item = &PendingDispatch> {
        self.arrivals.iter().filter_map(|arrival| match arrival {
            InboxItem::Dispatch(pending) => Some(pending),
            InboxItem::Order(_) | InboxItem::Decision(_) => None,
        })
    }
}

fn made(
    number: u64,
    event_id: EventId,
    timestamp: UnixMillis,
    mode: QueueMode,
    permissions: PermissionSet,
    peer: String,
) -> Dispatch {
    let one = sample::dispatch(event_id, number, "hook", session(), timestamp);
    Dispatch {
        queue_mode: Some(mode),
        permissions,
        delivery_context: DeliveryContext {
            peer_id: Some(peer),
            ..one.delivery_context
        },
        ..one
    }
}
