/**
 * @name GitHub webhook
 * @description Hands pushes, issues, pull requests and pings of a GitHub webhook to an agent.
 * @mode persistent
 * @priority 60
 * @needs-channel webhook:demo
 */

type Summary = { what: string; fields: Record<string, unknown> };

// What an agent is told of each kind of delivery: https://docs.github.com/en/webhooks/webhook-events-and-payloads
const KINDS: Record<string, (payload: any) => Summary> = {
  ping: (p) => ({ what: `GitHub says hello: "${p.zen ?? ""}"`, fields: { zen: p.zen, hook: p.hook_id } }),
  push: (p) => {
    const commits = (p.commits ?? []).map((c: any) => ({ id: String(c.id).slice(0, 10), message: firstLine(c.message), author: c.author?.name }));
    const count = commits.length === 1 ? "1 commit" : `${commits.length} commits`;
    return { what: `${p.pusher?.name ?? "Somebody"} pushed ${count} to ${branch(p.ref)}`, fields: { ref: p.ref, after: p.after, commits } };
  },
  issues: (p) => ({
    what: `issue #${p.issue?.number} was ${p.action}: ${p.issue?.title ?? ""}`,
    fields: { action: p.action, number: p.issue?.number, title: p.issue?.title, url: p.issue?.html_url },
  }),
  issue_comment: (p) => ({
    what: `${p.sender?.login ?? "Somebody"} commented on #${p.issue?.number}: ${firstLine(p.comment?.body)}`,
    fields: { action: p.action, number: p.issue?.number, url: p.comment?.html_url },
  }),
  pull_request: (p) => ({
    what: `pull request #${p.number} was ${p.action}: ${p.pull_request?.title ?? ""}`,
    fields: { action: p.action, number: p.number, title: p.pull_request?.title, url: p.pull_request?.html_url, merged: p.pull_request?.merged },
  }),
  release: (p) => ({
    what: `release ${p.release?.tag_name ?? ""} was ${p.action}`,
    fields: { action: p.action, tag: p.release?.tag_name, url: p.release?.html_url },
  }),
};

export default async function (ctx: HookContext): Promise<HookResult> {
  const { event } = ctx;
  if (event.channel !== "webhook" || event.direction !== "received") return { fire: false };
  const payload = payloadOf(event);
  const kind = kindOf(event, payload);
  if (payload === null || kind === null) return { fire: false };

  const repository: string | undefined = payload.repository?.full_name ?? payload.organization?.login;
  const { what, fields } = KINDS[kind](payload);
  return {
    fire: true,
    routing: { session: `github:${repository ?? "unknown"}` },
    deliveryContext: { channel: "webhook", accountId: "demo", peerId: repository ?? "unknown" },
    context: {
      systemPrompt: `A GitHub webhook arrived. In ${repository ?? "an unknown repository"}, ${what}. Say in one or two sentences what it means and whether somebody must act.`,
      extracted: { kind, repository, sender: payload.sender?.login, ...fields },
      includeThreadHistory: false,
    },
  };
}

function payloadOf(event: NexusEvent): any {
  const given = event.metadata.payload ?? event.metadata.body;
  if (typeof given === "object" && given !== null) return given;
  try {
    const parsed = JSON.parse(typeof given === "string" ? given : event.content);
    return typeof parsed === "object" ? parsed : null;
  } catch {
    return null;
  }
}

function kindOf(event: NexusEvent, payload: any): string | null {
  const headers = event.metadata.headers ?? {};
  const header = headers["x-github-event"] ?? headers["X-GitHub-Event"];
  const isGithub = header !== undefined || event.metadata.scheme === "github" || /github/i.test(event.metadata.source ?? "");
  if (!isGithub) return null;
  const named = header ?? event.metadata.event_type;
  if (typeof named === "string") return Object.hasOwn(KINDS, named) ? named : null;
  // A source that keeps no headers: the payloads are told apart by what they hold.
  if (payload?.zen !== undefined) return "ping";
  if (payload?.pull_request !== undefined) return "pull_request";
  if (payload?.comment !== undefined && payload.issue !== undefined) return "issue_comment";
  if (payload?.issue !== undefined) return "issues";
  if (payload?.release !== undefined) return "release";
  return payload?.commits !== undefined ? "push" : null;
}

function branch(ref: unknown): string {
  return String(ref ?? "an unknown ref").replace(/^refs\/(heads|tags)\//, "");
}

function firstLine(text: unknown): string {
  return String(text ?? "").split("\n", 1)[0].slice(0, 200);
}
