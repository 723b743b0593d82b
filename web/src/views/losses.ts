// The losses of two runs, on the axis of the heat map.
import { numberOf } from '../api/client';
import type { ScalarPoint } from '../api/types';
import { placeOf, type Heat } from '../heat/model';
import type { Line } from '../parts/lines';

const OF_SOMETHING_ELSE = new Set('scale weight coef coeff factor lr mask count time ms us sec seconds duration'.split(' '));
const wordsOf = (name: string) => name.toLowerCase().match(/[a-z0-9\u0080-\uffff]+/g) ?? [];
const endsInLoss = (word: string | undefined) => word !== undefined && (word.endsWith('loss') || word === 'losses');

/** The collector's rule (common/loss_names.h). */
export function isLoss(name: string): boolean {
  const words = wordsOf(name);
  return words.some(endsInLoss) && !words.some((word) => OF_SOMETHING_ELSE.has(word));
}

/** The scalar that stands for a run's loss: "loss", else the first that ends so, else the first. */
export function lossName(records: readonly ScalarPoint[]): string | null {
  const names = [...new Set(records.map((record) => record.name))].filter(isLoss).sort();
  if (names.includes('loss')) return 'loss';
  return names.find((name) => endsInLoss(wordsOf(name).at(-1))) ?? names[0] ?? null;
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
