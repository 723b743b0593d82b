// Sizes of one statistic of a run: 512 levels a decade as the API sends them, and the bytes that are painted.
import type { StatMap } from '../api/types';
import { short } from '../text';
import { between, rgb, type Rgb } from './levels';
import type { Heat } from './model';

const ZERO = 1;
const LEVEL_MIN = 2;
const LEVEL_ONE = 32768;
export const NOT_FINITE = 65535;

/** A map with the sizes behind its colours. */
export interface StatHeat extends Heat {
  sizes: Uint16Array; // rows x columns, as the API sends them
  low: number; // levels of the ends of the scale
  high: number;
  medians?: Uint16Array; // of the rows' sizes, if the cells are relative to them
  span?: number; // levels from the median to the ends of that scale
}

export function sizesOf(hex: string): Uint16Array {
  const sizes = new Uint16Array(hex.length >> 2);
  const digit = (code: number) => (code < 58 ? code - 48 : code - 87);
  for (let i = 0; i < sizes.length; ++i) {
    let level = 0;
    for (let j = 4 * i; j < 4 * i + 4; ++j) level = (level << 4) | digit(hex.charCodeAt(j));
    sizes[i] = level;
  }
  return sizes;
}

/** null: no data. */
export function sizeOf(level: number): number | null {
  if (level === 0) return null;
  if (level === ZERO) return 0;
  return level === NOT_FINITE ? NaN : 10 ** ((level - LEVEL_ONE) / 512);
}

export function sizeText(level: number): string {
  const size = sizeOf(level);
  if (size === null) return 'no data';
  return Number.isNaN(size) ? 'NaN or infinite' : short(size);
}

/** 0 no data, 1 zero, 2 to 254 between the ends, 255 not finite: greater is greater. */
export function byteOf(level: number, low: number, high: number): number {
  if (level <= ZERO) return level;
  if (level === NOT_FINITE) return 255;
  const place = high === low ? 0.5 : (level - low) / (high - low);
  return 2 + Math.round(252 * Math.min(1, Math.max(0, place)));
}

export const CENTRE = 128; // of a relative map
const SPAN_MIN = 154; // a factor of 2
const SPAN_MAX = 1536; // a factor of 1,000

function medianOf(levels: Uint16Array): number {
  const there = levels.filter((level) => level >= LEVEL_MIN && level !== NOT_FINITE).sort();
  return there[there.length >> 1] ?? 0;
}

/** As byteOf, but of the distance from the row's median: 128 is the median. */
function relativeByte(level: number, median: number, span: number): number {
  if (level <= ZERO) return level;
  if (level === NOT_FINITE) return 255;
  return CENTRE + Math.round(126 * Math.min(1, Math.max(-1, (level - median) / span)));
}

/** The same map, each tensor relative to its own median: a change shows, and a constant does not. */
export function relativeTo(heat: StatHeat): StatHeat {
  const { columns, sizes } = heat;
  const medians = Uint16Array.from(heat.rows, (_, row) => medianOf(sizes.slice(row * columns, (row + 1) * columns)));
  let span = SPAN_MIN;
  sizes.forEach((level, i) => {
    if (level >= LEVEL_MIN && level !== NOT_FINITE) span = Math.max(span, Math.abs(level - medians[Math.floor(i / columns)]!));
  });
  span = Math.min(SPAN_MAX, span);
  return { ...heat, medians, span, centre: CENTRE, cells: Uint8Array.from(sizes, (level, i) => relativeByte(level, medians[Math.floor(i / columns)]!, span)) };
}

/** "1.3 times its median"; empty: there is none. */
export function timesText(level: number, median: number): string {
  if (level < LEVEL_MIN || level === NOT_FINITE || median < LEVEL_MIN) return '';
  return level === median ? 'its median' : `${short(10 ** ((level - median) / 512), 2)} times its median`;
}

export function statHeatOf(map: StatMap, sizes: Uint16Array, stage = '', kind = ''): StatHeat {
  const columns = map.first_steps.length;
  const chosen: number[] = [];
  map.rows.forEach((row, i) => {
    if ((stage === '' || row.stage === stage) && (kind === '' || row.kind === kind)) chosen.push(i);
  });
  const kept = new Uint16Array(chosen.length * columns);
  chosen.forEach((row, i) => kept.set(sizes.subarray(row * columns, (row + 1) * columns), i * columns));
  let low = NOT_FINITE;
  let high = 0;
  for (const level of kept) {
    if (level < LEVEL_MIN || level === NOT_FINITE) continue;
    low = Math.min(low, level);
    high = Math.max(high, level);
  }
  return {
    rows: chosen.map((i) => map.rows[i]!),
    columns,
    first: map.first_steps,
    last: map.last_steps,
    cells: Uint8Array.from(kept, (level) => byteOf(level, low, high)),
    originRow: null,
    originColumn: null,
    sizes: kept,
    low: Math.min(low, high),
    high,
  };
}

const keyOf = (row: StatMap['rows'][number]) => [row.stage, row.mode, row.kind, row.activation, row.output_path].join('\0');
const isWhole = (map: StatMap) => map.tensors === map.rows.length && map.steps === map.first_steps.length;

/**
 * A map and a newer one of its last steps as one: what both have comes from the newer. null: they cannot be joined, because one of them
 * has merged steps or tensors, or the newer one begins before the older one does.
 */
export function joinedMaps(old: StatMap, more: StatMap): { map: StatMap; sizes: Uint16Array } | null {
  const from = more.first_steps[0];
  if (from === undefined) return { map: old, sizes: sizesOf(old.cells) };
  if (!isWhole(old) || !isWhole(more)) return null;
  const kept = old.first_steps.findIndex((step) => step >= from);
  const keep = kept < 0 ? old.first_steps.length : kept;
  const rows = [...old.rows];
  const place = new Map(rows.map((row, i) => [keyOf(row), i]));
  const places = more.rows.map((row) => {
    const key = keyOf(row);
    if (!place.has(key)) place.set(key, rows.push(row) - 1);
    return place.get(key)!;
  });
  const columns = keep + more.first_steps.length;
  const sizes = new Uint16Array(rows.length * columns);
  const before = sizesOf(old.cells);
  const after = sizesOf(more.cells);
  for (let row = 0; row < old.rows.length; ++row) sizes.set(before.subarray(row * old.first_steps.length, row * old.first_steps.length + keep), row * columns);
  places.forEach((row, i) => sizes.set(after.subarray(i * more.first_steps.length, (i + 1) * more.first_steps.length), row * columns + keep));
  const first_steps = [...old.first_steps.slice(0, keep), ...more.first_steps];
  return { map: { ...old, rows, first_steps, last_steps: first_steps, tensors: rows.length, steps: columns, ranks: more.ranks }, sizes };
}

// One scale from the page's background to far from it; what is not finite has a colour that is not on it.
const SCHEMES = {
  light: { noData: '#ffffff', zero: '#eceff1', scale: ['#dcebf0', '#9fcfd6', '#5aa5bd', '#33739f', '#2b4076', '#1d1544'], broken: '#d9480f' },
  dark: { noData: '#14181c', zero: '#22292f', scale: ['#1f3039', '#23525f', '#2c7c86', '#4da99a', '#97d29b', '#f1f6bf'], broken: '#ff8a3c' },
} as const;

const RELATIVE = {
  light: ['#0b5a63', '#4f9aa0', '#b5d6d8', '#f3f5f6', '#d9c6e8', '#9a6cc0', '#4a1f73'],
  dark: ['#8fe0dc', '#3f9a9c', '#24494d', '#20262b', '#44315a', '#9366c2', '#dcbff5'],
} as const;

/** From the least, below the median, to the greatest. */
export function relativeColours(theme: 'light' | 'dark'): Rgb[] {
  const stops = RELATIVE[theme];
  return statColours(theme).map((colour, byte) => (byte > 1 && byte < 255 ? between(stops, (byte - 2) / 252) : colour));
}

export function statColours(theme: 'light' | 'dark'): Rgb[] {
  const scheme = SCHEMES[theme];
  return Array.from({ length: 256 }, (_, byte): Rgb => {
    if (byte === 0) return rgb(scheme.noData);
    if (byte === 1) return rgb(scheme.zero);
    return byte === 255 ? rgb(scheme.broken) : between(scheme.scale, (byte - 2) / 252);
  });
}
