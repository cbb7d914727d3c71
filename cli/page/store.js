// SPDX-License-Identifier: Apache-2.0
// What the user has chosen: one map of flags under the command line's own names, whichever view asks. Views listen.
export const state = {
  view: 'plan',
  flags: new Map(),
  held: new Set(),  // flags that a search may not change
  beside: null,     // another plan's flags, to compare with
  measured: null,   // {label, trace} of a step of `run`, to draw under the predicted one
};

/** Text of the user's files by name; on a command line they are ./NAME. */
export const files = new Map();

/** What a text that the program can read is: plan, cluster, prices, or a model's config.json. */
export function kindOfText(text) {
  const [, schema] = /"schema"\s*:\s*"shardwright\.(\w+)/.exec(text) || [];
  return schema || 'model';
}

/** The names of the user's files of one kind. */
export const filesOf = (kind) => [...files].filter(([, text]) => kindOfText(text) === kind).map(([name]) => name);

const listeners = new Set();

export const listen = (listener) => listeners.add(listener);

export function changed(what) {
  for (const listener of listeners) listener(what);
}

/** An empty value is the program's default. */
export function setFlag(name, value, quietly = false) {
  const before = state.flags.get(name) ?? '';
  if (String(value ?? '') === before) return;
  if (value === '' || value === null || value === undefined) state.flags.delete(name);
  else state.flags.set(name, String(value));
  if (!quietly) changed('flags');
}

export function setFlags(pairs) {
  for (const [name, value] of pairs) setFlag(name, value, true);
  changed('flags');
}

// Prices that the user gives, of clusters by name: the flag --price, "dgx-h100=2.10;p5=3".

const given = () => new Map((state.flags.get('price') || '').split(';').filter(Boolean).map((pair) => pair.split('=')));

export const priceOf = (cluster) => given().get(cluster) || '';

export function setPrice(cluster, usdAnHour) {
  const prices = given();
  if (usdAnHour) prices.set(cluster, usdAnHour);
  else prices.delete(cluster);
  setFlag('price', [...prices].map(([name, usd]) => `${name}=${usd}`).join(';'));
}
