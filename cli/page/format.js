// SPDX-License-Identifier: Apache-2.0
// Numbers in words, rounded as the command line rounds them: four digits, and whole numbers in full.
const digits = (value, count) => {
  if (value !== 0 && Math.abs(value) < 10 ** -count) return value.toPrecision(count);
  const text = Math.abs(value) >= 10 ** (count - 1) ? value.toFixed(0) : value.toPrecision(count);
  return text.includes('e') ? String(Number(text)) : text;
};

export const grouped = (value) => Math.round(value).toLocaleString('en-US');

export function seconds(value, count = 4) {
  if (value >= 1 || value === 0) return `${digits(value, count)} s`;
  if (value >= 1e-3) return `${digits(value * 1e3, count)} ms`;
  return `${digits(value * 1e6, count)} µs`;
}

export const gib = (bytes, count = 4) => `${digits(bytes / 2 ** 30, count)} GiB`;

export function bytes(value) {
  for (const [unit, size] of [['TB', 1e12], ['GB', 1e9], ['MB', 1e6], ['kB', 1e3]]) {
    if (value >= size) return `${digits(value / size, 3)} ${unit}`;
  }
  return `${digits(value, 3)} B`;
}

export const percent = (share, count = 0) => `${(share * 100).toFixed(count)} %`;

export function signedPercent(share) {
  const size = Math.abs(share) * 100;
  const text = size < 10 ? size.toFixed(1) : size.toFixed(0);
  return `${share < 0 ? '−' : '+'}${text} %`;
}

export function days(value) {
  if (value < 1) return `${digits(value * 24, 3)} hours`;
  return value < 1000 ? `${digits(value, 3)} days` : `${grouped(value)} days`;
}

export function usd(value) {
  for (const [unit, size] of [['billion USD', 1e9], ['M USD', 1e6], ['k USD', 1e3]]) {
    if (value >= size) return `${digits(value / size, 3)} ${unit}`;
  }
  return `${digits(value, 3)} USD`;
}

/** "8.03 B", of parameters and tokens. */
export function short(value) {
  for (const [unit, size] of [['T', 1e12], ['B', 1e9], ['M', 1e6], ['k', 1e3]]) {
    if (value >= size) return `${Number(digits(value / size, 3))} ${unit}`;
  }
  return String(value);
}

const SCALES = {k: 1e3, m: 1e6, b: 1e9, g: 1e9, t: 1e12};

/** "15T" as 15e12; NaN for what is no number. The program gets such a text as plain digits. */
export function countOf(text) {
  const found = /^\s*\$?\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([kmbgt]?)\s*$/i.exec(text);
  return found ? Number(found[1]) * (SCALES[found[2].toLowerCase()] || 1) : NaN;
}

/** "36h", "60d", "6w", "1y" in days; NaN for what is no time. */
export function daysOf(text) {
  const found = /^\s*([\d.]+)\s*([hdwmy])\s*$/.exec(text || '');
  return found ? Number(found[1]) * {h: 1 / 24, d: 1, w: 7, m: 30, y: 365}[found[2]] : NaN;
}

/** "gather_buffers" as "gather buffers". */
export const words = (key) => key.replaceAll('_', ' ');
