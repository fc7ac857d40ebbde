//! `nexus channel pairings`, `pair` and `unpair`: the operator's requests to adapter-svc.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use serde::de::DeserializeOwned;
use shared::bus::Bus;
use shared::model::pairing_api::{
    GrantPairing, ListPairings, PairingAnswer, PairingList, PairingState, PairingView, WithdrawPairing,
};

use super::AccountId;
use crate::args::Common;
use crate::connect::connect_bus;
use crate::output::{Column, Table, View};
use crate::service::call_service;

/// Longest time that an answer may take.
const PATIENCE: Duration = Duration::from_secs(15);

async fn ask_adapter<Q: Serialize, A: DeserializeOwned>(bus: &Bus, endpoint: &str, question: &Q) -> Result<A> {
    let subject = format!("nexus.svc.pairing.{endpoint}");
    call_service(
        bus,
        "adapter-svc with an account on a platform",
        &subject,
        question,
        PATIENCE,
    )
    .await
}

/// Returns the pairings of all accounts.
///
/// # Errors
/// Fails if adapter-svc does not answer.
pub(crate) async fn fetch_pairings(bus: &Bus) -> Result<Vec<PairingView>> {
    let list: PairingList = ask_adapter(bus, "list", &ListPairings {}).await?;
    Ok(list.pairings)
}

pub(super) async fn list_pairings(common: &Common, account: Option<&AccountId>) -> Result<()> {
    let bus = connect_bus(common).await?;
    let mut pairings = fetch_pairings(&bus).await?;
    pairings.retain(|one| account.is_none_or(|id| one.channel == id.channel && one.account == id.name));

    let columns = [
        Column::text("ACCOUNT"),
        Column::id("SENDER"),
        Column::text("NAME"),
        Column::text("STATE"),
        Column::time("SINCE"),
        Column::time("EXPIRES"),
        Column::text("NOTE").extra(),
    ];
    let table = Table::new(&columns).with(&pairings, |one| {
        [
            format!("{}/{}", one.channel, one.account).into(),
            (&one.sender).into(),
            one.name.as_ref().into(),
            one.state.name().into(),
            one.since.into(),
            one.expires_at.into(),
            note_of(one).into(),
        ]
    });
    View::list(&pairings, table)?.show(common)
}

/// Returns the fault of `pairing`; empty if it has none.
const fn note_of(pairing: &PairingView) -> &'static str {
    match (pairing.is_restored, pairing.state) {
        (false, _) => "",
        (true, PairingState::Lost | PairingState::Waiting) => "was paired; KV `pairings` was restored or lost",
        (true, PairingState::Paired | PairingState::Withdrawn | PairingState::Expired) => {
            "KV `pairings` is older than AUDIT"
        }
    }
}

pub(super) async fn grant_pairing(common: &Common, account: AccountId, code: String) -> Result<()> {
    let bus = connect_bus(common).await?;
    let request = GrantPairing {
        channel: account.channel,
        account: account.name,
        code,
    };
    let answer: PairingAnswer = ask_adapter(&bus, "grant", &request).await?;
    show_answer(common, &answer, "may write to")
}

pub(super) async fn withdraw_pairing(common: &Common, account: AccountId, sender: String) -> Result<()> {
    let bus = connect_bus(common).await?;
    let request = WithdrawPairing {
        channel: account.channel,
        account: account.name,
        sender,
    };
    let answer: PairingAnswer = ask_adapter(&bus, "withdraw", &request).await?;
    show_answer(common, &answer, "may not write to")
}

fn show_answer(common: &Common, answer: &PairingAnswer, outcome: &str) -> Result<()> {
    let PairingView {
        channel,
        account,
        sender,
        name,
        ..
    } = &answer.pairing;
    let who = name
        .as_ref()
        .map_or_else(|| sender.clone(), |name| format!("{name} ({sender})"));
    let before = if answer.changed { "" } else { ", as before" };
    View::one(sender, answer)?
        .line(format!("{who} {outcome} {channel}/{account}{before}"))
        .show(common)
}
