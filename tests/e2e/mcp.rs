//! `nexus mcp`, spoken to as any client speaks to it: JSON-RPC in lines over its standard input and output.

use std::process::Stdio;

use serde_json::{Value, json};
use tests::command::{PATIENCE, command};
use tests::eventually::eventually;
use tests::record::Record;
use tests::world::{Setup, World};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};

use crate::story::{event, send};

struct Client {
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    asked: u64,
    _program: Child,
}

impl Client {
    async fn start(world: &World) -> Self {
        let config = world.stack.config_path();
        let config = config.to_str().expect("a path in UTF-8");
        let arguments = ["--config", config, "mcp", "--created-by", "agent:tester"];
        let mut program = command(world.path(), &arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("nexus mcp");

        let (input, output) = (program.stdin.take(), program.stdout.take());
        let mut client = Self {
            input: input.expect("its input"),
            output: BufReader::new(output.expect("its output")).lines(),
            asked: 0,
            _program: program,
        };

        let hello = json!({
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "story", "version": "1" }
        });
        let welcome = client.ask("initialize", hello).await;
        assert_eq!(welcome["result"]["serverInfo"]["name"], "nexus", "{welcome}");

        let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        client.say(&ready).await;

        client
    }

    async fn say(&mut self, message: &Value) {
        let line = format!("{message}\n");
        self.input.write_all(line.as_bytes()).await.expect("it reads");
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.asked += 1;
        let id = self.asked;
        self.say(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
            .await;

        let answer = async {
            loop {
                let line = self.output.next_line().await.expect("its output").expect("an answer");
                let message: Value = serde_json::from_str(&line).expect("JSON");
                if message["id"] == id {
                    return message;
                }
            }
        };

        tokio::time::timeout(PATIENCE, answer).await.expect("an answer in time")
    }

    async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        let answer = self
            .ask("tools/call", json!({ "name": tool, "arguments": arguments }))
            .await;
        answer["result"].clone()
    }
}

/// Waits until the hook fires: it is in force a moment after it was made, so that a new event is sent at each look.
async fn fires(world: &World) {
    let mut number = 0;
    eventually("the hook fires", PATIENCE, async || {
        number += 1;
        let id = format!("e2e:mcp/{number}");
        send(world, &event(&id, "anna", "there is cake")).await;

        let record = eventually("its record", PATIENCE, async || {
            let record = Record::read(&world.bus).await;
            let known = record.invocations.iter().any(|(_, one)| one.event_id.as_str() == id);
            if known { Ok(record) } else { Err(world.logs()) }
        })
        .await;

        let fired = record.dispatches.iter().any(|(_, dispatch)| dispatch.hook_id == "cake");
        if fired { Ok(()) } else { Err(world.logs()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_makes_a_hook_over_mcp_and_it_fires() {
    let world = World::start(Setup::default()).await;
    let mut client = Client::start(&world).await;
    let offered = client.ask("tools/list", json!({})).await;

    let names: Vec<&str> = offered["result"]["tools"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|tool| tool["name"].as_str())
        .collect();

    let all = [
        "create_hook",
        "list_hooks",
        "get_hook",
        "disable_hook",
        "delete_hook",
        "search_events",
    ];

    assert_eq!(names, all);

    let bad = client
        .call(
            "create_hook",
            json!({ "name": "cake", "description": "d", "mode": "persistent", "script": "return {" }),
        )
        .await;

    assert_eq!(bad["isError"], true, "{bad}");

    let made = json!({
        "name": "cake", "description": "speaks of cake", "mode": "persistent",
        "script": "if (!ctx.event.content.includes('cake')) return { fire: false };\n\
            return { fire: true, routing: { persona: 'default', session: 'cake' } };",
    });
    let made = client.call("create_hook", made).await;
    assert_ne!(made["isError"], true, "{made}");

    let listed = client.call("list_hooks", json!({ "created_by": "agent:tester" })).await;
    assert_eq!(listed["structuredContent"]["hooks"][0]["id"], "cake", "{listed}");

    fires(&world).await;
    let gone = client.call("delete_hook", json!({ "name": "cake" })).await;
    assert_ne!(gone["isError"], true, "{gone}");

    let kept = client.call("get_hook", json!({ "name": "cake" })).await;
    assert_eq!(
        kept["structuredContent"]["hook"]["disabled_reason"], "deleted",
        "{kept}"
    );

    let absent = client.call("get_hook", json!({ "name": "pie" })).await;
    assert_eq!(absent["isError"], true, "{absent}");
}
