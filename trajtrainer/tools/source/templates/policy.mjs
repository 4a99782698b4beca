/**
<<comment>>
 */

const { exp, log, sqrt, tanh, sin, cos, pow, floor, ceil, abs, max, min } = Math;

/** @param {string} text little-endian float32 as base64 */
function decode(text) {
  return new Float32Array(Uint8Array.from(atob(text), (character) => character.charCodeAt(0)).buffer);
}

<<tables>>

/** The agents' sensors. */
export const sensors = <<sensors>>;

/** Numbers per agent. */
export const sizes = <<sizes>>;

/** Decides for up to this number of agents at a time. Each worker needs its own policy object. */
export class Policy {
  /** @param {number} agents maximum number of agents */
  constructor(agents = 1) {
    this.work = new Float32Array(<<[1, program.workspace_size] | max>>);
    /** The latest decision: arrays with the actions agent by agent. The next decision reuses them. */
    this.actions = {
      continuous: new Float32Array(agents * <<program.continuous_size>>),
      discrete: new Int32Array(agents * <<program.branches | length>>),
      /** @type {Float32Array | null} */
      memory: null,
    };
    this.agents = agents;
  }

  /**
   * @param {Float32Array[]} observations one array per sensor
   * @param {Float32Array | null} mask action mask; null allows all actions
   * @param {Float32Array | null} memory memory of each agent, which is updated
   * @param {Float32Array | null} random random numbers; null if deterministic
   * @param {boolean} deterministic take the most likely action instead of sampling one
   * @returns {{continuous: Float32Array, discrete: Int32Array, memory: Float32Array | null}}
   */
  decide(observations, mask = null, memory = null, random = null, deterministic = false) {
    const agents = observations[0].length / <<program.sensors[0].size>>;
    this.check(agents, observations, mask, memory, deterministic ? null : random, deterministic);
    const work = this.work;
    const { continuous, discrete } = this.actions;
    const has_mask = mask !== null;
<<code>>
    this.actions.memory = memory;
    return this.actions;
  }

  /** @private */
  check(agents, observations, mask, memory, random, deterministic) {
    if (agents > this.agents) throw new RangeError(`${agents} agents, but the policy was made for ${this.agents}`);
    sensors.forEach((sensor, k) => expect(`observations of ${sensor.name}`, observations[k], agents * sensor.size));
    if (mask !== null) expect("mask", mask, agents * sizes.mask);
    if (sizes.memory > 0) expect("memory", memory, agents * sizes.memory);
    if (!deterministic) expect("random", random, agents * sizes.random);
  }
}

function expect(name, array, length) {
  if (!array || array.length !== length) {
    throw new RangeError(`${name}: expected ${length} numbers, got ${array ? array.length : "none"}`);
  }
}

/**
 * Drops the oldest of an agent's stacked frames and appends the newest one. Start an episode with zeros.
 * @param {Float32Array} stacked
 * @param {Float32Array} frame
 */
export function stack(stacked, frame) {
  stacked.copyWithin(0, frame.length);
  stacked.set(frame, stacked.length - frame.length);
}
