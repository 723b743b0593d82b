// The exponents of a tensor in a step, of both runs, against what fp16, bf16 and fp8 can hold.
import { urlOf } from '../api/client';
import type { ExponentRow } from '../api/types';
import { useQuery } from '../api/use_query';
import { Choice, Commands } from '../parts/parts';
import { LINES, useTheme } from '../parts/theme';
import { go, type Route } from '../route';
import { command, count, short, shown } from '../text';
import { FORMATS, rowAt, sharesOf, spanOf } from './exponent_model';

const WIDTH = 1000; // of the picture's own units
const HEIGHT = 150;
const STEPS_MAX = 2000; // in the choice

function Histogram({ a, b }: { a: ExponentRow | null; b: ExponentRow | null }) {
  const colours = LINES[useTheme()];
  const rows = [a, b].filter((row) => row !== null);
  const [low, high] = spanOf(rows);
  const x = (exponent: number) => ((exponent - low) / (high - low)) * WIDTH;
  const shares = rows.map((row) => sharesOf(row, low, high));
  const most = Math.max(1e-12, ...shares.flat());
  const bar = WIDTH / (high - low);
  const text = rows.map((row, i) => `${i === 0 && a ? 'A' : 'B'}: exponents ${row.lowest} to ${row.lowest + row.counts.length - 1}`).join('; ');
  return (
    <svg class="exponents" viewBox={`0 0 ${WIDTH} ${HEIGHT + FORMATS.length * 22 + 24}`} role="img" aria-label={`Share of the elements by binary exponent. ${text}`}>
      {shares.map((of, i) =>
        of.map((share, j) =>
          share > 0 ? (
            <rect key={`${i}/${j}`} x={j * bar + (i === 0 ? 0 : bar / 2)} width={rows.length > 1 ? bar / 2 : bar - 0.5} y={HEIGHT - (share / most) * (HEIGHT - 6)} height={(share / most) * (HEIGHT - 6)} fill={rows[i] === a ? colours.a : colours.b} />
          ) : null,
        ),
      )}
      <line x1={0} x2={WIDTH} y1={HEIGHT} y2={HEIGHT} stroke={colours.axis} />
      {FORMATS.map((format, i) => {
        const y = HEIGHT + 10 + i * 22;
        const from = Math.max(low, format.subnormal);
        const normal = Math.max(low, format.normal);
        const to = Math.min(high, format.overflow);
        return (
          <g key={format.key}>
            {normal > from ? <rect x={x(from)} width={x(normal) - x(from)} y={y} height={6} fill="none" stroke={colours.axis} /> : null}
            <rect x={x(normal)} width={Math.max(0, x(to) - x(normal))} y={y} height={6} fill={colours.axis} />
            <text x={Math.min(WIDTH - 90, x(from) + 2)} y={y + 17} fill={colours.axis}>
              {format.name}
            </text>
          </g>
        );
      })}
      {Array.from({ length: high - low }, (_, i) => low + i)
        .filter((exponent) => exponent % (high - low > 120 ? 20 : 8) === 0)
        .map((exponent) => (
          <text key={exponent} x={x(exponent)} y={HEIGHT + FORMATS.length * 22 + 22} fill={colours.axis} text-anchor="middle">
            {`2^${exponent}`}
          </text>
        ))}
    </svg>
  );
}

function Losses({ a, b }: { a: ExponentRow | null; b: ExponentRow | null }) {
  const share = (part: number, row: ExponentRow) => (part === 0 ? '–' : `${short((100 * part) / Math.max(1, row.components))} %`);
  const cells = (row: ExponentRow | null, key: string) => {
    const loss = row?.formats.find((one) => one.dtype === key);
    if (!row || !loss) return ['–', '–', '–'];
    return [share(loss.to_zero, row), share(loss.subnormal, row), share(loss.overflow, row)];
  };
  const sides = [['A', a] as const, ['B', b] as const].filter(([, row]) => row !== null);
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="What narrower formats would lose">
      <table class="rows">
        <thead>
          <tr>
            <th scope="col">Format</th>
            {sides.flatMap(([side]) =>
              ['would be 0', 'loses bits', 'overflows'].map((what) => (
                <th key={side + what} scope="col" class="number">
                  {sides.length > 1 ? `${side}: ` : ''}
                  {what}
                </th>
              )),
            )}
          </tr>
        </thead>
        <tbody>
          {FORMATS.map((format) => (
            <tr key={format.key}>
              <th scope="row">{format.name}</th>
              {sides.flatMap(([side, row]) =>
                cells(row, format.key).map((cell, i) => (
                  <td key={`${side}${i}`} class="number">
                    {cell}
                  </td>
                )),
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function Exponents({ route }: { route: Route }) {
  const of = (run: string) => ({
    run,
    activation: route.tensor,
    ...(route.kind ? { kinds: [route.kind as NonNullable<ExponentRow['kind']>] } : {}),
    ...(route.rank === '' ? {} : { ranks: [Number(route.rank)] }),
  });
  const a = useQuery('/api/v1/exponents', of(route.a));
  const b = useQuery('/api/v1/exponents', route.b ? of(route.b) : null);
  const kept = (rows: readonly ExponentRow[] | undefined) => (rows ?? []).filter((row) => (route.mode === '' || row.mode === route.mode) && (route.path === '' || row.output_path === route.path));
  const rows = [kept(a.data?.records), kept(b.data?.records)] as const;
  const steps = [...new Set(rows.flat().map((row) => row.step))].sort((p, q) => p - q);
  if (a.loading || b.loading) return <p class="note">Reading…</p>;
  if (steps.length === 0) {
    return (
      <section aria-label="Exponents">
        <p class="note">
          Not recorded. <code>statagent.init(exponents=["{shown(route.tensor, 80)}@0-,every=100"])</code> counts them: what fp16, bf16 and fp8 would lose.
        </p>
      </section>
    );
  }
  const step = route.step !== '' && steps.includes(Number(route.step)) ? Number(route.step) : steps.at(-1)!;
  const at = [rowAt(rows[0], step), rowAt(rows[1], step)] as const;
  const listed = steps.length > STEPS_MAX ? steps.slice(-STEPS_MAX) : steps;
  return (
    <section aria-label="Exponents">
      <div class="bar">
        <Choice label="Step" value={String(step)} options={listed.map((one) => [String(one), String(one)] as const)} onChange={(next) => go({ ...route, step: next }, true)} />
        <span class="grow" />
        <span class="note">
          {at[0] ? `A: ${count(at[0].components)} elements that are not 0` : ''}
          {at[0] && at[1] ? ', ' : ''}
          {at[1] ? `B: ${count(at[1].components)}` : ''}
        </span>
      </div>
      <Histogram a={at[0]} b={at[1]} />
      <p class="note">A bar is what the format holds; its open part loses bits (subnormal). Left of it elements would be 0, right of it they overflow.</p>
      <Losses a={at[0]} b={at[1]} />
      <Commands statctl={command('statctl', 'exponents', route.a, route.tensor, ...(route.kind ? ['--kind', route.kind] : []), '--step', String(step))} url={urlOf('/api/v1/exponents', { ...of(route.a), steps: String(step) })} />
    </section>
  );
}
