/// <reference path="./nexus.d.ts" />
/**
 * @name Mom 2FA Helper
 * @description When Mom asks for a two-factor code, hands her question to an agent that may look for it.
 * @mode persistent
 * @priority 85
 * @timeout 20s
 * @needs-channel sms
 */
import Database from "better-sqlite3";

// Name another channel here, and above, if she writes on that one.
const CHANNELS = ["sms"];

export default async function (ctx: HookContext): Promise<HookResult> {
  const { event, dbPath, llm } = ctx;
  if (event.direction !== "received" || !CHANNELS.includes(event.channel)) return { fire: false };
  // Cheap first: most messages are not about a code.
  if (!/\b(code|2fa|verification|log ?in|password|text(ed)?)\b/i.test(event.content)) return { fire: false };

  const db = new Database(dbPath, { readonly: true, fileMustExist: true });
  let sender;
  try {
    sender = db
      .prepare(
        `SELECT p.canonical_name AS name, p.relationship_type AS relationship
         FROM event_participants ep
         JOIN person_contact_links pcl ON pcl.contact_id = ep.contact_id
         JOIN persons p ON p.id = pcl.person_id
         WHERE ep.event_id = ? AND ep.role = 'sender'`,
      )
      .get(event.id);
  } finally {
    db.close();
  }
  if (sender?.relationship !== "mother") return { fire: false };

  const answer = JSON.parse(
    await llm(
      `Message: ${JSON.stringify(event.content)}\n\nDoes the writer ask for a two-factor or verification code? ` +
        `Answer with JSON: {"is_2fa_request": boolean, "service": string or null}.`,
      { system: "You classify one message.", json: true, max_tokens: 200 },
    ),
  );
  if (answer.is_2fa_request !== true) return { fire: false };

  return {
    fire: true,
    routing: { mode: "persona", agent_id: "default", queue_mode: "interrupt" },
    context: {
      prompt: `${sender.name} asks for a verification code${answer.service ? ` of ${answer.service}` : ""}. Look for the newest one and send it to her.`,
      extracted: { service: answer.service ?? null, person: sender.name },
      include_thread: true,
    },
  };
}
