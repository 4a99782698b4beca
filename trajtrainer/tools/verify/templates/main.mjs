import { readFileSync, writeSync } from "node:fs";
import { Policy, sizes } from "./<<file>>";
const wanted = [[<<sizes.observations | join(", ")>>], <<sizes[1:] | join(", ")>>];
const own = [sizes.observations, sizes.mask, sizes.memory, sizes.continuous, sizes.discrete];
if (JSON.stringify(own) !== JSON.stringify(wanted)) process.exit(9);
const bytes = readFileSync(0);
const numbers = new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
const policy = new Policy(1);
const memory = new Float32Array(sizes.memory);
const out = [];
let at = 0;
const take = (size) => numbers.subarray(at, (at += size));
while (at < numbers.length) {
  const observations = sizes.observations.map(take);
  const mask = sizes.mask ? take(sizes.mask) : null;
  const [starts, deterministic] = take(2);
  if (starts) memory.fill(0);
  const random = take(sizes.random);
  const actions = policy.decide(observations, mask, sizes.memory ? memory : null, random, deterministic !== 0);
  out.push(...actions.continuous, ...actions.discrete);
}
const answer = Buffer.from(new Float32Array(out).buffer);
for (let written = 0; written < answer.length; ) written += writeSync(1, answer, written);
