// What is written beside the rows of a heat map: stages, groups and names.
import { count, shown, words } from '../text';
import { toggled, type Fold } from './fold';
import type { Heat } from './model';
import type { Window } from './paint';

interface Props {
  heat: Heat;
  window: Window;
  gutter: number;
  height: number;
  fold: Fold | undefined; // how the rows are grouped; `heat` is its heat
  onFold: ((open: string) => void) | undefined;
}

export function rowText(heat: Heat, row: number): string {
  const at = heat.rows[row];
  if (!at) return '';
  if (at.kind === null && at.tensors > 1) return `${shown(at.activation, 120)}, ${count(at.tensors)} tensors`; // folded
  const path = at.output_path === '' || at.output_path === '0' ? '' : `[${at.output_path}]`;
  const more = at.tensors > 1 ? ` and ${at.tensors - 1} more` : '';
  return `${shown(at.activation, 120)}${shown(path, 40)}${at.kind === null ? '' : ` ${words(at.kind)}`}${at.mode === 'eval' ? ' (eval)' : ''}${more}`;
}

export function bands(heat: Heat, window: Window) {
  const found: { stage: string; row: number; rows: number }[] = [];
  for (let row = window.row; row < window.row + window.rows; ++row) {
    const stage = words(heat.rows[row]?.stage ?? '');
    const last = found.at(-1);
    if (last && last.stage === stage) ++last.rows;
    else found.push({ stage, row, rows: 1 });
  }
  return found;
}

// The kind that goes without saying beside the stage.
const USUAL = ['forward/output', 'backward/grad_output', 'grad/weight_grad', 'weights/weight', 'optimizer/weight', 'optimizer/optimizer_state'];

/** As rowText, as short as the stage beside it allows. */
function nameText(heat: Heat, row: number): string {
  const at = heat.rows[row];
  return at && at.tensors === 1 && USUAL.includes(`${at.stage}/${at.kind}`) ? rowText({ ...heat, rows: [{ ...at, kind: null }] }, 0).trim() : rowText(heat, row);
}

const NAME_HEIGHT = 12; // that a name needs

/** Beside the rows: their stages, groups and names. A group's name folds and unfolds it. */
export function RowNames({ heat, window, gutter, height, fold, onFold }: Props) {
  const each = height / Math.max(1, window.rows);
  const y = (row: number) => (row - window.row) * each;
  const stages = bands(heat, window);
  const grouped = fold !== undefined && fold.groups.length > 0;
  if (each < NAME_HEIGHT && !grouped) {
    return (
      <div class="heat-rows" style={{ height: `${height}px` }} aria-hidden="true">
        {stages.map((band) => (
          <div key={band.row} class="heat-band" style={{ top: `${y(band.row)}px`, height: `${band.rows * each}px` }}>
            {band.rows * each >= 14 ? band.stage : ''}
          </div>
        ))}
      </div>
    );
  }
  const narrow = gutter < 140;
  const labels = [];
  let free = 0; // below the last label
  for (let row = window.row; row < window.row + window.rows; ++row) {
    const entry = fold?.entries[row];
    const group = entry && fold?.groups[entry.group];
    const isFolded = entry !== undefined && entry.rows > 1;
    const begins = entry !== undefined && group !== undefined && group.rows > 1 && (entry.first === group.first || row === window.row);
    if (y(row) < free - 0.5 || (each < NAME_HEIGHT && !begins)) continue;
    free = y(row) + NAME_HEIGHT;
    const full = nameText(heat, row);
    const inside = group && group.rows > 1 && !group.strip && full.startsWith(`${group.name}.`) ? full.slice(group.name.length + 1) : full;
    const name = narrow ? (heat.rows[row]?.activation ?? inside) : inside;
    labels.push(
      <div key={row} class={isFolded ? 'heat-name folded' : 'heat-name'} style={{ top: `${y(row)}px`, height: `${Math.max(each, NAME_HEIGHT)}px` }}>
        {begins && onFold ? (
          <button type="button" class="fold" aria-expanded={!isFolded} title={`${isFolded ? 'Unfold' : 'Fold'} ${shown(group.name, 120)}`} onClick={() => onFold(toggled(fold!, entry.group))}>
            <span aria-hidden="true">{isFolded ? '▸' : '▾'} </span>
            <bdi>{shown(group.name, 120)}</bdi>
          </button>
        ) : null}
        {isFolded ? (
          <span class="soft">{narrow ? '' : count(heat.rows[row]?.tensors ?? 0)}</span>
        ) : each >= NAME_HEIGHT && !(narrow && begins) ? (
          <span class="row-name">
            <bdi dir="ltr">{name}</bdi>
          </span>
        ) : null}
      </div>,
    );
  }
  return (
    <div class="heat-rows" style={{ height: `${height}px` }}>
      {stages.map((band) =>
        band.stage !== '' && band.rows * each >= 7 * band.stage.length + 6 ? (
          <div key={band.row} class="heat-stage" style={{ top: `${y(band.row)}px`, height: `${band.rows * each}px` }}>
            {band.stage}
          </div>
        ) : null,
      )}
      {labels}
    </div>
  );
}
