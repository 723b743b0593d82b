// What charts draw: lines of points over steps.
import type { AlignedData } from 'uplot';
import { short } from '../text';

export interface Line {
  label: string;
  run: 'a' | 'b' | 'd'; // of run A, of run B, of their difference
  points: readonly (readonly [x: number, y: number | null])[];
}

/** Several lines on one ascending axis, as uPlot wants them. */
export function joined(lines: readonly Line[]): AlignedData {
  const xs = [...new Set(lines.flatMap((line) => line.points.map(([x]) => x)))].sort((p, q) => p - q);
  const place = new Map(xs.map((x, i) => [x, i]));
  const columns = lines.map((line) => {
    const ys: (number | null | undefined)[] = new Array(xs.length).fill(undefined);
    for (const [x, y] of line.points) ys[place.get(x) ?? 0] = y !== null && Number.isFinite(y) ? y : null;
    return ys;
  });
  return [xs, ...columns] as AlignedData;
}

/** |A - B| / |A|, or |A - B|, where both have a value; null where they are equal, which no logarithmic axis shows. */
export function differenceOf(a: Line, b: Line, relative = true): Line {
  const others = new Map(b.points);
  const points = a.points.flatMap(([x, p]): [number, number | null][] => {
    const q = others.get(x);
    if (p === null || q === undefined || q === null) return [];
    const part = Math.abs(p - q) / (relative ? Math.abs(p) : 1);
    return [[x, part > 0 && Number.isFinite(part) ? part : null]];
  });
  return { label: '', run: 'd', points };
}

const LOG_RATIO = 1000;

/** Whether a loss needs a logarithmic axis: it is positive, and its blow-up would flatten everything else. */
export function needsLog(lines: readonly Line[]): boolean {
  let low = Infinity;
  let high = 0;
  for (const line of lines) {
    for (const [, y] of line.points) {
      if (y === null || !Number.isFinite(y)) continue;
      if (y <= 0) return false;
      low = Math.min(low, y);
      high = Math.max(high, y);
    }
  }
  return high > LOG_RATIO * low;
}

/** A handful of powers of ten; of less than two decades, 1, 2 and 5 times them. */
export function logTicks(low: number, high: number): number[] {
  const first = Math.floor(Math.log10(low));
  const last = Math.ceil(Math.log10(high));
  const every = Math.max(1, Math.ceil((last - first) / 5));
  const ticks: number[] = [];
  for (let power = first; power <= last; ++power) {
    const times = Math.log10(high / low) < 2 ? [1, 2, 5] : power % every === 0 ? [1] : [];
    ticks.push(...times.map((one) => one * 10 ** power));
  }
  return ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
}

/** Round numbers of bytes: 1, 2 or 5 times a power of ten of KiB, MiB, .... */
export function byteTicks(low: number, high: number): number[] {
  const rough = Math.max(1, (high - low) / 4);
  const unit = 1024 ** Math.floor(Math.log2(rough) / 10);
  const power = 10 ** Math.floor(Math.log10(rough / unit));
  const step = unit * power * ([1, 2, 5, 10].find((times) => times * power * unit >= rough) ?? 10);
  const ticks: number[] = [];
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) ticks.push(at);
  return ticks;
}

/** With as many digits as it takes to tell neighbours apart. */
export function tickTexts(ticks: readonly (number | null)[]): string[] {
  for (let digits = 3; digits < 8; ++digits) {
    const texts = ticks.map((y) => (y === null ? '' : short(y, digits)));
    const seen = texts.filter((text) => text !== '');
    if (new Set(seen).size === seen.length) return texts;
  }
  return ticks.map((y) => (y === null ? '' : String(y)));
}
