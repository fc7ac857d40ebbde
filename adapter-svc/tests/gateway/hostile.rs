//! Clients that connect and say nothing, half a head, half a body, or never read: honest clients are answered all the
//! same. The long form, with the figures that the design promises, runs with `NEXUS_CHAOS=long`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use shared::clock::{Clock, SystemClock};
use shared::testing::{eventually, memory_kib};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::world::{TOKEN, World};

/// The start of HTTP/2: preface and empty settings.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00";
const JSON: [(&str, &str); 1] = [("content-type", "application/json")];
/// A request whose body never comes whole.
const HALF_BODY: &[u8] =
    b"POST /v1/events HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer the token of crm in the tests\r\n\
    content-type: application/json\r\ncontent-length: 4000\r\n\r\n{";

/// The ways in which a connection stays open without a whole request.
fn silences() -> Vec<(&'static str, &'static [u8])> {
    vec![
        ("silent", b""),
        ("half preface", b"PRI * HT"),
        ("half head", b"GET / HTTP/1.1\r\nhost: localhost\r\nx"),
        ("http/2 without a request", HTTP2),
        (
            "idle after a request",
            b"GET /webchat HTTP/1.1\r\nhost: localhost\r\n\r\n",
        ),
        ("half body", HALF_BODY),
    ]
}

fn is_long() -> bool {
    #[expect(clippy::disallowed_methods, reason = "a test asks which form it has")]
    let form = std::env::var("NEXUS_CHAOS");
    form.is_ok_and(|form| form == "long")
}

/// How many the long form has.
const LONG_CROWD: usize = 5_000;

/// The number of hostile connections: as many as this process may have open, with those of the service itself.
fn crowd() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").expect("the limits of this process");
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let soft = files.and_then(|rest| rest.split_whitespace().next()?.parse::<usize>().ok());
    let room = soft.unwrap_or(1_024).saturating_sub(1_400).max(300);

    if is_long() {
        assert!(
            room >= LONG_CROWD,
            "{room} connections are too few for the long form: raise `ulimit -n` to {}",
            LONG_CROWD + 1_400
        );
        return LONG_CROWD;
    }

    room.min(1_500)
}

/// The memory of this process, in bytes: of the service and of its clients.
fn memory() -> u64 {
    memory_kib(std::process::id(), "VmRSS").expect("its memory") * 1_024
}

fn server(world: &World) -> SocketAddr {
    world.base.trim_start_matches("http://").parse().expect("an address")
}

/// Opens a connection from `from` and sends `begin`; `None` if the service has closed it by then.
async fn open(to: SocketAddr, from: Ipv4Addr, begin: &[u8]) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind((from, 0).into()).expect("an address of this machine");
    let mut stream = socket.connect(to).await.ok()?;
    stream.write_all(begin).await.ok()?;
    Some(stream)
}

/// An honest client at an address of its own.
fn honest() -> reqwest::Client {
    reqwest::Client::builder()
        .local_address(IpAddr::from([127, 0, 9, 9]))
        .pool_max_idle_per_host(0)
        .timeout(Duration::from_secs(60))
        .build()
        .expect("a client")
}

/// Has the honest client post an event and read the page; how long the slower of both took.
async fn probe(client: &reqwest::Client, world: &World, number: usize) -> Duration {
    let begun = SystemClock.monotonic();
    let event = json!({ "id": format!("crm:{number}"), "timestamp": 5, "channel": "crm", "content": "x" });
    let posted = client
        .post(format!("{}/v1/events", world.base))
        .bearer_auth(TOKEN)
        .header("content-type", "application/json")
        .body(event.to_string());

    assert_eq!(posted.send().await.expect("an answer").status(), 200);

    let middle = SystemClock.monotonic();
    let page = client.get(format!("{}/webchat", world.base)).send().await;
    assert_eq!(page.expect("a page").status(), 200);

    middle.duration_since(begun).max(middle.elapsed_now())
}

/// The time since, by the one clock.
trait ElapsedNow {
    fn elapsed_now(&self) -> Duration;
}

impl ElapsedNow for std::time::Instant {
    fn elapsed_now(&self) -> Duration {
        SystemClock.monotonic().duration_since(*self)
    }
}

/// Lets `crowd()` connections of every silence come from `addresses` addresses, and probes all the while.
async fn withstands(addresses: u8) {
    let world = World::start("").await;
    let to = server(&world);
    let client = honest();
    probe(&client, &world, 0).await;
    let before = memory();

    let silences = silences();
    let crowd = crowd();
    let opening = async {
        let mut held = Vec::with_capacity(crowd);
        for number in 0..crowd {
            let from = Ipv4Addr::new(
                127,
                0,
                1,
                1 + u8::try_from(number % usize::from(addresses)).expect("few"),
            );

            let (_, begin) = silences[number % silences.len()];
            held.extend(open(to, from, begin).await);
        }

        held
    };

    let mut opening = std::pin::pin!(opening);
    let mut slowest = Duration::ZERO;
    let mut probes = 0;

    let held = loop {
        probes += 1;
        tokio::select! {
            biased;
            held = &mut opening => break held,
            took = probe(&client, &world, probes) => slowest = slowest.max(took),
        }
    };

    for _ in 0..20 {
        probes += 1;
        slowest = slowest.max(probe(&client, &world, probes).await);
    }

    let grown = memory().saturating_sub(before);
    println!(
        "{crowd} connections from {addresses} addresses: {probes} probes, slowest {slowest:?}, {grown} bytes more"
    );
    let promised = Duration::from_secs(if is_long() { 1 } else { 5 });

    assert!(slowest < promised, "an honest client waited {slowest:?}");
    assert!(grown <= 64 * 1024 * 1024, "{grown} bytes more");

    drop(held);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_at_one_address_keeps_nobody_out() {
    withstands(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_at_fifty_addresses_keeps_nobody_out() {
    withstands(50).await;
}

#[tokio::test]
async fn every_silence_has_an_end() {
    let world = World::start("header_timeout_ms = 300").await;
    for (name, begin) in silences() {
        let mut stream = open(server(&world), Ipv4Addr::LOCALHOST, begin)
            .await
            .expect("it listens");
        let mut answer = Vec::new();

        // Whatever was answered, the service ends the connection.
        let ended = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut answer)).await;
        assert!(ended.is_ok(), "{name} stays open");

        if name == "half body" {
            assert!(String::from_utf8_lossy(&answer).contains("408"), "{name}: {answer:?}");
        }
    }

    world.stop().await;
}

#[tokio::test]
async fn an_answer_that_is_not_read_has_an_end() {
    let world = World::start("header_timeout_ms = 300\nrequest_timeout_ms = 500").await;
    let mut stream = open(server(&world), Ipv4Addr::LOCALHOST, b"")
        .await
        .expect("it listens");
    let ask = b"GET /webchat/webchat.js HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(100);
    let writing = async {
        // The client asks and never reads: at some point the service stops reading, then ends the connection.
        while stream.write_all(&ask).await.is_ok() {}
    };

    let ended = tokio::time::timeout(Duration::from_secs(60), writing).await;
    assert!(ended.is_ok(), "the connection stays open");

    world.stop().await;
}

#[tokio::test]
async fn half_sent_bodies_take_no_places() {
    let world = World::start("max_concurrent = 4").await;
    let mut held = Vec::new();
    for _ in 0..100 {
        held.extend(open(server(&world), Ipv4Addr::LOCALHOST, HALF_BODY).await);
    }

    for number in 0..10 {
        let event = json!({ "id": format!("crm:{number}"), "timestamp": 5, "channel": "crm" });
        let answer = world.post("/v1/events", &JSON, event.to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }

    let mut answer = [0; 64];
    let read = held[0].read(&mut answer).await.expect("it is answered");
    assert!(String::from_utf8_lossy(&answer[..read]).contains("408"));

    world.stop().await;
}

#[tokio::test]
async fn behind_a_trusted_proxy_each_client_has_its_own_pace() {
    let world = World::start(
        "per_address_per_second = 1\nper_address_burst = 1\ntrusted_proxies = [\"127.0.0.1\"]\nmax_connections_per_address = 1",
    )
    .await;
    let ask = async |client: &str, number: u32| {
        let event = json!({ "id": format!("crm:{number}"), "timestamp": 5, "channel": "crm" }).to_string();
        let headers = [JSON[0], ("x-forwarded-for", client)];
        world.post("/v1/events", &headers, event).await.status
    };

    assert_eq!(ask("spoofed, 198.51.100.1", 1).await, 200);
    assert_eq!(ask("198.51.100.2", 2).await, 200);
    assert_eq!(ask("other, 198.51.100.1", 3).await, 429);

    let stranger = reqwest::Client::builder().local_address(IpAddr::from([127, 0, 9, 9]));
    let stranger = stranger.build().expect("a client");
    let ask = async |client: &str| {
        let page = stranger.get(format!("{}/webchat", world.base));
        let answer = page.header("x-forwarded-for", client).send().await;
        answer.expect("an answer").status().as_u16()
    };

    assert_eq!(ask("198.51.100.7").await, 200);
    assert_eq!(ask("198.51.100.8").await, 429, "nobody else's word counts");

    world.stop().await;
}

#[tokio::test]
async fn chat_pages_of_one_address_are_bounded_and_take_no_places_of_requests() {
    let world = World::start("max_concurrent = 1\nwebchat.max_sockets_per_address = 2").await;
    let url = format!("{}/webchat/ws", world.base.replace("http", "ws"));
    let one = tokio_tungstenite::connect_async(&url).await.expect("a socket");
    let two = tokio_tungstenite::connect_async(&url).await.expect("a socket");
    let refused = tokio_tungstenite::connect_async(&url).await;
    let Err(tokio_tungstenite::tungstenite::Error::Http(answer)) = refused else {
        panic!("a third page is connected");
    };

    assert_eq!(answer.status(), 503);
    assert_eq!(world.get("/webchat").await.0, 200);

    drop(one);
    eventually("its place is free again", async || {
        let third = tokio_tungstenite::connect_async(&url).await;
        third.is_ok()
    })
    .await;

    drop(two);
    world.stop().await;
}

#[tokio::test]
async fn http2_bodies_larger_than_the_window_arrive() {
    let world = World::start("").await;
    let stream = TcpStream::connect(server(&world)).await.expect("it listens");
    let (client, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
    let driven = tokio::spawn(connection);
    let mut client = client.ready().await.expect("it takes requests");
    let request = axum::http::Request::post("http://localhost/v1/events")
        .header("content-type", "application/json")
        .header("authorization", format!("Bearer {TOKEN}"))
        .body(())
        .expect("a request");

    let (answer, mut body) = client.send_request(request, false).expect("it is sent");
    let event = json!({ "id": "crm:1", "timestamp": 5, "channel": "crm", "content": "x".repeat(300_000) });
    let mut rest = Bytes::from(event.to_string());
    while !rest.is_empty() {
        body.reserve_capacity(rest.len());
        let room = std::future::poll_fn(|cx| body.poll_capacity(cx)).await;
        let room = room.expect("the stream is open").expect("room");
        let part = rest.split_to(room.min(rest.len()));
        body.send_data(part, rest.is_empty()).expect("it is sent");
    }

    assert_eq!(answer.await.expect("an answer").status(), 200);
    assert_eq!(world.events(1).await[0].id.as_str(), "crm:1");

    // The connection ends with its last request; which side closes it first does not matter.
    drop((client, body));
    let ended = tokio::time::timeout(Duration::from_secs(60), driven).await;
    let _either = ended.expect("it ends").expect("nothing panics");
    world.stop().await;
}
