// The least that a Bun process does with hooks: frames of events in, every hook called, what fired out. No sandbox, no
// deadlines, no accounting, no results judged. argv: folder of the hooks, how many.
const [folder, count] = Bun.argv.slice(2);
const hooks: ((ctx: unknown) => unknown)[] = [];
for (let i = 0; i < Number(count); i++) hooks.push((await import(`${folder}/bench-${i}.ts`)).default);

function send(answer: unknown): void {
  const body = Buffer.from(JSON.stringify(answer));
  const frame = Buffer.allocUnsafe(4 + body.length);
  frame.writeUInt32LE(body.length, 0);
  frame.set(body, 4);
  process.stdout.write(frame);
}

function one(event: unknown): number[] {
  const fired: number[] = [];
  for (let i = 0; i < hooks.length; i++) {
    const answer = Bun.peek(hooks[i]!({ event })) as { fire: boolean };
    if (answer.fire) fired.push(i);
  }
  return fired;
}

let rest = Buffer.alloc(0);
process.stdin.on("data", (chunk: Buffer) => {
  rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk]);
  let at = 0;
  while (rest.length - at >= 4) {
    const size = rest.readUInt32LE(at);
    if (rest.length - at - 4 < size) break;
    const events = JSON.parse(rest.toString("utf8", at + 4, at + 4 + size)) as unknown[];
    at += 4 + size;
    send(events.map(one));
  }
  rest = rest.subarray(at);
});
process.stdin.on("end", () => process.exit(0));
send("ready");
