/// <reference path="./nexus.d.ts" />
/**
 * @name Flight check-in
 * @description An airline's booking mail: reads flight, code and departure out of it and has the check-in planned.
 * @mode persistent
 * @priority 60
 * @timeout 20s
 * @needs-channel webhook:owner
 */
const AIRLINES = /@([\w-]+\.)*(united|delta|aa|southwest|lufthansa)\.com$/i;
const CONFIRMATION = /\b(?:confirmation|booking|record locator)\b[^A-Z0-9]{0,20}([A-Z0-9]{6})\b/i;

export default async function (ctx: HookContext): Promise<HookResult> {
  const { event, llm } = ctx;
  if (event.channel !== "email" || event.direction !== "received" || !AIRLINES.test(event.sender_id)) return { fire: false };
  const code = CONFIRMATION.exec(event.content)?.[1]?.toUpperCase();
  if (code === undefined) return { fire: false };

  // The rest differs from airline to airline.
  const flight = JSON.parse(
    await llm(`Mail:\n${event.content.slice(0, 8000)}\n\nAnswer with JSON: {"flight": string or null, "departs_at": ISO 8601 time with offset or null, "from": IATA code or null, "to": IATA code or null}.`, {
      json: true,
      max_tokens: 300,
    }),
  );
  const departs = Date.parse(flight.departs_at ?? "");
  if (Number.isNaN(departs)) return { fire: false };

  return {
    fire: true,
    routing: { session: "travel" },
    // The owner is told, not the airline.
    deliveryContext: { channel: "webhook", accountId: "owner", peerId: "travel" },
    context: {
      systemPrompt: "A flight was booked. Plan the check-in for 24 hours before departure and tell the owner in one sentence.",
      extracted: { ...flight, confirmation: code, checkin_at: new Date(departs - 24 * 60 * 60 * 1000).toISOString() },
      includeThreadHistory: false,
    },
  };
}
