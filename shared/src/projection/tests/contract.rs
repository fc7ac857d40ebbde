//! Tables and columns that scripts rely on (`docs/design/hooks.md` §5).

use super::Case;

/// Tables and columns of the design; the hook tables with the field names of seed 003 §8.1, §8.4, §8.5.
const CONTRACT: &str = "
events(id, timestamp, channel, content_types, content, direction, thread_id, reply_to, source_adapter, source_id, metadata_json, target, edited_at, mention)
threads(id, channel, name, is_group, source_adapter, source_id, parent_thread_id, created_at, updated_at)
persons(id, canonical_name, display_name, is_me, relationship_type, created_at, updated_at)
contacts(id, display_name, source, created_at, updated_at)
contact_identifiers(id, contact_id, type, value, normalized, created_at, last_seen_at)
person_contact_links(id, person_id, contact_id, confidence, source_type, first_seen_at, last_seen_at)
event_participants(event_id, contact_id, role)
event_state(event_id, read_state, flagged, archived, status, updated_at)
event_tags(event_id, tag, source, created_at)
attachments(id, event_id, filename, mime_type, size_bytes, media_type, storage_uri, content_hash, metadata_json, created_at, state, refused, duration_ms, transcript)
platform_ids(channel, account, chat, platform_id, event_id, part)
episodes(id, thread_id, channel, started_at, ended_at, summary)
episode_events(episode_id, event_id)
facets(id, episode_id, facet_type, value, confidence, created_at)
embeddings(event_id, model, vector)
agent_sessions(id, persona, thread_id, source, model, tokens_in, tokens_out, created_at, updated_at, head_turn_id)
agent_turns(id, session_id, parent, status, event_id, dispatch_id, started_at, finished_at)
agent_messages(id, turn_id, role, content, created_at)
agent_tool_calls(id, turn_id, name, args_json, outcome, started_at, finished_at)
hooks(id, name, description, script, enabled, mode, created_by, created_at, updated_at, trigger_count, last_triggered, last_error, status)
hook_invocations(id, hook_id, event_id, started_at, finished_at, latency_ms, fired, result, llm_calls, llm_tokens_in, llm_tokens_out, llm_cost_usd, search_calls, error, stack_trace)
hook_health(hook_id, invocation_count, success_count, error_count, fire_count, avg_latency_ms, p95_latency_ms, p99_latency_ms, total_cost_usd, avg_cost_per_invocation, consecutive_errors, circuit_state, last_error_at)
deliveries(id, turn_id, channel, status, platform_ids, updated_at)
sync_watermarks(adapter, account, position, updated_at)
events_fts(content)
";

#[test]
fn every_table_of_the_contract_answers() {
    let case = Case::new();
    let connection = case.reader();
    for line in CONTRACT.lines().filter(|line| !line.is_empty()) {
        let (table, columns) = line.strip_suffix(')').unwrap().split_once('(').unwrap();
        connection
            .prepare(&format!("SELECT {columns} FROM {table}"))
            .unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}

#[test]
fn a_scripts_usual_question_uses_an_index() {
    let case = Case::new();
    let connection = case.reader();
    for question in [
        "SELECT * FROM events WHERE id = 'x'",
        "SELECT * FROM events WHERE timestamp > 5",
        "SELECT * FROM events WHERE channel = 'a' AND account = 'b' AND peer_id = 'c' ORDER BY sequence DESC LIMIT 5",
        "SELECT * FROM events WHERE channel = 'a' AND account = 'b' AND peer_id = 'c' AND thread_id = 'd' ORDER BY sequence DESC LIMIT 5",
        "SELECT * FROM events WHERE target = 'x'",
        "SELECT * FROM platform_ids WHERE channel = 'a' AND account = 'b' AND chat = 'c' AND platform_id = '9'",
        "SELECT * FROM hook_invocations WHERE hook_id = 'h' ORDER BY started_at DESC LIMIT 100",
    ] {
        let plan: String = connection
            .query_row(&format!("EXPLAIN QUERY PLAN {question}"), [], |row| row.get(3))
            .unwrap();
        assert!(plan.starts_with("SEARCH"), "{question}: {plan}");
    }
}
