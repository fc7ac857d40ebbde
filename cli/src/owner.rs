//! `nexus owner`: makes the link by which a browser's chat page becomes the owner's, and lists such pages.

use anyhow::{Context as _, Result};
use serde_json::json;
use shared::bus::{Bus, Kv};
use shared::clock::{Clock as _, SystemClock};
use shared::model::owner::{OwnerLink, link_key};
use shared::wire::topology::buckets;

use crate::args::{Common, OwnerAction};
use crate::connect::connect_bus;
use crate::exit::{Exit, failure};
use crate::gateway::find_address;
use crate::launch::keys::random_text;
use crate::output::{Column, Table, View};

/// Runs the command.
///
/// # Errors
/// Fails if the bus cannot be reached, or if no such page is bound.
pub async fn execute(common: &Common, action: OwnerAction) -> Result<()> {
    let bus = connect_bus(common).await?;
    match action {
        OwnerAction::Link { minutes, url } => {
            let token = offer_link(&bus, minutes).await?;
            let page = url.unwrap_or_else(|| find_address(common));
            let link = page_url(&page, &token);
            View::one(&link, &json!({ "link": link, "minutes": minutes }))?
                .line(&link)
                .line(format!(
                    "The first browser that opens it within {minutes} minutes is the owner's."
                ))
                .show(common)
        }
        OwnerAction::List => list_pages(common, &bus).await,
        OwnerAction::Remove { visitor } => remove_page(common, &bus, &visitor).await,
    }
}

fn link_bucket(bus: &Bus) -> Kv<OwnerLink> {
    bus.kv(buckets::IDENTITIES)
}

/// Returns the address of the chat page at `gateway` that claims the link with `token`: behind `#`, so that no server
/// sees or logs the token.
#[must_use]
pub fn page_url(gateway: &str, token: &str) -> String {
    format!("{}/#owner={token}", gateway.trim_end_matches('/'))
}

/// Makes a link that can be claimed once within `minutes`, removes links that were not claimed in time, and returns the
/// token of the new one.
///
/// # Errors
/// Fails if the link cannot be stored.
pub async fn offer_link(bus: &Bus, minutes: u32) -> Result<String> {
    let (links, now) = (link_bucket(bus), SystemClock.now());
    for (key, link) in links.entries().await.context("failed to read the links")? {
        if link.value.is_stale(now) {
            // A link that changes at this moment is checked again next time.
            let _ = links.delete(&key, Some(link.revision)).await;
        }
    }

    let token = random_text();
    let link = OwnerLink::offered(now, minutes);
    links
        .create(&link_key(&token), &link)
        .await
        .context("failed to store the link")?;

    Ok(token)
}

async fn list_pages(common: &Common, bus: &Bus) -> Result<()> {
    let entries = link_bucket(bus).entries().await?;
    let mut pages: Vec<OwnerLink> = entries.into_iter().map(|(_, link)| link.value).collect();
    pages.retain(|link| link.claimed_by.is_some());

    let columns = [Column::id("VISITOR"), Column::text("ACCOUNT"), Column::time("SINCE")];
    let table = Table::new(&columns).with(&pages, |link| {
        let visitor = link.claimed_by.as_ref();
        [
            visitor.map(|visitor| &visitor.id).into(),
            visitor.map(|visitor| &visitor.account).into(),
            link.claimed_at.into(),
        ]
    });

    View::list(&pages, table)?.show(common)
}

async fn remove_page(common: &Common, bus: &Bus, visitor: &str) -> Result<()> {
    let links = link_bucket(bus);
    let mut removed = 0;
    for (key, link) in links.entries().await? {
        if link.value.claimed_by.is_some_and(|claimed| claimed.id == visitor) {
            links
                .delete(&key, Some(link.revision))
                .await
                .context("failed to remove the page")?;
            removed += 1;
        }
    }

    if removed == 0 {
        let text = format!("no page of visitor `{visitor}` is the owner's; `nexus owner list` shows those that are");
        return Err(failure(Exit::NotFound, text));
    }

    View::one(visitor, &json!({ "visitor": visitor }))?
        .line(format!("{visitor} is not the owner's any more"))
        .show(common)
}
