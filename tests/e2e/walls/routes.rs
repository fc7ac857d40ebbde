//! A server that joins a cluster uninvited.

use std::time::Duration;

use cli::auth::server_files::route_lines;
use shared::testing::nats::{NatsOptions, NatsServer};
use shared::testing::{eventually, eventually_within};

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
    format!("127.0.0.1:{}", cli::launch::nats::free_port().expect("a port"))
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
