import { expect, test } from 'vitest';
import type { DensityRow, MemoryRow } from '../src/api/types';
import { byteTicks } from '../src/parts/lines';
import { defaultSteps, densities, peaksByModule, percent, stackOf, usedBytes } from '../src/views/memory_model';

function memory(step: number, phase: string, given: Partial<MemoryRow>): MemoryRow {
  return {
    run: 'r', rank: 0, step, micro_batch: 0, phase, device: 'cuda:0', module: '',
    allocated: null, max_allocated: null, reserved: null, max_reserved: null, inactive: null, max_inactive: null,
    parameter: null, gradient: null, buffer: null, optimizer_state: null, device_free: null, device_total: null,
    host_rss: null, host_max_rss: null, host_free: null, host_total: null, step_max_allocated: null, allocated_delta: null, peak_delta: null, ...given,
  }; // prettier-ignore
}

test('the layers add up to what is reserved on a device, and to the resident memory without one', () => {
  const rows = [memory(0, 'pre_forward', { allocated: 100, reserved: 150, parameter: 60 }), memory(0, 'post_backward', { allocated: 140, reserved: 150, parameter: 60, gradient: 60 })];
  const stack = stackOf(rows, 'cuda:0', '');
  expect(stack.of).toBe('device');
  expect(stack.xs).toEqual([0, 0.5]);
  expect(stack.layers.map((layer) => [layer.key, ...layer.values])).toEqual([['parameter', 60, 60], ['gradient', 0, 60], ['rest', 40, 20], ['reserved', 50, 10]]); // prettier-ignore
  const host = stackOf([memory(3, 'post_forward', { device: 'cpu', host_rss: 1000, parameter: 200 })], 'cpu', '');
  expect([host.of, host.xs, host.layers.map((layer) => layer.values[0])]).toEqual(['host', [3], [200, 800]]);
});

test('one phase has one place in a step: the greatest of its micro-batches', () => {
  const rows = [memory(0, 'pre_forward', { allocated: 1 }), memory(0, 'pre_forward', { allocated: 5, micro_batch: 1 }), memory(1, 'pre_forward', { allocated: 2 }), memory(1, 'post_forward', { allocated: 9 })];
  const stack = stackOf(rows, 'cuda:0', 'pre_forward');
  expect(stack.xs).toEqual([0, 1]);
  expect(stack.rows.map(usedBytes)).toEqual([5, 2]);
  expect(stackOf([], '', '').xs).toEqual([]);
  expect(stackOf(rows, 'cuda:1', '').layers).toEqual([]);
});

test('modules by the peak that they raised', () => {
  const rows = [memory(0, '', { module: 'a', peak_delta: 5, allocated_delta: -2 }), memory(1, '', { module: 'a', peak_delta: 3, allocated_delta: 4 }), memory(1, '', { module: 'b', peak_delta: 9, allocated_delta: null })];
  expect(peaksByModule(rows)).toEqual([
    { module: 'b', peak: 9, allocated: null, step: 1 },
    { module: 'a', peak: 5, allocated: 4, step: 0 },
  ]);
});

test('density by input, micro-batches together, empty batches left out', () => {
  const row = (step: number, valid: number, total: number, input = 'ids'): DensityRow => ({ run: 'r', rank: 0, step, micro_batch: 0, input, type: 'embed', pad_index: 0, valid, total, valid_per_sample: [] });
  const [ids, other] = densities([row(0, 1, 4), row(0, 3, 4), row(1, 1, 4), row(2, 0, 0), row(0, 4, 4, 'labels')]);
  expect(ids).toMatchObject({ valid: 5, total: 12, least: { step: 1, share: 0.25 }, points: [[0, 0.5], [1, 0.25]] }); // prettier-ignore
  expect(other?.points).toEqual([[0, 1]]);
});

test('only nothing is 0 %, and only everything 100 %', () => {
  expect([0, 0.0004, 0.5, 0.9996, 1].map(percent)).toEqual(['0 %', '<0.1 %', '50.0 %', '>99.9 %', '100 %']);
});

test('long runs begin with their last steps', () => {
  expect(defaultSteps(0, 99, 1000)).toBe('');
  expect(defaultSteps(0, 999, 1000)).toBe('');
  expect(defaultSteps(0, 1000, 1000)).toBe('1-1000');
  expect(defaultSteps(null, null, 1000)).toBe('');
});

test('ticks of bytes are round', () => {
  expect(byteTicks(0, 4 * 1024)).toEqual([0, 1024, 2048, 3072, 4096]);
  expect(byteTicks(0, 700 * 1024 ** 2).map((y) => y / 1024 ** 2)).toEqual([0, 200, 400, 600]);
  expect(byteTicks(0, 0)).toEqual([0]);
  expect(byteTicks(0, 3e12).length).toBeLessThan(8);
});
