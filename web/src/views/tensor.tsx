// Every statistic of one tensor over the steps, of one run or both.
import type { ComponentChildren } from 'preact';
import { useMemo, useRef, useState } from 'preact/hooks';
import { urlOf } from '../api/client';
import type { SeriesPoint } from '../api/types';
import { useQuery } from '../api/use_query';
import { Chart } from '../parts/chart';
import { fileName, saveCsv, savePng } from '../parts/download';
import type { Line } from '../parts/lines';
import { Choice, Commands, Empty, Link, Name, waiting } from '../parts/parts';
import { RunPair } from '../parts/run_pair';
import { go, type Route } from '../route';
import { command, count, short, shown, words } from '../text';
import { Captures } from './captures';
import { Exponents } from './exponents';
import { placeText, STAT_NAMES, STATS, statOf, type Stat } from './stats';

const CHARTED: readonly Stat[] = ['l2', 'l1', 'mean', 'std', 'min', 'max', 'nan', 'zero'];
const TABLE_MAX = 1000;

/** One value per step: of the selected rank, or of the first one that has the step. */
export function firstOfEachStep(points: readonly SeriesPoint[], kind: string, mode: string): SeriesPoint[] {
  const found = new Map<number, SeriesPoint>();
  for (const point of points) {
    if ((kind !== '' && point.kind !== kind) || (mode !== '' && point.mode !== mode)) continue;
    if (!found.has(point.step)) found.set(point.step, point);
  }
  return [...found.values()].sort((x, y) => x.step - y.step);
}

/** Whether a logarithmic axis can show all of it. */
function isPositive(lines: readonly Line[]): boolean {
  return lines.every((line) => line.points.every(([, y]) => y === null || y > 0));
}

/** A part that is read when it is opened; the URL says whether it is open. */
function Section({ route, name, title, children }: { route: Route; name: string; title: string; children: ComponentChildren }) {
  const parts = route.stat.split(',').filter(Boolean);
  const open = parts.includes(name);
  return (
    <details open={open} onToggle={(event) => event.currentTarget.open !== open && go({ ...route, stat: (open ? parts.filter((one) => one !== name) : [...parts, name]).join(',') }, true)}>
      <summary>{title}</summary>
      {open ? children : null}
    </details>
  );
}

export function TensorView({ route }: { route: Route }) {
  const there = route.tensor !== '' && route.a !== '';
  const of = (run: string) => ({
    run,
    activation: route.tensor,
    ...(route.kind ? { kind: route.kind as NonNullable<SeriesPoint['kind']> } : {}),
    ...(route.path ? { output_path: route.path } : {}),
    ...(route.rank === '' ? {} : { ranks: [Number(route.rank)] }),
  });
  const a = useQuery('/api/v1/series', there ? of(route.a) : null);
  const b = useQuery('/api/v1/series', there && route.b ? of(route.b) : null);
  const mode = route.mode;
  const [log, setLog] = useState(false);
  const charts = useRef<HTMLDivElement>(null);
  const pointsA = useMemo(() => firstOfEachStep(a.data?.records ?? [], route.kind, mode), [a.data, route.kind, mode]);
  const pointsB = useMemo(() => firstOfEachStep(b.data?.records ?? [], route.kind, mode), [b.data, route.kind, mode]);
  const ranks = useMemo(() => [...new Set([...(a.data?.records ?? []), ...(b.data?.records ?? [])].map((point) => point.rank))].sort((x, y) => x - y), [a.data, b.data]);
  if (!there) {
    return (
      <Empty title="Pick a tensor">
        <p>
          Compare <Link to={{ view: 'runs' }}>two runs</Link>, click a cell of the heat map, and follow the link below it.
        </p>
      </Empty>
    );
  }
  const wait = waiting(a, 'Reading the tensor');
  const linesOf = (stat: Stat): Line[] => [
    { label: 'A', run: 'a' as const, points: pointsA.map((point) => [point.step, statOf(point.stats, stat)] as const) },
    ...(route.b ? [{ label: 'B', run: 'b' as const, points: pointsB.map((point) => [point.step, statOf(point.stats, stat)] as const) }] : []),
  ];
  const rankOptions = [['', 'first rank with data'] as const, ...(route.rank !== '' && !ranks.includes(Number(route.rank)) ? [Number(route.rank)] : []).concat(ranks).map((rank) => [String(rank), `rank ${rank}`] as const)];
  const quiet = (stat: Stat) => (stat === 'nan' || stat === 'zero') && [...pointsA, ...pointsB].every((point) => (statOf(point.stats, stat) ?? 0) === 0);
  // All ranks, micro-batches and calls: what the charts are drawn from, and the rest.
  const csvRows = () => [
    ['run', 'step', 'rank', 'micro_batch', 'call', 'mode', 'kind', 'output_path', ...STATS],
    ...[...(a.data?.records ?? []), ...(b.data?.records ?? [])].map((point) => [point.run, point.step, point.rank, point.micro_batch, point.call, point.mode, point.kind, point.output_path, ...STATS.map((stat) => statOf(point.stats, stat))]),
  ];
  const byStepB = new Map(pointsB.map((point) => [point.step, point]));
  return (
    <>
      <header class="view-head">
        <h1>
          <Name name={route.tensor} longest={120} />
        </h1>
        <p class="lead">
          {words(route.kind)} of{' '}
          <RunPair a={route.a} b={route.b} longest={40} />
          {pointsA[0] ? `, ${placeText(pointsA[0])}, ${pointsA[0].stats?.shape.join('×') || 'scalar'} ${pointsA[0].stats?.dtype ?? ''}` : ''}
        </p>
      </header>
      <div class="bar">
        <Choice label="Rank" value={route.rank} options={rankOptions} onChange={(rank) => go({ ...route, rank })} />
        <label class="choice check">
          <input type="checkbox" checked={log} onChange={(event) => setLog(event.currentTarget.checked)} />
          <span>Log axis</span>
        </label>
        <span class="grow" />
        <button type="button" class="quiet" disabled={pointsA.length === 0} onClick={() => saveCsv(fileName([route.a, route.b, route.tensor], 'csv'), csvRows())}>
          CSV
        </button>
        <button type="button" class="quiet" disabled={pointsA.length === 0} onClick={() => void savePng(fileName([route.a, route.b, route.tensor], 'png'), charts.current)}>
          PNG
        </button>
        {route.b ? <Link to={{ ...route, view: 'compare' }}>Back to the comparison</Link> : null}
      </div>
      {b.error ? <p class="note">B: {shown(b.error.message, 500)}</p> : null}
      {wait ?? (
        <>
          <div class="grid" ref={charts}>
            {CHARTED.filter((stat) => !quiet(stat)).map((stat) => (
              <Chart key={stat} label={STAT_NAMES[stat]} lines={linesOf(stat)} height={170} gutter={64} stepText={(x) => (Number.isInteger(x) ? String(x) : '')} log={log && isPositive(linesOf(stat))} />
            ))}
          </div>
          {CHARTED.some(quiet) ? <p class="note">{CHARTED.filter(quiet).map((stat) => `No ${STAT_NAMES[stat]}`).join(' and ').replace('and No', 'and no')} in any step.</p> : null}
          <details class="behind">
            <summary>The same as a table</summary>
            <div class="scroll tall" tabIndex={0} role="region" aria-label="Statistics by step">
              <table class="rows">
                <thead>
                  <tr>
                    <th scope="col" class="number">
                      Step
                    </th>
                    {STATS.map((stat) => (
                      <th key={stat} scope="col" class="number">
                        {STAT_NAMES[stat]}
                      </th>
                    ))}
                  </tr>
                </thead>
                <tbody>
                  {pointsA.slice(0, TABLE_MAX).map((point) => (
                    <tr key={point.step}>
                      <th scope="row" class="number">
                        {point.step}
                      </th>
                      {STATS.map((stat) => {
                        const other = byStepB.get(point.step);
                        return (
                          <td key={stat} class="number">
                            {short(statOf(point.stats, stat), 5)}
                            {route.b ? <div class="soft">{short(statOf(other?.stats, stat), 5)}</div> : null}
                          </td>
                        );
                      })}
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
            {pointsA.length > TABLE_MAX ? <p class="note">Only the first {count(TABLE_MAX)} steps. The command below lists all.</p> : null}
          </details>
        </>
      )}
      <Section route={route} name="exponents" title="Exponents against fp16, bf16 and fp8">
        <Exponents route={route} />
      </Section>
      <Section route={route} name="captures" title="Captured values">
        <Captures route={route} />
      </Section>
      <Commands statctl={command('statctl', 'series', route.a, route.tensor, ...(route.kind ? ['--kind', route.kind] : []), ...(route.rank === '' ? [] : ['--rank', route.rank]))} url={urlOf('/api/v1/series', of(route.a))} />
    </>
  );
}
