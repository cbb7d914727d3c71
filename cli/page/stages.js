// SPDX-License-Identifier: Apache-2.0
// Of a model-parallel plan: the stages of its pipeline, their time and memory side by side, what the step loses to
// communication of each group, and why. All of it as the program says it; new parts and groups appear by themselves.
import {gatherParts} from './bars.js';
import {bytes, gib, percent, seconds, words} from './format.js';
import {fold, html, legend, picture, room, svg, table, text} from './svg.js';

const ROW = 20;
const LABEL = 58;
const STAGE_CLASSES = {exposed_communication: 'exposed', bubble: 'bubble'};
const heldBy = ({layers}) => (Array.isArray(layers) ? layers.join(' to ') : String(layers));

/** One row a stage to one scale: `partsOf(stage)` is [[class, what, value, shown]]. */
function stageRows(stages, partsOf, most, label, limit) {
  const width = room();
  const scale = (value) => (value / most) * (width - LABEL);
  const marks = stages.map((stage, row) => {
    const y = row * (ROW + 4) + 16;
    let x = LABEL;
    const bars = partsOf(stage).map(([name, what, value, shown]) => {
      const bar = svg('rect', {x, y, width: Math.max(scale(value) - 0.7, 0.4), height: ROW, class: `f-${name}`},
        svg('title', {}, `stage ${stage.stage}, ${what}: ${shown}`));
      x += scale(value);
      return bar;
    });
    return svg('g', {}, text(0, y + 14, `stage ${stage.stage}`, {class: 'soft'}), ...bars);
  });
  const height = stages.length * (ROW + 4) + 20;
  if (limit) {
    const x = LABEL + scale(limit.value);
    marks.push(svg('line', {x1: x, x2: x, y1: 12, y2: height - 4, class: 'limit'}), text(x - 4, 11, limit.name, {class: 'soft', 'text-anchor': 'end'}));
  }
  return picture(width, height, label, ...marks);
}

const partsOfStage = (stage) => gatherParts(stage.time_s, STAGE_CLASSES).map(([name, what, value]) => [name, what, value, seconds(value)]);

function stageTimes(stages, pipeline) {
  const sums = stages.map((stage) => partsOfStage(stage).reduce((sum, part) => sum + part[2], 0));
  const used = new Map(stages.flatMap(partsOfStage).map(([name, what]) => [what, name]));
  const bubble = pipeline ? `${percent(pipeline.bubble, 1)} of the step are bubble, with ${pipeline.micro_batches} micro-batches.` : '';
  const slowest = stages[sums.indexOf(Math.max(...sums))];
  return [stageRows(stages, partsOfStage, Math.max(...sums) * 1.01, `Time of ${stages.length} stages. ${bubble} Stage ${slowest.stage} takes longest.`),
    legend([...used].map(([what, name]) => [name, what])), bubble ? html('p', {class: 'note'}, bubble) : null];
}

function stageMemory(stages, memory) {
  const usable = memory.usable_bytes - memory.runtime_bytes;
  const parts = (stage) => [['parameters', 'allocated', stage.peak_allocated_bytes, gib(stage.peak_allocated_bytes)],
    ['cached', 'kept by the allocator', Math.max(0, stage.peak_reserved_bytes - stage.peak_allocated_bytes), gib(stage.peak_reserved_bytes)]];
  const most = Math.max(usable, ...stages.map((stage) => stage.peak_reserved_bytes)) * 1.04;
  const full = stages.filter((stage) => !stage.fits).map((stage) => stage.stage);
  const label = `Memory of ${stages.length} stages: ${full.length ? `${full.join(', ')} do not fit` : 'all fit'}.`;
  return [stageRows(stages, parts, most, label, {value: usable, name: `${gib(usable)} for the plan`}),
    legend([['parameters', 'allocated'], ['cached', 'kept by the allocator']])];
}

/** What is in no single GPU: pictures and a table of the stages. Nothing for a model that is whole. */
export function stagesView({stages, pipeline, memory}) {
  if (!stages || stages.length < 2) return [];
  const parts = [...new Set(stages.flatMap((stage) => Object.keys(stage.time_s)))];
  return [html('h3', {}, 'Time of each stage'), ...stageTimes(stages, pipeline).filter(Boolean),
    html('h3', {}, 'Memory of each stage'), ...stageMemory(stages, memory),
    fold('The stages as a table', table(['stage', 'layers', ...parts.map(words), 'allocated', 'reserved', 'fits'],
      stages.map((stage) => [String(stage.stage), heldBy(stage), ...parts.map((part) => seconds(stage.time_s[part] || 0)),
        gib(stage.peak_allocated_bytes), gib(stage.peak_reserved_bytes), stage.fits ? 'yes' : 'no']), 'The stages of the pipeline'))];
}

/** Groups that a model-parallel plan's ranks talk in: what each GPU sends and how long it waits. */
export function groupsView({communication_bytes: sent, exposed_communication_by_group: waits}) {
  const groups = Object.keys(waits).filter((group) => sent[group] > 0 || waits[group] > 0);
  if (groups.length < 2) return [];
  return [html('h3', {}, 'Communication by group'), table(['group', 'a GPU sends', 'it waits for it'],
    groups.map((group) => [group, bytes(sent[group] || 0), seconds(waits[group])]), 'Communication by group')];
}

/** What the step loses, the most first, to one scale. */
export function lossesList(losses) {
  const most = Math.max(...losses.map((loss) => loss.seconds), 1e-9);
  const color = ({what}) => ['exposed', 'bubble', 'host', 'optimizer'].find((name) => what.startsWith(name)) || 'copy';
  return html('ol', {class: 'changes'}, losses.map((loss) => html('li', {}, html('span', {}, loss.what),
    html('i', {class: `b-${color(loss)}`, style: `--share:${loss.seconds / most}`, 'aria-hidden': 'true'}), html('b', {}, `${seconds(loss.seconds, 3)}`))));
}
