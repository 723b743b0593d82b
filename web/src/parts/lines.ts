// What charts draw: lines of points over steps.
import type { AlignedData } from 'uplot';
import { short } from '../text';

export interface Line {
  label: string;
  run: 'a' | 'b';
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

/** With as many digits as it takes to tell neighbours apart. */
export function tickTexts(ticks: readonly (number | null)[]): string[] {
  for (let digits = 3; digits < 8; ++digits) {
    const texts = ticks.map((y) => (y === null ? '' : short(y, digits)));
    const seen = texts.filter((text) => text !== '');
    if (new Set(seen).size === seen.length) return texts;
  }
  return ticks.map((y) => (y === null ? '' : String(y)));
}
