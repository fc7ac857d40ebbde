// Tries, in the sandbox, what no hook may do, and whether its code is compiled. Says so in one line of JSON.

import { numberOfDFGCompiles } from "bun:jsc";
import fs from "node:fs";

function hot(n: number): number {
  let sum = 0;
  for (let i = 0; i < n; i++) sum = (sum + i * 3) ^ i;
  return sum;
}

const ROUNDS = 5000;
for (let i = 0; i < ROUNDS && numberOfDFGCompiles(hot) === 0; i++) hot(2000);

function fails(act: () => unknown): boolean {
  try {
    act();
    return false;
  } catch {
    return true;
  }
}

// The read model, or the nearest folder where it is not there yet, and who this is to be; 0 = whoever hook-svc is.
const [model, uid] = process.argv.slice(2);

// No hook opens the file: one that can read it can lock it for everybody.
function isOutOfReach(): boolean {
  return model === "" || (fails(() => fs.closeSync(fs.openSync(model, "r"))) && fails(() => fs.readdirSync(model)));
}

function isUser(): boolean {
  if (uid === "0") return true;
  return process.getuid!() === Number(uid) && fails(() => process.setuid!(0)) && fails(() => process.setgid!(0));
}

// Landlock did not forbid this at first: a file that may be read is opened for reading, and emptied.
function isKept(): boolean {
  const { O_RDONLY, O_TRUNC } = fs.constants;
  return fails(() => fs.openSync(`${import.meta.dir}/probe.txt`, O_RDONLY | O_TRUNC));
}

let network = false;
try {
  await fetch("http://127.0.0.1:1/");
} catch (error: any) {
  // A refused connection was tried; a forbidden one was not.
  network = error?.code === "EPERM" || error?.code === "EACCES";
}

console.log(JSON.stringify({
  compiled: (numberOfDFGCompiles(hot) as unknown as number) > 0,
  read: fails(() => fs.readFileSync("/etc/passwd")),
  write: fails(() => fs.writeFileSync("/tmp/nexus-jail-probe", "")),
  spawn: fails(() => Bun.spawnSync([process.execPath, "--version"])),
  truncate: isKept(),
  signal: fails(() => process.kill(process.ppid, 0)),
  network,
  user: isUser(),
  model: isOutOfReach(),
}));
