// SPDX-License-Identifier: Apache-2.0
// "Find the best plan": `tune` in its own worker, with progress and a way to stop; what it finds becomes the plan on show.
import {OF_THE_MACHINE, catalogue, flagOf, flagsOfPlan, wordsFor} from './catalogue.js';
import {Cancelled, documentOf, sentenceOf} from './engine.js';
import {words} from './format.js';
import {setFlag, setFlags, state} from './store.js';
import {remainingInputs} from './controls.js';
import {fold, html} from './svg.js';
import {tuningView, waysOut} from './tuning_answers.js';

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
      this.found.replaceChildren(html('p', {class: 'trouble', role: 'alert'}, sentenceOf(answer)), ...waysOut(tuning, {take: (way) => this.takeWay(way)}));
      return;
    }
    this.adopt(tuning.best.plan);
    this.found.replaceChildren(...tuningView(tuning, {note: 'The best is on show now.', take: (plan, set) => {
      this.adopt(plan, set);
      document.getElementById('headline').scrollIntoView();
    }}));
  }

  /** `set`: values that the plan was predicted with beside the user's own, until another plan is taken. */
  adopt(plan, set = []) {
    const own = (state.flags.get('set') || '').split(';').filter((one) => one && !this.lent.includes(one));
    this.lent = set;
    setFlags([['set', [...own, ...set].join(';')], ...flagsOfPlan(plan)]);
  }

  takeWay(way) {
    const pairs = [...(way.flags || '').matchAll(/--([a-z-]+)(?: ([^-\s]\S*))?/g)].map(([, name, value]) => [name, value ?? 'on']);
    for (const [name, value] of pairs) setFlag(name, value, true);
    this.adopt(way.plan);
    this.found.replaceChildren(html('p', {class: 'note'}, `Taken: ${words(way.change)}.`));
  }
}
