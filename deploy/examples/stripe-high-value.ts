/// <reference path="./nexus.d.ts" />
/**
 * @name Stripe high value
 * @description A payment of 500 dollars or more is told to the owner at once.
 * @mode persistent
 * @priority 75
 * @needs-channel webhook:owner
 */
const LEAST_CENTS = 500_00;

export default async function (ctx: HookContext): Promise<HookResult> {
  const { event } = ctx;
  if (event.channel !== "webhook" || event.metadata.source !== "stripe") return { fire: false };
  const payload: any = event.metadata.payload;
  if (payload?.type !== "charge.succeeded" && payload?.type !== "payment_intent.succeeded") return { fire: false };

  const paid = payload.data?.object ?? {};
  const cents = paid.amount_received ?? paid.amount;
  if (typeof cents !== "number" || paid.currency !== "usd" || cents < LEAST_CENTS) return { fire: false };

  const dollars = (cents / 100).toFixed(2);
  return {
    fire: true,
    routing: { session: "payments" },
    // Nobody wrote to us: the owner is told.
    deliveryContext: { channel: "webhook", accountId: "owner", peerId: "payments" },
    context: {
      systemPrompt: `A payment of $${dollars} arrived. Tell the owner who paid and for what.`,
      extracted: { amount_usd: Number(dollars), customer: paid.customer ?? null, charge: paid.id, description: paid.description ?? null },
      includeThreadHistory: false,
    },
  };
}
