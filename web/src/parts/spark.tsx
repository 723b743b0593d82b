// A small line without axes, for a table.
import { numberOf } from '../api/client';
import type { RunLoss } from '../api/types';
import { short } from '../text';

const WIDTH = 92;
const HEIGHT = 22;
const INSET = 2;

/** The path of a line; it breaks where a value is not finite. */
export function pathOf(steps: readonly number[], values: readonly (number | null)[]): string {
  const finite = values.filter((value): value is number => value !== null && Number.isFinite(value));
  const low = Math.min(...finite);
  const high = Math.max(...finite);
  const first = steps[0] ?? 0;
  const span = Math.max(1, (steps.at(-1) ?? 0) - first);
  const tenth = (value: number) => Math.round(10 * value) / 10;
  let path = '';
  let down = false; // the pen
  values.forEach((value, i) => {
    const there = value !== null && Number.isFinite(value);
    if (there) {
      const x = INSET + ((steps[i]! - first) / span) * (WIDTH - 2 * INSET);
      const y = high === low ? HEIGHT / 2 : INSET + ((high - value) / (high - low)) * (HEIGHT - 2 * INSET);
      path += `${down ? 'L' : 'M'}${tenth(x)} ${tenth(y)}`;
    }
    down = there;
  });
  return path;
}

export function Spark({ loss }: { loss: RunLoss }) {
  const values = loss.values.map(numberOf);
  const last = values.at(-1);
  if (last === undefined) return <span class="soft">–</span>;
  const text = `${loss.name}: ${short(values[0] ?? null)} at step ${loss.steps[0]}, ${short(last)} at step ${loss.steps.at(-1)}`;
  return (
    <span class="spark" title={text}>
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} width={WIDTH} height={HEIGHT} aria-hidden="true">
        <path d={pathOf(loss.steps, values)} />
      </svg>
      <span class={last !== null && Number.isFinite(last) ? '' : 'broken'}>{short(last)}</span>
    </span>
  );
}
