//! `nexus owner`: makes the link by which a browser's chat page becomes the owner's, and lists such pages, through
//! adapter-svc.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use shared::bus::{Bus, Kv};
use shared::clock::{Clock as _, SystemClock};
use shared::model::owner::{OwnerLink, link_key};
use shared::process::identities::remove_stale_links;
use shared::wire::operator::owner::{ListOwnerPages, OfferOwnerLink, OwnerPages, OwnerPagesRemoved, RemoveOwnerPage};
use shared::wire::topology::buckets;

use crate::args::{Common, OwnerAction};
use crate::connect::connect_caller;
use crate::gateway::find_address;
use crate::launch::keys::random_text;
use crate::output::{Column, Table, View};
use crate::service::call_service;

/// Longest time that an answer may take.
const PATIENCE: Duration = Duration::from_secs(15);

/// Runs the command.
///
/// # Errors
/// Fails if adapter-svc does not answer, or if no such page is bound.
pub async fn execute(common: &Common, action: OwnerAction) -> Result<()> {
    let caller = connect_caller(common).await?;
    let (bus, by) = (&caller.bus, caller.name);
    match action {
        OwnerAction::Link { minutes, url } => {
            let token = random_text();
            let key = link_key(&token);
            let _: OwnerLink = ask(bus, "offer", &OfferOwnerLink { key, minutes, by }).await?;
            let page = url.unwrap_or_else(|| find_address(common));
            let link = page_url(&page, &token);
            View::one(&link, &json!({ "link": link, "minutes": minutes }))?
                .line(&link)
                .line(format!(
                    "The first browser that opens it within {minutes} minutes is the owner's."
                ))
                .show(common)
        }
        OwnerAction::List => {
            let list: OwnerPages = ask(bus, "list", &ListOwnerPages {}).await?;
            list_pages(common, &list.pages)
        }
        OwnerAction::Remove { visitor } => {
            let request = RemoveOwnerPage { visitor, by };
            let _: OwnerPagesRemoved = ask(bus, "remove", &request).await?;
            let visitor = &request.visitor;
            View::one(visitor, &json!({ "visitor": visitor }))?
                .line(format!("{visitor} is not the owner's any more"))
                .show(common)
        }
    }
}

async fn ask<Q: Serialize, A: DeserializeOwned>(bus: &Bus, endpoint: &str, question: &Q) -> Result<A> {
    call_service(
        bus,
        "adapter-svc",
        &format!("nexus.svc.owner.{endpoint}"),
        question,
        PATIENCE,
    )
    .await
}

/// Returns the address of the chat page at `gateway` that claims the link with `token`: behind `#`, so that no server
/// sees or logs the token.
#[must_use]
pub fn page_url(gateway: &str, token: &str) -> String {
    format!("{}/#owner={token}", gateway.trim_end_matches('/'))
}

/// Makes the first link of a stack that this process has started, which can be claimed once within `minutes`. Returns its
/// token.
///
/// # Errors
/// Fails if the link cannot be stored.
pub async fn first_link(bus: &Bus, minutes: u32) -> Result<String> {
    let links: Kv<OwnerLink> = bus.kv(buckets::IDENTITIES);
    let token = random_text();
    let now = SystemClock.now();
    remove_stale_links(&links, now)
        .await
        .context("failed to read the links")?;
    let link = OwnerLink::offered(now, minutes);
    let stored = links.create(&link_key(&token), &link).await;
    stored.context("failed to store the link")?;
    Ok(token)
}

fn list_pages(common: &Common, pages: &[OwnerLink]) -> Result<()> {
    let columns = [Column::id("VISITOR"), Column::text("ACCOUNT"), Column::time("SINCE")];
    let table = Table::new(&columns).with(pages, |link| {
        let visitor = link.claimed_by.as_ref();
        [
            visitor.map(|visitor| &visitor.id).into(),
            visitor.map(|visitor| &visitor.account).into(),
            link.claimed_at.into(),
        ]
    });

    View::list(pages, table)?.show(common)
}
