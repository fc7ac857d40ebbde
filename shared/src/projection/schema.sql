-- The read model. Names of tables and columns are a contract with hook scripts (`docs/design/hooks.md` §5); what this
-- project adds for itself stands behind the contract's columns or in tables named `nexus_*`. Times are Unix
-- milliseconds. Each row below is written from exactly one stream, so that the order in which streams are read cannot
-- show.

-- from EVENTS: one row per id, the first occurrence decides
CREATE TABLE events(
  id TEXT NOT NULL, timestamp INTEGER NOT NULL, channel TEXT NOT NULL, content_types TEXT NOT NULL, content TEXT NOT NULL,
  direction TEXT NOT NULL, thread_id TEXT, reply_to TEXT, source_adapter TEXT NOT NULL, source_id TEXT NOT NULL,
  metadata_json TEXT NOT NULL,
  sequence INTEGER PRIMARY KEY, account TEXT NOT NULL, peer_kind TEXT NOT NULL, peer_id TEXT NOT NULL, from_id TEXT NOT NULL,
  hops INTEGER NOT NULL, published_at INTEGER NOT NULL, revised_at INTEGER, origin TEXT NOT NULL,
  target TEXT, edited_at INTEGER, mention TEXT);
CREATE UNIQUE INDEX events_id ON events(id);
CREATE INDEX events_conversation ON events(channel, account, peer_id);
CREATE INDEX events_thread ON events(channel, account, peer_id, thread_id) WHERE thread_id IS NOT NULL;
CREATE INDEX events_timestamp ON events(timestamp);
CREATE INDEX events_target ON events(target) WHERE target IS NOT NULL;

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

-- from EVENTS: events that an agent's turn brought about without a delivery (messages to agents, firings of intents)
CREATE TABLE nexus_caused(turn_id TEXT NOT NULL, event_id TEXT NOT NULL, PRIMARY KEY(turn_id, event_id)) WITHOUT ROWID;

-- from LEDGER
CREATE TABLE agent_sessions(
  id TEXT PRIMARY KEY, persona TEXT NOT NULL, thread_id TEXT, source TEXT NOT NULL, model TEXT, tokens_in INTEGER NOT NULL,
  tokens_out INTEGER NOT NULL, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL,
  -- the turn that the next one follows
  head_turn_id TEXT) WITHOUT ROWID;
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
-- what humans were asked in a turn, and what became of it; status is 'pending' until the ledger has the decision
CREATE TABLE nexus_approvals(
  id TEXT PRIMARY KEY, turn_id TEXT, tool TEXT, status TEXT NOT NULL, asked_at INTEGER, decided_at INTEGER) WITHOUT ROWID;
CREATE INDEX nexus_approvals_turn ON nexus_approvals(turn_id);
-- intents of a turn that is over which the scheduler has not answered for; a row goes with the answer
CREATE TABLE nexus_owed_intents(
  id TEXT PRIMARY KEY, turn_id TEXT NOT NULL, kind TEXT NOT NULL, since INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX nexus_owed_intents_turn ON nexus_owed_intents(turn_id);
-- a ledger subject's whole names (its tokens may be shortened) and the turn that is under way
CREATE TABLE nexus_ledger_heads(
  subject TEXT PRIMARY KEY, session_id TEXT NOT NULL, running TEXT) WITHOUT ROWID;

-- from RECEIPTS; event_id is what led to it: of a card too, which is no turn's reply
CREATE TABLE deliveries(
  id TEXT PRIMARY KEY, turn_id TEXT NOT NULL, channel TEXT NOT NULL, status TEXT NOT NULL, platform_ids TEXT NOT NULL,
  updated_at INTEGER NOT NULL,
  started_at INTEGER NOT NULL, attempts INTEGER NOT NULL, parts INTEGER, reason TEXT, event_id TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX deliveries_event ON deliveries(event_id);

-- from EVENTS: what goes with an event
CREATE TABLE threads(id TEXT PRIMARY KEY, channel TEXT NOT NULL, name TEXT, is_group INTEGER NOT NULL, source_adapter TEXT NOT NULL,
  source_id TEXT NOT NULL, parent_thread_id TEXT, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE event_participants(event_id TEXT NOT NULL, contact_id TEXT NOT NULL, role TEXT NOT NULL,
  PRIMARY KEY(event_id, role, contact_id)) WITHOUT ROWID;
CREATE INDEX event_participants_contact ON event_participants(contact_id);
CREATE TABLE event_state(event_id TEXT PRIMARY KEY, read_state TEXT, flagged INTEGER, archived INTEGER, status TEXT,
  updated_at INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE event_tags(event_id TEXT NOT NULL, tag TEXT NOT NULL, source TEXT NOT NULL, created_at INTEGER NOT NULL,
  PRIMARY KEY(event_id, tag)) WITHOUT ROWID;
CREATE INDEX event_tags_tag ON event_tags(tag);
CREATE TABLE attachments(id TEXT PRIMARY KEY, event_id TEXT NOT NULL, filename TEXT, mime_type TEXT, size_bytes INTEGER,
  media_type TEXT NOT NULL, storage_uri TEXT, content_hash TEXT, metadata_json TEXT NOT NULL, created_at INTEGER NOT NULL,
  state TEXT NOT NULL, refused TEXT, duration_ms INTEGER, transcript TEXT) WITHOUT ROWID;
CREATE INDEX attachments_event ON attachments(event_id);
-- a platform's id of a message -> its event; part counts the parts of a reply
CREATE TABLE platform_ids(channel TEXT NOT NULL, account TEXT NOT NULL, chat TEXT NOT NULL, platform_id TEXT NOT NULL,
  event_id TEXT NOT NULL, part INTEGER NOT NULL,
  PRIMARY KEY(channel, account, chat, platform_id)) WITHOUT ROWID;
CREATE INDEX platform_ids_event ON platform_ids(event_id);
CREATE TABLE sync_watermarks(adapter TEXT NOT NULL, account TEXT NOT NULL, position TEXT NOT NULL, updated_at INTEGER NOT NULL,
  PRIMARY KEY(adapter, account)) WITHOUT ROWID;
-- a script may ask it for `content`, `snippet()` and `highlight()`; rowid = events.sequence
CREATE VIRTUAL TABLE events_fts USING fts5(content, content='events', content_rowid='sequence', tokenize='unicode61 remove_diacritics 2');

-- from EVENTS (who was met) and identities.yaml (who they are): the same rows whichever came first
CREATE TABLE contacts(id TEXT PRIMARY KEY, display_name TEXT, source TEXT NOT NULL, created_at INTEGER, updated_at INTEGER) WITHOUT ROWID;
CREATE TABLE contact_identifiers(id TEXT PRIMARY KEY, contact_id TEXT NOT NULL, type TEXT NOT NULL, value TEXT NOT NULL,
  normalized TEXT NOT NULL, created_at INTEGER, last_seen_at INTEGER) WITHOUT ROWID;
CREATE INDEX contact_identifiers_contact ON contact_identifiers(contact_id);
CREATE INDEX contact_identifiers_value ON contact_identifiers(value);
CREATE INDEX contact_identifiers_normalized ON contact_identifiers(normalized);
CREATE TABLE person_contact_links(id TEXT PRIMARY KEY, person_id TEXT NOT NULL, contact_id TEXT NOT NULL, confidence REAL NOT NULL,
  source_type TEXT NOT NULL, first_seen_at INTEGER, last_seen_at INTEGER) WITHOUT ROWID;
CREATE INDEX person_contact_links_person ON person_contact_links(person_id);
CREATE INDEX person_contact_links_contact ON person_contact_links(contact_id);

-- from identities.yaml alone
CREATE TABLE persons(id TEXT PRIMARY KEY, canonical_name TEXT NOT NULL, display_name TEXT NOT NULL, is_me INTEGER NOT NULL,
  relationship_type TEXT, created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL) WITHOUT ROWID;

-- from the hooks' registry and their health
CREATE TABLE hooks(id TEXT PRIMARY KEY, name TEXT, description TEXT, script TEXT, enabled INTEGER, mode TEXT, created_by TEXT,
  created_at INTEGER, updated_at INTEGER, trigger_count INTEGER, last_triggered INTEGER, last_error TEXT, status TEXT);
CREATE TABLE hook_health(hook_id TEXT PRIMARY KEY, invocation_count INTEGER, success_count INTEGER, error_count INTEGER,
  fire_count INTEGER, avg_latency_ms REAL, p95_latency_ms REAL, p99_latency_ms REAL, total_cost_usd REAL,
  avg_cost_per_invocation REAL, consecutive_errors INTEGER, circuit_state TEXT, last_error_at INTEGER);

-- the last invocations that hook_health is of
CREATE TABLE nexus_hook_window(hook_id TEXT PRIMARY KEY, ran TEXT NOT NULL) WITHOUT ROWID;

-- from the events themselves, by the embedder in force; behind the streams, see nexus_positions. Found by `sequence`: an
-- index of the ids would be written at random places in each of its small transactions, and cost more than the vectors
CREATE TABLE embeddings(event_id TEXT NOT NULL, model TEXT NOT NULL, vector BLOB NOT NULL,
  sequence INTEGER PRIMARY KEY, scale REAL NOT NULL);
-- from EVENTS: whose vectors are not of what they say now
CREATE TABLE nexus_reembed(sequence INTEGER PRIMARY KEY);

-- a derived index that nothing fills yet
CREATE TABLE episodes(id TEXT PRIMARY KEY, thread_id TEXT, channel TEXT, started_at INTEGER, ended_at INTEGER, summary TEXT);
CREATE TABLE episode_events(episode_id TEXT, event_id TEXT);
CREATE INDEX episode_events_episode ON episode_events(episode_id);
CREATE TABLE facets(id TEXT PRIMARY KEY, episode_id TEXT NOT NULL, facet_type TEXT NOT NULL, value TEXT, confidence REAL,
  created_at INTEGER NOT NULL);
CREATE INDEX facets_episode ON facets(episode_id);

-- how far each stream is projected: written in the transaction of the rows themselves
CREATE TABLE nexus_positions(stream TEXT PRIMARY KEY, sequence INTEGER NOT NULL) WITHOUT ROWID;

-- which message each position names, and in which incarnation of its stream
CREATE TABLE nexus_marks(
  stream TEXT PRIMARY KEY, incarnation TEXT NOT NULL, sequence INTEGER NOT NULL, stored_at_ns INTEGER NOT NULL) WITHOUT ROWID;
