// The exponents of a tensor in a step, of both runs, against what fp16, bf16 and fp8 can hold.
import { useRef } from 'preact/hooks';
import { urlOf } from '../api/client';
import type { ExponentRow } from '../api/types';
import { useQuery } from '../api/use_query';
import { Choice, Commands } from '../parts/parts';
import { powerOfTwo } from '../parts/plain_axis';
import { LINES, useTheme, useWidth } from '../parts/theme';
import { go, type Route } from '../route';
import { command, count, short, shown } from '../text';
import { FORMATS, sharesOf, spanOf } from './exponent_model';
import { sideOf } from './curves';
import { pairAt } from './places';
import { placeText } from './stats';

const HEIGHT = 150;
const ROW = 20; // of a format below the histogram
const STEPS_MAX = 2000; // in the choice

function Histogram({ a, b }: { a: ExponentRow | null; b: ExponentRow | null }) {
  const box = useRef<HTMLDivElement>(null);
  const width = useWidth(box);
  const colours = LINES[useTheme()];
  const rows = [a, b].filter((row) => row !== null);
  const [low, high] = spanOf(rows);
  const gutter = 72; // the formats' names
  const plot = Math.max(1, width - gutter - 16);
  const x = (exponent: number) => gutter + ((exponent - low) / (high - low)) * plot;
  const shares = rows.map((row) => sharesOf(row, low, high));
  const most = Math.max(1e-12, ...shares.flat());
  const bar = plot / (high - low);
  const text = rows.map((row) => `${shown(row.run, 40)}: exponents ${row.lowest} to ${row.lowest + row.counts.length - 1}`).join('; ');
  const every = [4, 8, 16, 32, 64].find((step) => step * bar >= 44) ?? 128;
  const below = HEIGHT + 10 + FORMATS.length * ROW;
  return (
    <div ref={box}>
      {width < 60 ? null : (
        <svg class="exponents" width={width} height={below + 20} role="img" aria-label={`Share of the elements by binary exponent. ${text}`}>
          {shares.map((of, i) =>
            of.map((share, j) =>
              share > 0 ? (
                <rect key={`${i}/${j}`} x={x(low + j) + (i === 0 ? 0 : bar / 2)} width={Math.max(1, (rows.length > 1 ? bar / 2 : bar) - 1)} y={HEIGHT - (share / most) * (HEIGHT - 6)} height={(share / most) * (HEIGHT - 6)} fill={rows[i] === a ? colours.a : colours.b} />
              ) : null,
            ),
          )}
          <line x1={gutter} x2={gutter + plot} y1={HEIGHT} y2={HEIGHT} stroke={colours.axis} />
          {FORMATS.map((format, i) => {
            const y = HEIGHT + 12 + i * ROW;
            const from = Math.max(low, format.subnormal);
            const normal = Math.max(low, format.normal);
            const to = Math.min(high, format.overflow);
            return (
              <g key={format.key}>
                <text x={gutter - 10} y={y + 9} fill={colours.axis} text-anchor="end">
                  {format.name}
                </text>
                {normal > from ? <rect x={x(from) + 0.5} width={x(normal) - x(from)} y={y + 1.5} height={6} fill="none" stroke={colours.axis} /> : null}
                <rect x={x(normal)} width={Math.max(0, x(to) - x(normal))} y={y + 1} height={7} fill={colours.axis} />
              </g>
            );
          })}
          {Array.from({ length: high - low + 1 }, (_, i) => low + i)
            .filter((exponent) => exponent % every === 0)
            .map((exponent) => (
              <text key={exponent} x={x(exponent)} y={below + 14} fill={colours.axis} text-anchor="middle">
                {powerOfTwo(exponent)}
              </text>
            ))}
        </svg>
      )}
    </div>
  );
}

function Losses({ a, b }: { a: ExponentRow | null; b: ExponentRow | null }) {
  const share = (part: number, row: ExponentRow) => (part === 0 ? '–' : `${short((100 * part) / Math.max(1, row.components))} %`);
  const cells = (row: ExponentRow | null, key: string) => {
    const loss = row?.formats.find((one) => one.dtype === key);
    if (!row || !loss) return ['–', '–', '–'];
    return [share(loss.to_zero, row), share(loss.subnormal, row), share(loss.overflow, row)];
  };
  const sides = [a, b].filter((row) => row !== null).map((row) => [shown(row.run, 40), row] as const);
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="What narrower formats would lose">
      <table class="rows">
        <thead>
          <tr>
            <th scope="col">Format</th>
            {sides.flatMap(([side]) =>
              ['become 0', 'lose bits', 'overflow'].map((what) => (
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
  const of = (side: 'a' | 'b') => ({
    run: route[side],
    activation: sideOf(route, side).tensor,
    ...(route.kind ? { kinds: [route.kind as NonNullable<ExponentRow['kind']>] } : {}),
    ...(route.rank === '' ? {} : { ranks: [Number(route.rank)] }),
  });
  const a = useQuery('/api/v1/exponents', of('a'));
  const b = useQuery('/api/v1/exponents', route.b ? of('b') : null);
  const kept = (rows: readonly ExponentRow[] | undefined) => (rows ?? []).filter((row) => (route.mode === '' || row.mode === route.mode) && (route.path === '' || row.output_path === route.path));
  const rows = [kept(a.data?.records), kept(b.data?.records)] as const;
  const steps = [...new Set(rows.flat().map((row) => row.step))].sort((p, q) => p - q);
  if (a.loading || b.loading) return <p class="note">Reading…</p>;
  if (steps.length === 0) {
    return (
      <section aria-label="Exponents">
        <p class="note">
          Not recorded. <code>statagent.init(exponents=["{shown(route.tensor, 80)}@0-,every=100"])</code> counts exponents, which show what fp16, bf16 and fp8 would lose.
        </p>
      </section>
    );
  }
  const step = route.step !== '' && steps.includes(Number(route.step)) ? Number(route.step) : steps.at(-1)!;
  const [ofA, ofB] = rows.map((side) => side.filter((row) => row.step === step)) as [ExponentRow[], ExponentRow[]];
  const at = pairAt(ofA, ofB, route.place, route.place_b);
  const listed = steps.length > STEPS_MAX ? steps.slice(-STEPS_MAX) : steps;
  return (
    <section aria-label="Exponents">
      <div class="bar">
        <Choice label="Step" value={String(step)} options={listed.map((one) => [String(one), String(one)] as const)} onChange={(next) => go({ ...route, step: next }, true)} />
        <span class="grow" />
        <span class="note">
          {at.map((row, i) =>
            row ? (
              <span key={row.run} class={`key bars ${i === 0 ? 'a' : 'b'}`}>
                {`${shown(row.run, 40)}: ${count(row.components)} elements other than 0`}
              </span>
            ) : null,
          )}
          {placeText({ ...(at[0] ?? at[1])!, ranks: [] })}
        </span>
      </div>
      <Histogram a={at[0]} b={at[1]} />
      <p class="note">Each bar under the histogram is the range of a format. Elements left of it would become 0, elements right of it would overflow, and those above its hollow part would lose bits (subnormal).</p>
      <Losses a={at[0]} b={at[1]} />
      <Commands asked={[{ statctl: command('statctl', 'tensor', route.a, route.tensor, '--exponents', ...(route.kind ? ['--kind', route.kind] : []), '--step', String(step)), url: urlOf('/api/v1/exponents', { ...of('a'), steps: String(step) }) }]} />
    </section>
  );
}
