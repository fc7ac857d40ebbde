/**
 * @name Agent messages
 * @description What one agent writes to another (tool send_message_to_agent) goes to that agent, a session per sender.
 * @mode persistent
 * @priority 90
 * @match channel=agent direction=received
 */

export default async function (ctx: HookContext): Promise<HookResult> {
  const { event } = ctx;
  const { to, from } = event.metadata as { to?: string; from?: string };
  if (event.channel !== "agent" || event.direction !== "received" || !to || !from) return { fire: false };
  return {
    fire: true,
    routing: { persona: to, session: `agent:${from}` },
    // The sender is a program whose words may come from anybody: say here what it may have done.
    permissions: { level: "restricted" },
  };
}
