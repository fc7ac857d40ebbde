/**
 * @name Default DM routing
 * @description The catch-all: a direct message that no other hook routed goes to the default persona.
 * @mode persistent
 * @priority 10
 * @fallback
 * @needs-channel webchat
 */

// Channels on which people write to us directly. A timer or a webhook has no one to answer.
const CONVERSATIONS = new Set([
  "webchat", "imessage", "sms", "telegram", "discord", "slack", "whatsapp", "signal", "email", "nats", "cli",
]);

export default async function (ctx: HookContext): Promise<HookResult> {
  const { event } = ctx;
  if (event.direction !== "received") return { fire: false };
  if (event.peer.kind !== "dm" || !CONVERSATIONS.has(event.channel)) return { fire: false };
  if (event.content.trim() === "" && event.attachments.length === 0) return { fire: false };
  return { fire: true };
}
