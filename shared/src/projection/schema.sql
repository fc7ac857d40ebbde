-- The read model. Names of tables and columns are a contract with hook scripts (`hooks.md` "Read model");
-- what this project adds for itself stands behind the contract's columns or in tables named `nexus_*`.
-- Times are Unix milliseconds. Each table below is written from exactly one stream, so that the order
-- in which streams are read cannot show.

-- from EVENTS: one row per id, the first occurrence decides
CREATE TABLE events(
  id TEXT NOT NULL, timestamp INTEGER NOT NULL, channel TEXT NOT NULL, content_types TEXT NOT NULL, content TEXT NOT NULL,
  direction TEXT NOT NULL, thread_id TEXT, reply_to TEXT, source_adapter TEXT NOT NULL, source_id TEXT NOT NULL,
  metadata_json TEXT NOT NULL,
  sequence INTEGER PRIMARY KEY, account TEXT NOT NULL, peer_kind TEXT NOT NULL, peer_id TEXT NOT NULL, from_id TEXT NOT NULL,
  hops INTEGER NOT NULL, published_at INTEGER NOT NULL, revised_at INTEGER);
CREATE UNIQUE INDEX events_id ON events(id);
CREATE INDEX events_conversation ON events(channel, account, peer_id);
CREATE INDEX events_timestamp ON events(timestamp);

-- from INVOCATIONS: the done-marker of an event, and one row per hook that did more than pass
CREATE TABLE nexus_evaluations(
  event_id TEXT PRIMARY KEY, evaluated_by TEXT NOT NULL, started_at INTEGER NOT NULL, finished_at INTEGER NOT NULL,
  passed INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE hook_invocations(
  id TEXT GENERATED ALWAYS AS (event_id || '#' || hook_id) VIRTUAL, hook_id TEXT NOT NULL, event_id TEXT NOT NULL,
  started_at INTEGER NOT NULL, finished_at INTEGER NOT NULL, latency_ms REAL NOT NULL, fired INTEGER NOT NULL, result TEXT,
  llm_calls INTEGER NOT NULL, llm_tokens_in INTEGER NOT NULL, llm_tokens_out INTEGER NOT NULL, llm_cost_usd REAL,
  search_calls INTEGER NOT NULL, error TEXT, stack_trace TEXT,
  outcome TEXT NOT NULL, reason TEXT, dispatch_id TEXT,
  PRIMARY KEY(event_id, hook_id)) WITHOUT ROWID;
CREATE INDEX hook_invocations_hook ON hook_invocations(hook_id, started_at);

-- from DISPATCHES
CREATE TABLE nexus_dispatches(
  event_id TEXT NOT NULL, id TEXT NOT NULL, hook_id TEXT NOT NULL, sequence INTEGER NOT NULL, session_id TEXT NOT NULL,
  queue_mode TEXT NOT NULL, priority INTEGER NOT NULL, published_at INTEGER NOT NULL,
  PRIMARY KEY(event_id, id)) WITHOUT ROWID;

-- from LEDGER
CREATE TABLE agent_sessions(
  id TEXT PRIMARY KEY, persona TEXT NOT NULL, thread_id TEXT, source TEXT NOT NULL, model TEXT, tokens_in INTEGER NOT NULL,
  tokens_out INTEGER NOT NULL, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE agent_turns(
  id TEXT PRIMARY KEY, session_id TEXT NOT NULL, parent TEXT, status TEXT NOT NULL, event_id TEXT, dispatch_id TEXT,
  started_at INTEGER, finished_at INTEGER,
  replied INTEGER NOT NULL DEFAULT 0, outcome TEXT) WITHOUT ROWID;
CREATE TABLE agent_messages(
  id TEXT NOT NULL, turn_id TEXT NOT NULL, role TEXT NOT NULL, content TEXT NOT NULL, created_at INTEGER NOT NULL,
  PRIMARY KEY(turn_id, id)) WITHOUT ROWID;
CREATE TABLE agent_tool_calls(
  id TEXT NOT NULL, turn_id TEXT NOT NULL, name TEXT, args_json TEXT, outcome TEXT, started_at INTEGER, finished_at INTEGER,
  PRIMARY KEY(turn_id, id)) WITHOUT ROWID;
-- what became of a dispatch: its turn, or why there is none
CREATE TABLE nexus_dispatch_ends(
  dispatch_id TEXT PRIMARY KEY, turn_id TEXT, dropped TEXT, at INTEGER NOT NULL) WITHOUT ROWID;
-- a ledger subject's whole names (its tokens may be shortened) and the turn that is under way
CREATE TABLE nexus_ledger_heads(
  subject TEXT PRIMARY KEY, session_id TEXT NOT NULL, running TEXT) WITHOUT ROWID;

-- from RECEIPTS
CREATE TABLE deliveries(
  id TEXT PRIMARY KEY, turn_id TEXT NOT NULL, channel TEXT NOT NULL, status TEXT NOT NULL, platform_ids TEXT NOT NULL,
  updated_at INTEGER NOT NULL,
  started_at INTEGER NOT NULL, attempts INTEGER NOT NULL, parts INTEGER, reason TEXT) WITHOUT ROWID;

-- the contract's other tables
CREATE TABLE threads(id TEXT PRIMARY KEY, channel TEXT, name TEXT, is_group INTEGER, source_adapter TEXT, source_id TEXT,
  parent_thread_id TEXT, created_at INTEGER, updated_at INTEGER);
CREATE TABLE persons(id TEXT PRIMARY KEY, canonical_name TEXT, display_name TEXT, is_me INTEGER, relationship_type TEXT,
  created_at INTEGER, updated_at INTEGER);
CREATE TABLE contacts(id TEXT PRIMARY KEY, display_name TEXT, source TEXT, created_at INTEGER, updated_at INTEGER);
CREATE TABLE contact_identifiers(id TEXT PRIMARY KEY, contact_id TEXT, type TEXT, value TEXT, normalized TEXT,
  created_at INTEGER, last_seen_at INTEGER);
CREATE TABLE person_contact_links(id TEXT PRIMARY KEY, person_id TEXT, contact_id TEXT, confidence REAL, source_type TEXT,
  first_seen_at INTEGER, last_seen_at INTEGER);
CREATE TABLE event_participants(event_id TEXT, contact_id TEXT, role TEXT);
CREATE TABLE event_state(event_id TEXT PRIMARY KEY, read_state TEXT, flagged INTEGER, archived INTEGER, status TEXT,
  updated_at INTEGER);
CREATE TABLE event_tags(event_id TEXT, tag TEXT, source TEXT, created_at INTEGER);
CREATE TABLE attachments(id TEXT PRIMARY KEY, event_id TEXT, filename TEXT, mime_type TEXT, size_bytes INTEGER,
  media_type TEXT, storage_uri TEXT, content_hash TEXT, metadata_json TEXT, created_at INTEGER);
CREATE TABLE episodes(id TEXT PRIMARY KEY, started_at INTEGER, ended_at INTEGER, summary TEXT);
CREATE TABLE episode_events(episode_id TEXT, event_id TEXT);
CREATE TABLE facets(id TEXT PRIMARY KEY, event_id TEXT, type TEXT, value TEXT);
CREATE TABLE embeddings(event_id TEXT, model TEXT, vector BLOB);
CREATE TABLE hooks(id TEXT PRIMARY KEY, name TEXT, description TEXT, script TEXT, enabled INTEGER, mode TEXT, created_by TEXT,
  created_at INTEGER, updated_at INTEGER, trigger_count INTEGER, last_triggered INTEGER, last_error TEXT, status TEXT);
CREATE TABLE hook_health(hook_id TEXT PRIMARY KEY, invocation_count INTEGER, success_count INTEGER, error_count INTEGER,
  fire_count INTEGER, avg_latency_ms REAL, p95_latency_ms REAL, p99_latency_ms REAL, total_cost_usd REAL,
  avg_cost_per_invocation REAL, consecutive_errors INTEGER, circuit_state TEXT, last_error_at INTEGER);
CREATE TABLE sync_watermarks(adapter TEXT, account TEXT, position TEXT, updated_at INTEGER);
CREATE VIRTUAL TABLE events_fts USING fts5(content, content='', contentless_delete=1);

-- how far each stream is projected: written in the transaction of the rows themselves
CREATE TABLE nexus_positions(stream TEXT PRIMARY KEY, sequence INTEGER NOT NULL) WITHOUT ROWID;
