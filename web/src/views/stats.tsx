// The statistics of a tensor, of both runs side by side.
import { numberOf } from '../api/client';
import type { CurvePlace, Side } from '../api/types';
import { count, short, shown } from '../text';

export const STATS = ['l2', 'mean', 'std', 'min', 'max', 'l1', 'nan', 'pos_inf', 'neg_inf', 'zero'] as const;
export type Stat = (typeof STATS)[number];
export const STAT_NAMES: Record<Stat, string> = {
  l2: 'L2 norm', mean: 'mean', std: 'standard deviation', min: 'minimum', max: 'maximum', l1: 'L1 norm', nan: 'NaN', pos_inf: '+∞', neg_inf: '−∞', zero: 'zeros',
}; // prettier-ignore

export function statOf(side: Side | null | undefined, stat: Stat): number | null {
  return side ? numberOf(side[stat]) : null;
}

function change(a: number | null, b: number | null): string {
  if (a === null || b === null || a === b || a === 0 || !Number.isFinite(a) || !Number.isFinite(b)) return '';
  const part = (b - a) / Math.abs(a);
  if (Math.abs(part) >= 10) return `${short(b / a, 2)} times`;
  return Math.abs(part) >= 1e-3 ? `${part > 0 ? '+' : '−'}${short(Math.abs(part) * 100, 2)} %` : `${part > 0 ? '+' : '−'}${short(Math.abs(part), 2)}`;
}

export function placeText(point: CurvePlace): string {
  const parts = [point.ranks.length > 1 ? `ranks ${point.ranks.join(', ')}` : `rank ${point.rank}`];
  if (point.micro_batch > 0) parts.push(`micro-batch ${point.micro_batch}`);
  if (point.call > 0) parts.push(`call ${point.call}`);
  return parts.join(', ');
}

export function StatsTable({ a, b, runA, runB }: { a: Side | null; b: Side | null; runA: string; runB: string }) {
  const integer = new Set<Stat>(['nan', 'pos_inf', 'neg_inf', 'zero']);
  const text = (value: number | null, stat: Stat) => (value !== null && integer.has(stat) ? count(value) : short(value, 6));
  const sideText = (side: Side | null, of: (side: Side) => string) => (side ? of(side) : '–');
  const same = (p: string, q: string) => (p === q ? 'same' : 'different');
  const bits = [a, b].map((side) => side?.hash ?? null);
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Statistics of both runs">
      <table class="rows stats">
        <thead>
          <tr>
            <th scope="col">
              <span class="hidden">Statistic</span>
            </th>
            <th scope="col" class="number">
              <bdi>{shown(runA, 40)}</bdi>
            </th>
            <th scope="col" class="number">
              <bdi>{shown(runB, 40)}</bdi>
            </th>
            <th scope="col" class="number">
              Change
            </th>
          </tr>
        </thead>
        <tbody>
          {STATS.map((stat) => {
            const p = statOf(a, stat);
            const q = statOf(b, stat);
            return (
              <tr key={stat}>
                <th scope="row">{STAT_NAMES[stat]}</th>
                <td class="number">{text(p, stat)}</td>
                <td class="number">{text(q, stat)}</td>
                <td class="number">{change(p, q)}</td>
              </tr>
            );
          })}
          <tr>
            <th scope="row">shape, dtype</th>
            <td class="number">{sideText(a, (side) => `${side.shape.join('×') || 'scalar'} ${side.dtype}`)}</td>
            <td class="number">{sideText(b, (side) => `${side.shape.join('×') || 'scalar'} ${side.dtype}`)}</td>
            <td class="number" />
          </tr>
          <tr>
            <th scope="row">bits</th>
            <td class="number hash" title={bits[0] ?? ''}>
              {bits[0]?.slice(0, 10) ?? '–'}
            </td>
            <td class="number hash" title={bits[1] ?? ''}>
              {bits[1]?.slice(0, 10) ?? '–'}
            </td>
            <td class="number">{bits[0] && bits[1] ? same(bits[0], bits[1]) : ''}</td>
          </tr>
        </tbody>
      </table>
    </div>
  );
}
