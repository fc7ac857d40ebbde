/// <reference path="./nexus.d.ts" />
/**
 * @name Transcribe voice
 * @description Has the voice notes of direct messages written down, for models that cannot hear them.
 * @mode persistent
 * @priority 10
 * @timeout 60s
 * @allow net=http://127.0.0.1:8000
 */

// A server with OpenAI's /v1/audio/transcriptions. `@allow` above names it too, and an operator grants it to this hook:
// [hooks.grants]
// "transcribe-voice" = ["http://127.0.0.1:8000"]
const SERVER = "http://127.0.0.1:8000";
const MODEL = "whisper-1";
// `authorization`, if the server wants a key.
const HEADERS: Record<string, string> = {};

// The server knows the type of a recording by the end of its name.
const ENDINGS = new Map([
  ["audio/ogg", "ogg"], ["audio/opus", "ogg"], ["audio/mpeg", "mp3"], ["audio/mp3", "mp3"], ["audio/mp4", "m4a"], ["audio/m4a", "m4a"],
  ["audio/x-m4a", "m4a"], ["audio/wav", "wav"], ["audio/x-wav", "wav"], ["audio/flac", "flac"], ["audio/x-flac", "flac"], ["audio/webm", "webm"],
]);

// Only the first calls of a hook for an event may read files.
const MOST = 8;

export default async function (ctx: HookContext): Promise<HookResult> {
  const { event } = ctx;
  if (event.direction !== "received" || event.peer.kind !== "dm") return { fire: false };
  const recordings = [...event.attachments.entries()].filter(
    ([, file]) => file.media_type === "audio" && file.state === "stored" && file.transcript === undefined,
  );
  if (recordings.length === 0) return { fire: false };

  // If the server cannot do it, this hook fails, and the catch-all has the message answered without the words.
  const transcripts = await Promise.all(
    recordings.slice(0, MOST).map(async ([index, file]) => ({ index, text: await transcribe(ctx, index, file.mime_type ?? "") })),
  );
  return { fire: true, context: { transcripts } };
}

async function transcribe(ctx: HookContext, index: number, mimeType: string): Promise<string> {
  const form = new FormData();
  form.append("file", new File([await ctx.readFile(index)], `voice.${ENDINGS.get(mimeType) ?? "ogg"}`));
  form.append("model", MODEL);
  // What a browser would send of the form, since the host sends bytes.
  const whole = new Response(form);

  const answer = await ctx.fetch(`${SERVER}/v1/audio/transcriptions`, {
    method: "POST",
    headers: { ...HEADERS, "content-type": whole.headers.get("content-type") ?? "" },
    body: new Uint8Array(await whole.arrayBuffer()),
    timeout: 50_000,
  });
  if (!answer.ok) throw new Error(`the server answered ${answer.status}: ${(await answer.text()).slice(0, 200)}`);
  return (await answer.json()).text;
}
