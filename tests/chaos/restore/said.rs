//! What the product itself says of a stream that was put back: its metric by stream, its part of `/readyz`, its doctor.

use shared::wire::topology::streams::{DLQ, LEDGER, RECEIPTS};
use tests::eventually::eventually;
use tests::world::World;

use super::cases::{Case, Says, Way};
use crate::kills::SETTLE;

/// What every service serves at `page` of its own port, by its instance.
async fn pages(world: &World, page: &str) -> Result<Vec<(String, String)>, String> {
    let client = cli::http::client().map_err(|error| error.to_string())?;
    let mut found = Vec::new();
    for running in &world.stack.services {
        // One that was ended before has left its announcement.
        let Ok(address) = running.address("http") else { continue };
        let Ok(answer) = client.get(format!("http://{address}{page}")).send().await else {
            continue;
        };
        let text = answer.text().await.map_err(|error| error.to_string())?;
        found.push((running.instance.clone(), text));
    }

    Ok(found)
}

/// How many positions in `stream` all running services have found void.
async fn void_positions(world: &World, stream: &str) -> Result<f64, String> {
    let label = format!("stream=\"{stream}\"");
    let pages = pages(world, "/metrics").await?;
    let lines = pages.iter().flat_map(|(_, text)| text.lines());
    let of_stream = lines.filter(|line| line.starts_with("nexus_positions_void_total{") && line.contains(&label));
    let counts = of_stream.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());

    Ok(counts.sum())
}

/// Whether a service is ready and says in part `positions` of `/readyz` that it goes on by the records because of `what`.
async fn is_degraded_by(world: &World, what: &str) -> Result<bool, String> {
    let pages = pages(world, "/readyz").await?;
    let says_so = |text: &String| {
        let page: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
        let part = &page["parts"]["positions"];
        let detail = part["detail"].as_str().unwrap_or_default();
        page["ready"] == true && part["degraded"] == true && detail.contains(what)
    };

    Ok(pages.iter().any(|(_, text)| says_so(text)))
}

/// Waits until the product has said of `case` what it must say: a service counts a void position in the stream; where the
/// stream has a witness, `/readyz` says so in part `positions`, and `nexus doctor` warns.
pub(super) async fn is_said(world: &World, case: &Case, what: &str) {
    let Says::Void = case.says else { return };
    let stream = case.stream;
    // The older state has the only letter there is.
    if stream == DLQ && case.way == Way::Older {
        return;
    }
    let deadline = SETTLE;

    eventually(
        &format!("{what}: void positions in {stream} are counted"),
        deadline,
        async || {
            let count = void_positions(world, stream).await?;
            (count >= 1.0).then_some(()).ok_or_else(|| format!("{count} are"))
        },
    )
    .await;

    if ![DLQ, LEDGER, RECEIPTS].contains(&stream) {
        return;
    }

    let witness = format!("witness of {stream}");
    eventually(&format!("{what}: /readyz says `{witness}`"), deadline, async || {
        let is_said = is_degraded_by(world, &witness).await?;
        is_said.then_some(()).ok_or_else(|| "no service does".to_owned())
    })
    .await;

    let told = world.nexus(&["doctor", "--offline"]).await;
    let words = format!("restored to an earlier state: {stream}");
    assert!(
        told.out.contains(&words),
        "{what}: doctor says nothing of it: {}",
        told.out
    );
}
