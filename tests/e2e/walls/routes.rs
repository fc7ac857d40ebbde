//! A server that joins a cluster uninvited.

use std::time::Duration;

use cli::auth::folder::AuthFolder;
use cli::auth::server_files::{route_lines, tls_block};
use cli::auth::{certificates, seconds_now};
use shared::testing::nats::{NatsOptions, NatsServer};
use shared::testing::{eventually, eventually_within};
use tempfile::TempDir;

/// Longest time until a server has tried to join and was refused.
const REFUSED: Duration = Duration::from_secs(60);

/// Number of routes that `server` has.
async fn routes(server: &NatsServer) -> u64 {
    let asked = cli::http::client()
        .expect("a client")
        .get(format!("{}/routez", server.monitor()));
    let answer: serde_json::Value = asked.send().await.expect("answered").json().await.expect("JSON");
    answer["num_routes"].as_u64().expect("a number")
}

/// Starts the server `name`; two of one name would be refused for that.
async fn server(name: &str, cluster: &str) -> NatsServer {
    NatsServer::with(NatsOptions {
        // Without streams it is ready alone.
        extra: format!("server_name: {name}\njetstream: disabled\ncluster {{ name: nexus\n{cluster} }}\n"),
        ..NatsOptions::default()
    })
    .await
}

fn free_address() -> String {
    format!("127.0.0.1:{}", shared::process::free_port().expect("a port"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_the_password_of_the_routes_is_refused() {
    let own = free_address();
    let listen = |address: &str| format!("listen: \"{address}\"\n");
    let member = server("member", &format!("{}{}", listen(&own), route_lines("secret", &[], ""))).await;

    // It has the name of the cluster and reaches the port: that is all.
    let stranger = server(
        "stranger",
        &format!("{}routes: [\"nats-route://{own}\"]\n", listen(&free_address())),
    )
    .await;
    let wrong = route_lines("guess", std::slice::from_ref(&own), "");
    let guesser = server("guesser", &format!("{}{wrong}", listen(&free_address()))).await;
    let refused = async || {
        let log = member.log();
        let without_password = log.contains("authentication error\n");
        let with_another = log.contains("authentication error - User");
        let refused = without_password && with_another;
        refused.then_some(()).ok_or(log)
    };
    eventually_within("both are refused", REFUSED, refused).await;
    assert_eq!(routes(&member).await, 0, "{}", member.log());
    assert_eq!((routes(&stranger).await, routes(&guesser).await), (0, 0));

    let right = route_lines("secret", std::slice::from_ref(&own), "");
    let friend = server("friend", &format!("{}{right}", listen(&free_address()))).await;
    eventually("who knows the password is a member", async || routes(&member).await > 0).await;
    assert!(routes(&friend).await > 0);
}

/// Makes an authority, and a certificate of it for the servers of this host. Returns them, and how a configuration names them.
fn authority() -> (TempDir, String) {
    let keys = tempfile::tempdir().expect("a folder");
    let mut folder = AuthFolder::open(&keys.path().join("auth"), true).expect("a folder of keys");
    certificates::ensure(&mut folder, &["127.0.0.1".to_owned()], seconds_now()).expect("certificates");
    let tls = tls_block(&folder.path().join("tls"), true);
    (keys, tls)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_a_certificate_of_another_authority_is_refused() {
    let own = free_address();
    let ((_keys, tls), (_other_keys, other_tls)) = (authority(), authority());
    let cluster = |address: &str, routes: &[String], tls: &str| {
        format!("listen: \"{address}\"\n{}", route_lines("secret", routes, tls))
    };
    let member = server("member", &cluster(&own, &[], &tls)).await;

    // It knows the password too.
    let to_member = std::slice::from_ref(&own);
    let stranger = server("stranger", &cluster(&free_address(), to_member, &other_tls)).await;
    let plain = server("plain", &cluster(&free_address(), to_member, "")).await;
    eventually_within("both are refused", REFUSED, async || {
        let logs = [member.log(), stranger.log(), plain.log()];
        let is_refused = logs[1].contains("certificate signed by unknown authority");
        let is_seen = logs[0].contains("TLS route handshake error");
        (is_refused && is_seen).then_some(()).ok_or(logs.concat())
    })
    .await;
    assert_eq!(routes(&member).await, 0, "{}", member.log());
    assert_eq!((routes(&stranger).await, routes(&plain).await), (0, 0));

    let friend = server("friend", &cluster(&free_address(), to_member, &tls)).await;
    eventually("who has a certificate of the authority is a member", async || {
        routes(&member).await > 0
    })
    .await;
    assert!(routes(&friend).await > 0);
}
