// What the pictures of memory and density show, from the rows of the API.
import type { DensityRow, MemoryRow } from '../api/types';

export const PHASES = ['pre_forward', 'post_forward', 'pre_backward', 'post_backward', 'pre_optimizer', 'post_optimizer'] as const;

export interface Layer {
  key: string;
  label: string;
  values: readonly number[]; // bytes, one per x; 0 if unknown
}

export interface Stack {
  of: 'device' | 'host'; // what the height is: allocated on the device, or the process's resident memory
  device: string;
  xs: readonly number[]; // the step, plus where in it
  rows: readonly MemoryRow[]; // one per x
  layers: readonly Layer[]; // from the bottom
}

const OWN = [
  ['parameter', 'parameters'],
  ['gradient', 'gradients'],
  ['optimizer_state', 'optimizer state'],
  ['buffer', 'buffers'],
] as const;

/** The bytes in use at a record: of the device's allocator if there is one, else of the process. */
export function usedBytes(row: MemoryRow): number {
  return row.allocated ?? row.host_rss ?? 0;
}

export function peakOf(rows: readonly MemoryRow[]): MemoryRow | null {
  return rows.reduce<MemoryRow | null>((most, row) => (most === null || usedBytes(row) > usedBytes(most) ? row : most), null);
}

/** Of one rank. Records of one step lie between it and the next, in their order; `phase` '' is all. */
export function stackOf(records: readonly MemoryRow[], device: string, phase: string): Stack {
  const mine = records.filter((row) => row.device === device && row.module === '');
  const inStep = new Map<number, number>();
  for (const row of mine) inStep.set(row.step, (inStep.get(row.step) ?? 0) + 1);
  const passed = new Map<number, number>();
  const kept: [number, MemoryRow][] = [];
  for (const row of mine) {
    const place = passed.get(row.step) ?? 0;
    passed.set(row.step, place + 1);
    if (phase === '' || row.phase === phase) kept.push([phase === '' ? row.step + place / (inStep.get(row.step) ?? 1) : row.step, row]);
  }
  // Micro-batches repeat a phase: of one place, the greatest.
  const at = new Map<number, MemoryRow>();
  for (const [x, row] of kept) {
    const there = at.get(x);
    if (!there || usedBytes(row) > usedBytes(there)) at.set(x, row);
  }
  const xs = [...at.keys()].sort((p, q) => p - q);
  const rows = xs.map((x) => at.get(x)!);
  const of = mine.some((row) => row.allocated !== null) ? 'device' : 'host';
  const own = OWN.map(([key, label]): Layer => ({ key, label, values: rows.map((row) => row[key] ?? 0) }));
  const known = rows.map((_, i) => own.reduce((sum, layer) => sum + (layer.values[i] ?? 0), 0));
  const rest: Layer = { key: 'rest', label: of === 'device' ? 'activations and other' : 'rest of the process', values: rows.map((row, i) => Math.max(0, usedBytes(row) - known[i]!)) };
  const layers = [...own, rest];
  if (of === 'device') layers.push({ key: 'reserved', label: 'reserved, not in use', values: rows.map((row) => Math.max(0, (row.reserved ?? 0) - usedBytes(row))) });
  return { of, device, xs, rows, layers: layers.filter((layer) => layer.values.some((value) => value > 0)) };
}

export interface ModulePeak {
  module: string;
  peak: number; // bytes by which its forward pass raised the peak, at most
  allocated: number | null; // bytes that stayed allocated, at most
  step: number; // of the peak
}

/** By module, the greatest rise of the peak first. */
export function peaksByModule(records: readonly MemoryRow[]): ModulePeak[] {
  const found = new Map<string, ModulePeak>();
  for (const row of records) {
    if (row.module === '') continue;
    const peak = row.peak_delta ?? 0;
    const old = found.get(row.module);
    const allocated = row.allocated_delta === null ? (old?.allocated ?? null) : Math.max(row.allocated_delta, old?.allocated ?? -Infinity);
    if (!old || peak > old.peak) found.set(row.module, { module: row.module, peak, allocated, step: row.step });
    else old.allocated = allocated;
  }
  return [...found.values()].sort((p, q) => q.peak - p.peak || (q.allocated ?? 0) - (p.allocated ?? 0) || (p.module < q.module ? -1 : 1));
}

export interface InputDensity {
  input: string;
  type: string;
  padIndex: number;
  valid: number;
  total: number;
  least: { step: number; share: number } | null; // the emptiest batch
  points: readonly (readonly [step: number, share: number])[];
}

/** The share of elements that are not padding, by input, over the steps; micro-batches of a step together. */
export function densities(records: readonly DensityRow[]): InputDensity[] {
  const inputs = new Map<string, DensityRow[]>();
  for (const row of records) {
    const key = JSON.stringify([row.input, row.type, row.pad_index]);
    const there = inputs.get(key);
    if (there) there.push(row);
    else inputs.set(key, [row]);
  }
  return [...inputs.values()].map((rows): InputDensity => {
    const first = rows[0]!;
    const steps = new Map<number, [number, number]>();
    for (const row of rows) {
      const sum = steps.get(row.step) ?? [0, 0];
      steps.set(row.step, [sum[0] + row.valid, sum[1] + row.total]);
    }
    const points = [...steps].filter(([, [, total]]) => total > 0).map(([step, [valid, total]]) => [step, valid / total] as const);
    points.sort((p, q) => p[0] - q[0]);
    const least = points.reduce<InputDensity['least']>((low, [step, share]) => (low === null || share < low.share ? { step, share } : low), null);
    const sum = (of: (row: DensityRow) => number) => rows.reduce((total, row) => total + of(row), 0);
    return { input: first.input, type: first.type, padIndex: first.pad_index, valid: sum((row) => row.valid), total: sum((row) => row.total), least, points };
  });
}

/** "0 %" and "100 %" are exact: nothing, and everything. */
export function percent(share: number): string {
  if (share === 0 || share === 1) return `${100 * share} %`;
  return share < 0.001 ? '<0.1 %' : share > 0.999 ? '>99.9 %' : `${(100 * share).toFixed(1)} %`;
}

/** Which steps are asked for unless the URL says: a training may have a million. */
export function defaultSteps(first: number | null, last: number | null, longest: number): string {
  if (first === null || last === null || last - first < longest) return '';
  return `${last - longest + 1}-${last}`;
}
