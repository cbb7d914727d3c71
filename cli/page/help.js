// SPDX-License-Identifier: Apache-2.0
// The program's own --help as data: which flags a verb has, what they take and mean. The page's forms are made of it,
// so that a flag is never typed twice.
const NAME = /^ {2}(-\S(?:.*?\S)?)(?: {2,}(\S.*))?$/;
const CHOICES = /^ {6}(\S.*?)(?: {2,}(\S.*))?$/;  // too many for one line
const MORE = /^ {20,}(\S.*)$/;

/** [{name, type, text, group, choices, suggestions, otherwise}] of what `shardwright VERB --help` printed. */
export function flagsOfHelp(help) {
  const flags = [];
  let group = '';
  for (const line of help.split('\n')) {
    if (/^Results go to|^Exit codes/.test(line)) break;
    const heading = /^(\S.*):$/.exec(line);
    if (heading) {
      group = heading[1];
      continue;
    }
    const entry = NAME.exec(line);
    const choices = CHOICES.exec(line);
    if (entry) {
      flags.push({head: entry[1], text: entry[2] || '', group});
    } else if (choices && flags.length) {
      const last = flags[flags.length - 1];
      last.head += choices[1];
      last.text = `${last.text} ${choices[2] || ''}`.trim();
    } else if (flags.length) {
      const more = MORE.exec(line);
      if (more) flags[flags.length - 1].text = `${flags[flags.length - 1].text} ${more[1]}`.trim();
    }
  }
  return flags.map(complete).filter((flag) => flag.name !== 'help');
}

function complete({head, text, group}) {
  const words = head.split(' ').filter((word) => !word.startsWith('-') || word.startsWith('--'));
  const name = words[0].replace(/^--/, '').replace(/,$/, '');
  const type = words.slice(1).filter((word) => word !== 'REQUIRED' && word !== '...').join(' ');
  const otherwise = (/\(default: ([^)]*)\)/.exec(text) || [])[1] || '';
  const choices = choicesOf(type, text);
  // A list of choices need not be read out again below the choice itself.
  const hint = choices.length && text.startsWith(choices[0]) ? text.slice(text.indexOf(';') + 1).trim() : text;
  return {name, type, text, hint, group, otherwise, choices, suggestions: suggestionsIn(text)};
}

function choicesOf(type, text) {
  const alternatives = type.split('|');
  if (alternatives.length > 1 && alternatives.every((word) => /^[a-z0-9][a-z0-9.-]*$/.test(word))) return alternatives;
  // "single, ddp, zero1, ...; several, joined by commas, are compared"
  const listed = text.split(';')[0].split(', ');
  if (type.startsWith('NAME[') && listed.length > 2 && listed.every((word) => /^[a-z0-9-]+$/.test(word))) return listed;
  // "what layers multiply in: bf16, fp16, fp8, nvfp4 (default: bf16)"
  const named = text.split(' (')[0].split(': ').pop().split(', ');
  if (type === 'NAME' && named.length > 1 && named.every((word) => /^[a-z0-9-]+$/.test(word))) return named;
  return [];
}

// "what checkpointed layers recompute: none, full, selective-op, or some of norm, swiglu joined by commas"
function suggestionsIn(text) {
  const after = /: ([^(]+)/.exec(text);
  if (!after) return [];
  const words = after[1].replace(/\bor\b|some of|joined by commas/g, ',').split(/[,\s]+/).filter(Boolean);
  return words.length > 2 && words.every((word) => /^[a-z0-9-]+$/.test(word)) ? words : [];
}

/** {verb: summary} of what `shardwright --help` printed. */
export function verbsOfHelp(help) {
  const verbs = {};
  let inside = false;
  for (const line of help.split('\n')) {
    const heading = /^(\S.*):$/.exec(line);
    if (heading) inside = /^verbs$/i.test(heading[1]);
    const entry = /^ {2}([a-z][a-z-]*) {2,}(\S.*)$/.exec(line);
    if (inside && entry) verbs[entry[1]] = entry[2];
  }
  return verbs;
}
