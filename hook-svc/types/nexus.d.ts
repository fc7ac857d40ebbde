// What a hook script sees and answers. Put this file beside your hooks (or name it in `tsconfig.json`) and an editor
// completes `ctx` and checks the result. Sources: seed 003 §8.2–8.3, seed 001 §2.

/** The event being evaluated. Frozen: all hooks of an event share it. */
interface NexusEvent {
  /** `{adapter}:{source_id}`, the same for the same source item for ever. */
  readonly id: string;
  /** At the source, Unix milliseconds. */
  readonly timestamp: number;
  /** At the adapter, Unix milliseconds. */
  readonly received_at: number;
  /** `imessage`, `discord`, `telegram`, `email`, `webchat`, `webhook`, `timer`, … (open set). */
  readonly channel: string;
  readonly source_adapter: string;
  readonly source_id: string;
  /** Which of our accounts on the channel; null = the default one. */
  readonly account_id: string | null;
  readonly direction: "received" | "sent" | "observed" | "created" | "updated" | "deleted";
  readonly from: { readonly id: string; readonly display_name?: string; readonly roles?: readonly string[] };
  /** `from.id`. */
  readonly sender_id: string;
  readonly participants: readonly {
    readonly id: string;
    readonly role: "sender" | "recipient" | "cc" | "observer";
    readonly display_name?: string;
  }[];
  /** The conversation. */
  readonly peer: {
    readonly kind: "dm" | "group" | "channel";
    readonly id: string;
    readonly parent_id?: string;
    readonly guild_id?: string;
    readonly team_id?: string;
  };
  readonly thread_id: string | null;
  /** Id of the event that this one answers. */
  readonly reply_to: string | null;
  /** Id of the event that this one is about: what a reaction, an edit, a deletion or a press of a button refers to. */
  readonly target: string | null;
  /** When the item was edited at its source, Unix milliseconds. */
  readonly edited_at: number | null;
  /** Whether and how the event addresses our account; null = its source does not say. */
  readonly mention: {
    readonly me: boolean;
    readonly how: "native" | "reply" | "thread" | "text" | "command" | "none";
  } | null;
  /** Part of another message that the event quotes; `id` is an event's id. */
  readonly quote: {
    readonly id: string;
    readonly text: string;
    readonly from?: { readonly id: string; readonly display_name?: string; readonly roles?: readonly string[] };
  } | null;
  readonly content: string;
  /** `text`, `image`, `voice`, `video`, `sticker`, `location`, `contact`, `poll`, `reaction`, `press`, `gap`, … (open set). */
  readonly content_types: readonly string[];
  readonly attachments: readonly {
    /** At the source, the same for the same file. */
    readonly id?: string;
    readonly filename?: string;
    readonly mime_type?: string;
    readonly size_bytes?: number;
    readonly media_type: string;
    readonly storage_uri?: string;
    readonly content_hash?: string;
    /** Milliseconds. */
    readonly duration_ms?: number;
    /** Words that are spoken in a recording. */
    readonly transcript?: string;
    /** Where the bytes are; absent = at the source alone. */
    readonly state?: "stored" | {
      readonly refused: "too_large" | "full" | "expired" | "forbidden_address" | "unavailable";
    };
    /** Largest size that was allowed where the file was refused as `too_large`. */
    readonly max_bytes?: number;
    /** What the source needs to hand out the bytes: a file id or a URL. */
    readonly handle?: string;
    /** When `handle` becomes void, Unix milliseconds. */
    readonly expires_at?: number;
  }[];
  /** Everything else that the source said. */
  readonly metadata: { readonly is_group: boolean; readonly [key: string]: any };
  /** `metadata` as the ledger's column holds it. */
  readonly metadata_json: string;
  readonly tags: readonly string[];
  /** Dispatches between this event and the first of its causal chain. */
  readonly hops: number;
  /** Who brought it, which no sender can set: `verified:{account}`, `token:{name}`, `edge:{name}`, `system` or `open`. */
  readonly origin: string;

  // The seeds' spellings of the same.
  readonly receivedAt: number;
  readonly sourceAdapter: string;
  readonly sourceId: string;
  readonly accountId: string | null;
  readonly senderId: string;
  readonly threadId: string | null;
  readonly replyTo: string | null;
  readonly editedAt: number | null;
  readonly contentTypes: readonly string[];
  readonly contentType: string;
  readonly metadataJson: string;
  readonly peerId: string;
  readonly peerKind: "dm" | "group" | "channel";
}

type MnemonicEvent = NexusEvent;

interface SearchOptions {
  channels?: string[];
  /** Unix milliseconds. */
  since?: number;
  /** Unix milliseconds. */
  until?: number;
  limit?: number;
}

interface LlmOptions {
  system?: string;
  /** Answer with JSON. */
  json?: boolean;
  max_tokens?: number;
}

interface FetchOptions {
  /** GET where absent; HEAD, POST, PUT, PATCH, DELETE. */
  method?: string;
  headers?: Record<string, string>;
  /** Text of at most 1 MiB, or bytes, as of a file, of at most 8 MiB. */
  body?: string | Uint8Array;
  /** Milliseconds: 10,000 where absent, at most 60,000 and the hook's `@timeout`. */
  timeout?: number;
}

interface FetchAnswer {
  /** Status 200 to 299. */
  readonly ok: boolean;
  readonly status: number;
  /** By name in small letters. */
  readonly headers: Readonly<Record<string, string>>;
  text(): Promise<string>;
  json(): Promise<any>;
}

interface HookContext {
  event: NexusEvent;
  /** The read model, SQLite; open it read-only. */
  dbPath: string;
  /** Ids of events like `query`, best first, scores from 0 to 1. Rejects with a `code` where it cannot be answered. */
  search(query: string, options?: SearchOptions): Promise<{ eventId: string; score: number }[]>;
  /**
   * One call of the configured model; the same question within one event is asked once. Rejects with an error whose
   * `code` says why: `not_available` where no model is configured, `over_budget`, `provider_down`, `timed_out`, …
   */
  llm(prompt: string, options?: LlmOptions): Promise<string>;
  /**
   * HTTP, made by the host, to servers that the header asks for (`@allow net=api.example.com`) and an operator grants
   * (`hooks.grants`). Redirects are not followed. Rejects with a `code`: `not_requested`, `not_granted`,
   * `forbidden_address`, `unreachable`, `timed_out`, `too_large`, `not_text`, `bad_arguments`, `too_many_calls`.
   */
  fetch(url: string, options?: FetchOptions): Promise<FetchAnswer>;
  /**
   * The bytes of the attachment at `index` of `event.attachments`, at most 8 MiB, if it is stored (`state` is `"stored"`).
   * Rejects with a `code`: `not_stored`, `too_large`, `unavailable`, `timed_out`, `bad_arguments`, `too_many_calls`,
   * `too_much_kept`.
   */
  readFile(index: number): Promise<Uint8Array>;
  /** The evaluation time of this event, also where history is replayed. */
  now: Date;
  hook: {
    readonly id: string;
    readonly name: string;
    /** Unix milliseconds. */
    readonly created_at: number;
    readonly trigger_count: number;
    /** Unix milliseconds. */
    readonly last_triggered?: number;
  };
}

type QueueMode = "steer" | "followup" | "collect" | "interrupt" | "steer-backlog" | "queue";

interface PermissionSet {
  level?: "full" | "restricted" | "group" | "minimal";
  /** Names and globs; deny wins; absent = the preset of `level`. */
  tools?: { allow?: string[]; deny?: string[] };
  credentials?: string[];
}

interface DeliveryContext {
  channel: string;
  accountId?: string;
  peerId?: string;
  threadId?: string;
  replyToId?: string;
}

/** What a hook answers. Of a field with two spellings either may be used. */
interface HookResult {
  /** Whether an agent should act. */
  fire: boolean;
  routing?: {
    /** Agent persona; absent = `default`. */
    persona?: string;
    /** Session within it; absent = derived from the event. */
    session?: string;
    /** Absent = `followup`. */
    queueMode?: QueueMode;
    /** Thread for the derived session and the delivery. */
    thread?: string;
    /** Older spelling: what `target` names. */
    mode?: "persona" | "session" | "thread";
    /** Older spelling: session key or thread id, by `mode`. */
    target?: string;
    /** Older spelling of `persona`. */
    agent_id?: string;
    /** Older spelling of `queueMode`. */
    queue_mode?: QueueMode;
  };
  /** Absent = by who the sender is. */
  permissions?: PermissionSet;
  /** Absent = back to where the event came from. */
  deliveryContext?: DeliveryContext;
  context?: {
    /** Appended to the persona's system prompt. */
    systemPrompt?: string;
    /** Data read out of the event. */
    extracted?: Record<string, any>;
    /**
     * What is spoken in attachments of the event, by their index. The agent reads it as words of the sender. Only an
     * operator's hook may; that of an agent fails.
     */
    transcripts?: readonly { index: number; text: string }[];
    /** Absent = true. */
    includeThreadHistory?: boolean;
    /** Older spelling of `systemPrompt`. */
    prompt?: string;
    /** Older spelling of `includeThreadHistory`. */
    include_thread?: boolean;
  };
  /** Disable this hook from now on. */
  disableHook?: boolean;
  /** Older spelling of `disableHook`. */
  disable_hook?: boolean;
}

declare module "better-sqlite3" {
  interface Statement {
    get(...params: unknown[]): any;
    all(...params: unknown[]): any[];
    iterate(...params: unknown[]): IterableIterator<any>;
    run(...params: unknown[]): { changes: number; lastInsertRowid: number | bigint };
    pluck(on?: boolean): this;
    raw(on?: boolean): this;
    bind(...params: unknown[]): this;
    columns(): { name: string }[];
  }
  class Database {
    constructor(path?: string, options?: { readonly?: boolean; fileMustExist?: boolean; timeout?: number });
    readonly name: string;
    readonly open: boolean;
    readonly readonly: boolean;
    readonly memory: boolean;
    readonly inTransaction: boolean;
    prepare(sql: string): Statement;
    exec(sql: string): this;
    transaction<F extends (...args: any[]) => unknown>(body: F): F;
    pragma(text: string, options?: { simple?: boolean }): any;
    close(): this;
  }
  export default Database;
}
