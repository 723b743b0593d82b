// The losses of two runs, on the axis of the heat map.
import { numberOf } from '../api/client';
import type { ScalarPoint } from '../api/types';
import { placeOf, type Heat } from '../heat/model';
import type { Line } from '../parts/lines';

/** The scalar that stands for a run's loss: "loss", else the first name that ends so. */
export function lossName(records: readonly ScalarPoint[]): string | null {
  const names = new Set(records.map((record) => record.name));
  if (names.has('loss')) return 'loss';
  return [...names].sort().find((name) => name.toLowerCase().endsWith('loss')) ?? null;
}

/** The mean over ranks and micro-batches of each step. */
export function meanBySteps(records: readonly ScalarPoint[], name: string, rank: string): [step: number, value: number][] {
  const sums = new Map<number, [number, number]>();
  for (const record of records) {
    const value = numberOf(record.value);
    if (record.name !== name || value === null || (rank !== '' && record.rank !== Number(rank))) continue;
    const sum = sums.get(record.step) ?? [0, 0];
    sums.set(record.step, [sum[0] + value, sum[1] + 1]);
  }
  return [...sums].map(([step, [sum, n]]): [number, number] => [step, sum / n]).sort((x, y) => x[0] - y[0]);
}

export function lossLine(records: readonly ScalarPoint[] | undefined, run: 'a' | 'b', label: string, heat: Heat, rank: string): Line {
  const name = lossName(records ?? []);
  if (!records || name === null) return { label, run, points: [] };
  const first = heat.first[0] ?? 0;
  const last = heat.last[heat.columns - 1] ?? 0;
  const points = meanBySteps(records, name, rank).filter(([step]) => step >= first && step <= last);
  return { label, run, points: points.map(([step, value]) => [placeOf(heat, step), value] as const) };
}
