/// <reference path="./nexus.d.ts" />
/**
 * @name Casey safety check
 * @description Once, on the evening of the hike: if Casey was not heard of for three hours, or sounds in trouble, call.
 * @mode one-shot
 * @priority 95
 * @timeout 30s
 * @needs-channel webhook:owner
 */
import Database from "better-sqlite3";

const FROM = new Date("2026-01-27T21:00:00-06:00");
const DEADLINE = new Date("2026-01-28T03:00:00-06:00");
const SILENCE_MS = 3 * 60 * 60 * 1000;

export default async function (ctx: HookContext): Promise<HookResult> {
  const { event, dbPath, llm, now } = ctx;
  if (event.channel !== "timer" || event.peer.id !== "tick" || now < FROM) return { fire: false };
  // Past the deadline nobody needs this hook any more.
  if (now > DEADLINE) return { fire: false, disable_hook: true };
  // A look every quarter of an hour is enough.
  if (now.getUTCMinutes() % 15 !== 0) return { fire: false };

  const db = new Database(dbPath, { readonly: true });
  let messages;
  try {
    messages = db
      .prepare(
        `SELECT e.timestamp, e.content
         FROM events e
         JOIN event_participants ep ON ep.event_id = e.id AND ep.role = 'sender'
         JOIN person_contact_links pcl ON pcl.contact_id = ep.contact_id
         JOIN persons p ON p.id = pcl.person_id
         WHERE p.canonical_name = ? AND e.timestamp <= ?
         ORDER BY e.timestamp DESC LIMIT 10`,
      )
      .all("Casey", now.getTime());
  } finally {
    db.close();
  }
  const last = messages[0]?.timestamp;
  if (last === undefined || now.getTime() - last >= SILENCE_MS) return call(`Casey was not heard of since ${last ? new Date(last).toISOString() : "the beginning"}.`);

  const answer = JSON.parse(
    await llm(`Casey's last messages, the newest first:\n${messages.map((m: any) => `- ${m.content}`).join("\n")}\n\nIs Casey in trouble? Answer with JSON: {"in_trouble": boolean, "why": string}.`, {
      json: true,
      max_tokens: 200,
    }),
  );
  return answer.in_trouble === true ? call(answer.why) : { fire: false };
}

function call(why: string): HookResult {
  return {
    fire: true,
    routing: { agent_id: "phone-caller" },
    // How the call went is told to the owner.
    deliveryContext: { channel: "webhook", accountId: "owner", peerId: "casey" },
    context: { prompt: `Call Tyler: ${why}`, extracted: { why } },
    disable_hook: true,
  };
}
