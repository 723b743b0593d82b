// A heat map as the page holds it: the cells of the rows that are chosen, and where steps lie.
import { bytesOf } from '../api/client';
import type { HeatMap, HeatMapRow } from '../api/types';
import { DIVERGED_MIN, NO_DATA } from './levels';
import type { Window } from './paint';
import type { Held } from './tile';

/** What lies along the axes of a map. */
export interface Axes {
  column: string; // "step"
  columns: string; // "columns of steps"
  rows: string; // "tensors"
}
const OF_STEPS: Axes = { column: 'step', columns: 'columns of steps', rows: 'tensors' };
export const axesOf = (heat: Heat) => heat.axes ?? OF_STEPS;

export interface Heat {
  axes?: Axes; // absent: tensors over steps
  rows: readonly HeatMapRow[];
  columns: number;
  first: readonly number[];
  last: readonly number[];
  cells: Uint8Array; // rows x columns
  originRow: number | null;
  originColumn: number | null;
  originSpan?: boolean; // its whole row is outlined, too
  centre?: number; // of a map whose cells go up and down from it
  tiles?: Tiles; // of a map that is too large to be held whole; `cells` is empty then, and rows and steps become exact as tiles arrive
}

export interface Tiles {
  readonly whole: Held;
  readonly tiles: ReadonlyMap<string, Held>;
  levelAt(row: number, column: number): number;
  /** Asks for what a window of so many pixels shows. */
  look(window: Window, width: number, height: number): void;
  /** What arrives from now on; ends with the returned function. */
  listen(onTile: (tile: Held) => void): () => void;
}

export function heatOf(map: HeatMap, stage = '', kind = ''): Heat {
  const all = bytesOf(map.cells);
  const columns = map.first_steps.length;
  const chosen: number[] = [];
  map.rows.forEach((row, i) => {
    if ((stage === '' || row.stage === stage) && (kind === '' || row.kind === kind)) chosen.push(i);
  });
  const cells = chosen.length === map.rows.length ? all : new Uint8Array(chosen.length * columns);
  if (cells !== all) chosen.forEach((row, i) => cells.set(all.subarray(row * columns, (row + 1) * columns), i * columns));
  const originRow = map.origin_row === null ? -1 : chosen.indexOf(map.origin_row);
  return {
    rows: chosen.map((i) => map.rows[i]!),
    columns,
    first: map.first_steps,
    last: map.last_steps,
    cells,
    originRow: originRow < 0 ? null : originRow,
    originColumn: map.origin_column,
  };
}

export function levelAt(heat: Heat, row: number, column: number): number {
  return heat.tiles ? heat.tiles.levelAt(row, column) : (heat.cells[row * heat.columns + column] ?? NO_DATA);
}

/** How much a cell has to say: of several that are shown as one, the one with most counts. */
export function weightOf(heat: Heat, level: number): number {
  if (heat.centre === undefined || level === 255) return level;
  return level < 2 ? level : 2 + Math.abs(level - heat.centre);
}

/** The column that a step is in, or would be. */
export function columnOf(heat: Heat, step: number): number {
  let low = 0;
  let high = heat.columns - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((heat.last[middle] ?? 0) < step) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Where a step lies on the axis of columns: the middle of its share of its column. */
export function placeOf(heat: Heat, step: number): number {
  const column = columnOf(heat, step);
  const first = heat.first[column] ?? step;
  const last = heat.last[column] ?? step;
  const share = (Math.min(last, Math.max(first, step)) - first + 0.5) / (last - first + 1);
  return column + share;
}

export function stepsText(heat: Heat, column: number): string {
  const first = heat.first[column];
  const last = heat.last[column];
  if (first === undefined || last === undefined) return '';
  const { column: one } = axesOf(heat);
  return first === last ? `${one} ${first}` : `${one}s ${first} to ${last}`;
}

export function whole(heat: Heat): Window {
  return { row: 0, rows: heat.rows.length, column: 0, columns: heat.columns };
}

/** Within the map, and not smaller than a few cells. */
export function clamped(heat: Heat, window: Window): Window {
  const rows = Math.min(heat.rows.length, Math.max(Math.min(4, heat.rows.length), Math.round(window.rows)));
  const columns = Math.min(heat.columns, Math.max(Math.min(4, heat.columns), Math.round(window.columns)));
  return {
    rows,
    columns,
    row: Math.min(heat.rows.length - rows, Math.max(0, Math.round(window.row))),
    column: Math.min(heat.columns - columns, Math.max(0, Math.round(window.column))),
  };
}

/** Around a cell that stays where it is on the screen; factor < 1 looks closer. */
export function zoomed(heat: Heat, window: Window, factor: number, row: number, column: number): Window {
  const rows = window.rows * factor;
  const columns = window.columns * factor;
  return clamped(heat, {
    rows,
    columns,
    row: row - ((row - window.row) / window.rows) * rows,
    column: column - ((column - window.column) / window.columns) * columns,
  });
}

/** "10-40:0-99" of steps and rows, for the URL. */
export function windowText(heat: Heat, window: Window): string {
  if (window.rows === heat.rows.length && window.columns === heat.columns) return '';
  return `${heat.first[window.column]}-${heat.last[window.column + window.columns - 1]}:${window.row}-${window.row + window.rows - 1}`;
}

export function parseWindow(heat: Heat, text: string): Window {
  const match = /^(\d+)-(\d+):(\d+)-(\d+)$/.exec(text);
  if (!match) return whole(heat);
  const [first, last, top, bottom] = match.slice(1).map(Number) as [number, number, number, number];
  const column = columnOf(heat, first);
  return clamped(heat, { column, columns: columnOf(heat, last) - column + 1, row: top, rows: bottom - top + 1 });
}

export interface RowSummary {
  index: number;
  row: HeatMapRow;
  worst: number;
  diverged: number; // columns
  first: number | null; // column of the first divergence
}

/** The table behind the picture. */
export function summaries(heat: Heat): RowSummary[] {
  return heat.rows.map((row, index) => {
    let worst = NO_DATA;
    let diverged = 0;
    let first: number | null = null;
    for (let column = 0; column < heat.columns; ++column) {
      const level = levelAt(heat, index, column);
      worst = Math.max(worst, level);
      if (level >= DIVERGED_MIN) {
        ++diverged;
        first ??= column;
      }
    }
    return { index, row, worst, diverged, first };
  });
}
