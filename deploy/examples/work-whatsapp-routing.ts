/// <reference path="./nexus.d.ts" />
/**
 * @name Work WhatsApp routing
 * @description Messages to the work number go to the work persona: one session for each group, one for all direct messages.
 * @mode persistent
 * @priority 70
 * @needs-channel whatsapp:work
 */
export default async function (ctx: HookContext): Promise<HookResult> {
  const { event } = ctx;
  if (event.channel !== "whatsapp" || event.account_id !== "work") return { fire: false };
  if (event.direction !== "received") return { fire: false };

  const isGroup = event.metadata.is_group;
  return {
    fire: true,
    routing: {
      persona: "work",
      session: isGroup ? `whatsapp:group:${event.peer.id}` : "main",
      queueMode: isGroup ? "collect" : "followup",
    },
    permissions: { level: isGroup ? "group" : "restricted" },
  };
}
