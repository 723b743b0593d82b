// The rows of a map by module: those of one module that follow each other are a group, which is shown as one row until it is unfolded.
import type { HeatMapRow } from '../api/types';
import { words } from '../text';
import { NO_DATA } from './levels';
import { levelAt, weightOf, type Heat } from './model';
import type { Window } from './paint';

export interface Group {
  name: string; // of the module; of a strip, the stage
  stage: string;
  first: number; // row
  rows: number;
  strip: boolean; // a stage that has one column only, such as the weights as loaded
}

/** A row as it is drawn. */
export interface Entry {
  group: number;
  first: number; // row of the whole map
  rows: number; // more than 1: folded
}

export interface Fold {
  heat: Heat; // as it is drawn
  groups: readonly Group[];
  entries: readonly Entry[];
  open: readonly boolean[]; // by group
}

const OPEN_ROWS_MAX = 40; // that have names side by side

/** "blocks.1" of "blocks.1.ln2.weight": up to the first number, else the first part. */
export function moduleOf(activation: string): string {
  const parts = activation.split('.');
  const number = parts.findIndex((part) => /^\d+$/.test(part));
  return parts.slice(0, number > 0 ? number + 1 : 1).join('.');
}

function hasOneColumn(heat: Heat, first: number, rows: number): boolean {
  let only = -1;
  for (let row = first; row < first + rows; ++row) {
    for (let column = 0; column < heat.columns; ++column) {
      if (heat.cells[row * heat.columns + column] === NO_DATA || column === only) continue;
      if (only >= 0) return false;
      only = column;
    }
  }
  return true;
}

export function groupsOf(heat: Heat): Group[] {
  const groups: Group[] = [];
  for (let first = 0; first < heat.rows.length; ) {
    const stage = heat.rows[first]!.stage ?? '';
    let end = first;
    while (end < heat.rows.length && (heat.rows[end]!.stage ?? '') === stage) ++end;
    if (heat.columns > 2 && end - first > 1 && hasOneColumn(heat, first, end - first)) {
      groups.push({ name: words(stage), stage, first, rows: end - first, strip: true });
    } else {
      for (let row = first; row < end; ++row) {
        const name = moduleOf(heat.rows[row]!.activation);
        const last = groups.at(-1);
        if (last && last.first >= first && last.name === name && last.first + last.rows === row) ++last.rows;
        else groups.push({ name, stage, first: row, rows: 1, strip: false });
      }
    }
    first = end;
  }
  return groups;
}

/** Which groups are unfolded: all of a small map, of a large one that of the origin; or as `open` says: "all", "none", or their numbers. */
function opened(heat: Heat, groups: readonly Group[], open: string): boolean[] {
  if (open === '') {
    const few = heat.rows.length <= OPEN_ROWS_MAX;
    return groups.map(({ first, rows, strip }) => (few && !strip) || rows === 1 || (heat.originRow !== null && heat.originRow >= first && heat.originRow < first + rows));
  }
  const listed = new Set(open.split(',').map(Number));
  return groups.map(({ rows }, i) => open === 'all' || rows === 1 || (open !== 'none' && listed.has(i)));
}

/** `open` after a click on a group. */
export function toggled({ groups, open }: Fold, group: number): string {
  const listed = groups.flatMap((one, i) => (one.rows > 1 && (i === group ? !open[i] : open[i]) ? [i] : []));
  return listed.length === 0 ? 'none' : listed.join(',');
}

/** A map that is held in tiles has too many rows to look at each: it stays as it is. */
export function folded(heat: Heat, open: string): Fold {
  if (heat.tiles) return { heat, groups: [], entries: [], open: [] };
  const groups = groupsOf(heat);
  const isOpen = opened(heat, groups, open);
  const entries = groups.flatMap(({ first, rows }, group): Entry[] => (isOpen[group] ? Array.from({ length: rows }, (_, i) => ({ group, first: first + i, rows: 1 })) : [{ group, first, rows }]));
  if (entries.length === heat.rows.length) return { heat, groups, entries, open: isOpen };
  const cells = new Uint8Array(entries.length * heat.columns);
  const rows = entries.map(({ group, first, rows: count }, at): HeatMapRow => {
    for (let row = first; row < first + count; ++row) {
      for (let column = 0; column < heat.columns; ++column) {
        const level = heat.cells[row * heat.columns + column]!;
        if (weightOf(heat, level) > weightOf(heat, cells[at * heat.columns + column]!)) cells[at * heat.columns + column] = level;
      }
    }
    const row = heat.rows[first]!;
    return count === 1 ? row : { ...row, activation: groups[group]!.name, kind: null, output_path: '', tensors: heat.rows.slice(first, first + count).reduce((sum, one) => sum + one.tensors, 0) };
  });
  const originRow = heat.originRow === null ? null : entryOf(entries, heat.originRow);
  return { heat: { ...heat, rows, cells, originRow }, groups, entries, open: isOpen };
}

/** The drawn row that a row of the whole map is in. */
export function entryOf(entries: readonly Entry[], row: number): number {
  if (entries.length === 0) return row;
  let low = 0;
  let high = entries.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (entries[middle]!.first <= row) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** The row of the whole map that a drawn cell is about: of a folded group the one that is shown. */
export function rowBehind(whole: Heat, fold: Fold, row: number, column: number): number {
  const entry = fold.entries[row];
  if (!entry) return row;
  let most = entry.first;
  for (let one = entry.first; one < entry.first + entry.rows; ++one) if (weightOf(whole, levelAt(whole, one, column)) > weightOf(whole, levelAt(whole, most, column))) most = one;
  return most;
}

/** A window of drawn rows, in rows of the whole map and back: links name the latter, whatever is folded. */
export function windowBehind({ entries }: Fold, window: Window): Window {
  const begin = entries[window.row];
  const end = entries[window.row + window.rows - 1];
  return begin && end ? { ...window, row: begin.first, rows: end.first + end.rows - begin.first } : window;
}
export function windowDrawn({ entries }: Fold, window: Window): Window {
  if (entries.length === 0) return window;
  const row = entryOf(entries, window.row);
  return { ...window, row, rows: entryOf(entries, window.row + window.rows - 1) - row + 1 };
}
