/// <reference path="./nexus.d.ts" />
/**
 * @name Heartbeat
 * @description Every half hour between eight and ten at night, the agent looks whether anything needs attention.
 * @mode persistent
 * @priority 20
 * @needs-channel webhook:owner
 */
const EVERY_MS = 30 * 60 * 1000;
const ZONE = "America/Chicago";

export default async function (ctx: HookContext): Promise<HookResult> {
  const { event, hook, now } = ctx;
  // The scheduler publishes one tick a minute.
  if (event.channel !== "timer" || event.peer.id !== "tick") return { fire: false };
  const hour = Number(new Intl.DateTimeFormat("en-US", { hour: "2-digit", hourCycle: "h23", timeZone: ZONE }).format(now));
  if (hour < 8 || hour >= 22) return { fire: false };
  if (hook.last_triggered !== undefined && now.getTime() - hook.last_triggered < EVERY_MS) return { fire: false };

  return {
    fire: true,
    routing: { session: "heartbeat", queueMode: "collect" },
    // Nobody wrote to us: the owner is told.
    deliveryContext: { channel: "webhook", accountId: "owner", peerId: "heartbeat" },
    context: {
      systemPrompt: "This is a heartbeat. Look at what is open: unanswered messages, due reminders, failed deliveries. Say nothing where nothing needs attention.",
      includeThreadHistory: false,
    },
  };
}
