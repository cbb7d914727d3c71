// SPDX-License-Identifier: Apache-2.0
// "Find the best plan": `tune` in its own worker, with progress and a way to stop, and what it found: the best, the
// next ones, time against memory, why, and the ways out when nothing fits.
import {OF_THE_MACHINE, catalogue, flagOf, flagsOfPlan, wordsFor} from './catalogue.js';
import {Cancelled, documentOf, sentenceOf} from './engine.js';
import {gib, grouped, percent, seconds, signedPercent, words} from './format.js';
import {scatter} from './scatter.js';
import {setFlag, setFlags, state} from './store.js';
import {remainingInputs} from './controls.js';
import {fold, html, table} from './svg.js';

// What a search takes as given; other flags of a plan only where the user keeps them.
const HELD_BY_TUNE = [...OF_THE_MACHINE, 'model', 'stack', 'gpus', 'seq-len'];
const NOT_OFFERED = ['json', 'out', 'trace', 'plan', 'threads', 'color', 'version'];

/** A line of what a long search does, with a way to stop it. */
export class Progress {
  constructor(engine) {
    this.line = html('output', {class: 'progress-line'});
    this.element = html('div', {class: 'progress', hidden: true, role: 'status'}, html('progress', {'aria-label': 'searching'}),
      this.line, html('button', {type: 'button', onclick: () => engine.cancel()}, 'Cancel'));
  }

  /** Runs `work(onProgress)`; null when it was cancelled. */
  async during(work) {
    const begin = performance.now();
    let said = 'begins';
    const tell = () => (this.line.textContent = `${((performance.now() - begin) / 1000).toFixed(0)} s · ${said}`);
    const clock = setInterval(tell, 500);
    this.element.hidden = false;
    tell();
    try {
      return await work((line) => {
        said = line;
        const share = /(\d+) %/.exec(line);
        const bar = this.element.querySelector('progress');
        if (share) bar.value = Number(share[1]) / 100;
        tell();
      });
    } catch (error) {
      if (error instanceof Cancelled) return null;
      throw error;
    } finally {
      clearInterval(clock);
      this.element.hidden = true;
      this.element.querySelector('progress').removeAttribute('value');
    }
  }
}

export class Search {
  constructor(engine) {
    this.engine = engine;
    this.progress = new Progress(engine);
    this.lent = [];
    this.found = html('div', {});
    this.trouble = html('p', {class: 'trouble', role: 'alert', hidden: true});
    this.go = html('button', {type: 'button', class: 'main', id: 'find-best', onclick: () => this.start()}, 'Find the best plan');
    const knobs = catalogue.flags.predict.map((flag) => flag.name);  // stand among the plan's inputs
    this.options = remainingInputs('tune', [...knobs, ...NOT_OFFERED], false);
    this.element = html('section', {id: 'search'}, html('h2', {}, 'The best plan for this model and cluster'),
      html('p', {class: 'tools'}, this.go), fold('What the search may do', this.options.element), this.progress.element, this.trouble, this.found);
  }

  refresh() {
    this.options.refresh();
  }

  async start() {
    const asked = wordsFor('tune', state.flags,
      (name) => HELD_BY_TUNE.includes(name) || state.held.has(name) || !flagOf('predict', name));
    this.trouble.hidden = true;
    this.go.disabled = true;
    try {
      const answer = await this.progress.during((onProgress) => this.engine.search([...asked, '--json'], {onProgress}));
      if (answer) this.show(documentOf(answer), answer);
    } catch (error) {
      this.trouble.textContent = error.message;
      this.trouble.hidden = false;
    }
    this.go.disabled = false;
  }

  show(tuning, answer) {
    this.last = {tuning, text: answer.stdout};
    if (!tuning.best) {
      this.found.replaceChildren(html('p', {class: 'trouble', role: 'alert'}, sentenceOf(answer)), ...this.waysOut(tuning));
      return;
    }
    this.adopt(tuning.best.plan);
    this.found.replaceChildren(html('p', {class: 'answer'}, tuning.lead),
      html('p', {class: 'note'}, `${grouped(tuning.considered)} plans considered, ${grouped(tuning.simulated)} simulated, in ${seconds(tuning.seconds, 3)}. The best is on show now.`),
      html('h3', {}, 'Why this one'), html('ul', {}, tuning.why.slice(1).map((sentence) => html('li', {}, sentence))),
      ...this.frameworks(tuning), html('h3', {}, 'The next best'), this.topTable(tuning.top), ...this.front(tuning));
  }

  /** `set`: values that the plan was predicted with beside the user's own, until another plan is taken. */
  adopt(plan, set = []) {
    const own = (state.flags.get('set') || '').split(';').filter((one) => one && !this.lent.includes(one));
    this.lent = set;
    setFlags([['set', [...own, ...set].join(';')], ...flagsOfPlan(plan)]);
  }

  button(plan, set) {
    return html('button', {type: 'button', class: 'small', onclick: () => {
      this.adopt(plan, set);
      document.getElementById('headline').scrollIntoView();
    }}, 'show');
  }

  topTable(top) {
    const best = top[0].prediction.tokens_per_s;
    return table(['plan', 'a step', 'to the best', 'memory', 'MFU', ''], top.map(({plan, prediction}) => [
      prediction.inputs.plan_words, seconds(prediction.iteration_time_s), signedPercent(best / prediction.tokens_per_s - 1),
      gib(prediction.memory.total_bytes), percent(prediction.mfu, 1), this.button(plan)]), 'The best plans');
  }

  /** What each framework can be told at best. */
  frameworks({frameworks}) {
    const told = (frameworks || []).filter((one) => one.plan);
    if (!told.length) return [];
    return [html('h3', {}, 'In your framework'), table(['framework', 'its best plan', 'tokens a second', 'to the best', 'memory', ''], told.map((one) => [
      one.framework, one.plan_words, grouped(one.tokens_per_s), signedPercent(one.cost), gib(one.total_bytes), this.button(one.plan, one.set)]),
    'The best plan that each framework can be told')];
  }

  front(tuning) {
    if (!tuning.pareto || tuning.pareto.length < 3) return [];
    const points = tuning.pareto.filter((one) => one.headroom_bytes > 0).map(({plan, prediction}) => ({
      x: prediction.memory.total_bytes / 2 ** 30, y: prediction.tokens_per_s, front: true,
      kind: JSON.stringify(plan) === JSON.stringify(tuning.best.plan) ? 'chosen' : 'meets', name: 'best',
      title: `${prediction.inputs.plan_words}: ${grouped(prediction.tokens_per_s)} tokens/s in ${gib(prediction.memory.total_bytes)}`,
      onpick: () => this.adopt(plan)}));
    if (points.length < 3) return [];
    return [html('h3', {}, 'Speed against memory: nothing is both faster and smaller'), scatter({points, xName: 'GiB of a GPU', yName: 'tokens a second',
      xText: (mark) => String(mark), yText: grouped, label: `Speed against memory of ${points.length} plans.`})];
  }

  /** What would make it fit: each with the flags that say so. */
  waysOut(tuning) {
    const ways = tuning.ways && tuning.ways.length ? tuning.ways : tuning.nearest_feasible ? [tuning.nearest_feasible] : [];
    return [html('ul', {}, tuning.why.map((sentence) => html('li', {}, sentence))), html('h3', {}, ways.length ? 'Ways out' : 'No way out was found'),
      html('ul', {class: 'ways'}, ways.map((way) => html('li', {}, html('b', {}, way.change), ` then ${way.prediction.inputs.plan_words}: `,
        `${seconds(way.prediction.iteration_time_s)} a step, ${gib(way.prediction.memory.total_bytes)}. `,
        html('button', {type: 'button', class: 'small', onclick: () => this.take(way)}, 'Take it'))))];
  }

  take(way) {
    const pairs = [...(way.flags || '').matchAll(/--([a-z-]+)(?: ([^-\s]\S*))?/g)].map(([, name, value]) => [name, value ?? 'on']);
    for (const [name, value] of pairs) setFlag(name, value, true);
    this.adopt(way.plan);
    this.found.replaceChildren(html('p', {class: 'note'}, `Taken: ${words(way.change)}.`));
  }
}
