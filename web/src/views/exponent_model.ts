// Histograms of exponents against the ranges of narrower formats (docs/exponents.md has the limits).
import type { ExponentRow } from '../api/types';

export interface Format {
  key: string; // of the API
  name: string;
  subnormal: number; // the exponents from which a value is not 0, is exact, and overflows
  normal: number;
  overflow: number;
}
export const FORMATS: readonly Format[] = [
  { key: 'f16', name: 'fp16', subnormal: -25, normal: -14, overflow: 16 },
  { key: 'bf16', name: 'bf16', subnormal: -134, normal: -126, overflow: 128 },
  { key: 'f8e4m3', name: 'fp8 e4m3', subnormal: -10, normal: -6, overflow: 9 },
  { key: 'f8e5m2', name: 'fp8 e5m2', subnormal: -17, normal: -14, overflow: 16 },
];

/** Exponents that a picture of these histograms shows: theirs, and the limits near them. */
export function spanOf(rows: readonly ExponentRow[]): [low: number, high: number] {
  const lows = rows.filter((row) => row.counts.length > 0).map((row) => row.lowest);
  const highs = rows.filter((row) => row.counts.length > 0).map((row) => row.lowest + row.counts.length);
  return lows.length === 0 ? [-26, 17] : [Math.min(-26, ...lows) - 1, Math.max(17, ...highs) + 1];
}

/** The share of the elements at each exponent from `low` to before `high`. */
export function sharesOf(row: ExponentRow, low: number, high: number): number[] {
  return Array.from({ length: high - low }, (_, i) => (row.counts[low + i - row.lowest] ?? 0) / Math.max(1, row.components));
}
