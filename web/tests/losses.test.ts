import { expect, test } from 'vitest';
import { toAsk } from '../src/api/losses';
import type { RunLoss, RunSummary } from '../src/api/types';
import { differenceOf, logTicks, needsLog } from '../src/parts/lines';
import { powerOfTwo } from '../src/parts/plain_axis';
import { pathOf } from '../src/parts/spark';

const run = (name: string, records = 1, state = 'finished') => ({ run: name, attempts: 1, records, state }) as unknown as RunSummary;
const loss = { run: 'a' } as unknown as RunLoss;
const none = new Map<string, number>();

test('unknown runs are asked for at once, outdated ones with them', () => {
  const known = new Map([
    ['a', { version: '1/1/finished/0', loss }],
    ['b', { version: '1/1/running/0', loss }],
  ]);
  expect(toAsk([run('a')], none, known)).toEqual({ names: [], urgent: false });
  expect(toAsk([run('a'), run('b', 2, 'running')], none, known)).toEqual({ names: ['b'], urgent: false });
  expect(toAsk([run('b', 2, 'running'), run('c')], none, known)).toEqual({ names: ['c', 'b'], urgent: true });
  expect(toAsk([run('a')], new Map([['a', 1]]), known).names, 'it has an alarm').toEqual(['a']);
  const many = Array.from({ length: 300 }, (_, i) => run(`r${i}`));
  expect(toAsk(many, none, known).names.length, 'as many as a question takes').toBe(100);
});

test('a small line spans its box and breaks where a value is not finite', () => {
  expect(pathOf([0, 5, 10], [4, 2, 0])).toBe('M2 2L46 11L90 20');
  expect(pathOf([0, 1, 2, 3], [1, NaN, 1, 1])).toBe('M2 11M60.7 11L90 11');
  expect(pathOf([7], [3])).toBe('M2 11');
  expect(pathOf([0, 1], [NaN, null])).toBe('');
  expect(pathOf([], [])).toBe('');
});

test('a loss that blows up gets a logarithmic axis', () => {
  const line = (...ys: (number | null)[]) => [{ label: '', run: 'a' as const, points: ys.map((y, x) => [x, y] as const) }];
  expect(needsLog(line(5, 4, 3))).toBe(false);
  expect(needsLog(line(5, 4, 1e9, Infinity, NaN, null))).toBe(true);
  expect(needsLog(line(0, 1e9))).toBe(false);
  expect(needsLog([])).toBe(false);
});

test('a logarithmic axis has a handful of ticks', () => {
  expect(logTicks(1, 1e14)).toEqual([1, 1e3, 1e6, 1e9, 1e12]);
  expect(logTicks(1, 1000)).toEqual([1, 10, 100, 1000]);
  expect(logTicks(3, 40)).toEqual([5, 10, 20]);
  expect(logTicks(0.011, 0.018)).toEqual([]);
});

test('powers of two are written as such', () => {
  expect(powerOfTwo(-24)).toBe('2⁻²⁴');
  expect(powerOfTwo(0)).toBe('2⁰');
});

test('the difference of two losses is relative to the first and has gaps where they are equal', () => {
  const line = (run: 'a' | 'b', points: [number, number | null][]) => ({ label: run, run, points });
  const a = line('a', [[0, 4], [1, 4], [2, -2], [3, 0], [4, NaN], [5, 1]]);
  const b = line('b', [[0, 4], [1, 5], [2, -1], [3, 1], [4, 1], [6, 1]]);
  expect(differenceOf(a, b).points).toEqual([[0, null], [1, 0.25], [2, 0.5], [3, null], [4, null]]);
});
