//! `nexus owner`: makes the link by which a browser's chat page becomes the owner's, and lists such pages.

use anyhow::{Context as _, Result, bail};
use shared::bus::{Bus, Kv};
use shared::clock::{Clock as _, SystemClock};
use shared::model::owner::{OwnerLink, link_key};
use shared::wire::topology::buckets;

use crate::args::{Common, OwnerAction};
use crate::launch::keys::random_text;
use crate::output::{bus, clock, json, table};
use crate::say;

/// Runs the command.
///
/// # Errors
/// Fails if the bus cannot be reached, or if no such page is bound.
pub async fn execute(common: &Common, action: OwnerAction) -> Result<()> {
    let bus = bus(common).await?;
    match action {
        OwnerAction::Link { minutes, url } => {
            let token = offer(&bus, minutes).await?;
            let link = page(&url, &token);
            if common.json {
                return json(&serde_json::json!({ "link": link, "minutes": minutes }));
            }
            say!("{link}");
            say!("The first browser that opens it within {minutes} minutes is the owner's.");

            Ok(())
        }
        OwnerAction::List => list(common, &bus).await,
        OwnerAction::Remove { visitor } => remove(&bus, &visitor).await,
    }
}

fn links(bus: &Bus) -> Kv<OwnerLink> {
    bus.kv(buckets::IDENTITIES)
}

/// Returns the address of the chat page at `gateway` that claims the link with `token`: behind `#`, so that no server
/// sees or logs the token.
#[must_use]
pub fn page(gateway: &str, token: &str) -> String {
    format!("{}/#owner={token}", gateway.trim_end_matches('/'))
}

/// Makes a link that can be claimed once within `minutes`, removes links that were not claimed in time, and returns the
/// token of the new one.
///
/// # Errors
/// Fails if the link cannot be stored.
pub async fn offer(bus: &Bus, minutes: u32) -> Result<String> {
    let (links, now) = (links(bus), SystemClock.now());
    for (key, link) in links.entries().await.context("read the links")? {
        if link.value.is_stale(now) {
            // A link that changes at this moment is checked again next time.
            let _ = links.delete(&key, Some(link.revision)).await;
        }
    }

    let token = random_text();
    let link = OwnerLink::offered(now, minutes);
    links.create(&link_key(&token), &link).await.context("store the link")?;

    Ok(token)
}

async fn list(common: &Common, bus: &Bus) -> Result<()> {
    let mut pages: Vec<OwnerLink> = links(bus)
        .entries()
        .await?
        .into_iter()
        .map(|(_, link)| link.value)
        .collect();

    pages.retain(|link| link.claimed_by.is_some());

    if common.json {
        return json(&pages);
    }

    let mut rows = table(&["visitor", "account", "since (UTC)"]);
    for link in &pages {
        if let (Some(visitor), Some(at)) = (&link.claimed_by, link.claimed_at) {
            rows.add_row([visitor.id.clone(), visitor.account.clone(), clock(at)]);
        }
    }

    crate::output::print(&format!("{rows}\n"))
}

async fn remove(bus: &Bus, visitor: &str) -> Result<()> {
    let links = links(bus);
    let mut removed = 0;
    for (key, link) in links.entries().await? {
        if link.value.claimed_by.is_some_and(|claimed| claimed.id == visitor) {
            links
                .delete(&key, Some(link.revision))
                .await
                .context("remove the page")?;
            removed += 1;
        }
    }

    if removed == 0 {
        bail!("no page of visitor `{visitor}` is the owner's; `nexus owner list` shows those that are");
    }

    say!("{visitor} is not the owner's any more");
    Ok(())
}
