// Every statistic of one tensor over the steps, of one run or both.
import type { ComponentChildren, Ref } from 'preact';
import { useMemo, useRef, useState } from 'preact/hooks';
import { ask, urlOf } from '../api/client';
import type { Curves, Parameters, SeriesPoint } from '../api/types';
import { useQuery } from '../api/use_query';
import { Chart } from '../parts/chart';
import { fileName, saveCsv, savePng } from '../parts/download';
import type { Line } from '../parts/lines';
import { Commands, Empty, Link, Name, waiting } from '../parts/parts';
import { RunPair } from '../parts/run_pair';
import { go, type Route } from '../route';
import { command, count, short, shown, words } from '../text';
import { Captures } from './captures';
import { curvesOf, pointsOf, sideOf } from './curves';
import { Exponents } from './exponents';
import { PlaceChoice } from './place_choice';
import { placeKey } from './places';
import { markOf } from './verdict';
import { placeText, STAT_NAMES, STATS, statOf, type Stat } from './stats';

const CHARTED: readonly Stat[] = ['l2', 'l1', 'mean', 'std', 'min', 'max', 'nan', 'zero'];
const TABLE_MAX = 1000;

/** One value per step: of the selected place, or of the first one that has the step. */
export function firstOfEachStep(points: readonly SeriesPoint[], { kind, mode, place }: Pick<Route, 'kind' | 'mode' | 'place'>): SeriesPoint[] {
  const found = new Map<number, SeriesPoint>();
  for (const point of points) {
    if ((kind !== '' && point.kind !== kind) || (mode !== '' && point.mode !== mode) || (place !== '' && placeKey(point) !== place)) continue;
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

/** The records behind the charts: of all ranks, micro-batches and calls. */
function seriesOf(route: Route, side: 'a' | 'b'): Parameters<'/api/v1/series'> {
  const { mode: _, place: __, ...asked } = curvesOf(route, side);
  return asked;
}

/** All ranks, micro-batches and calls: what the charts are drawn from, and the rest. Read when it is asked for. */
function Csv({ route, disabled }: { route: Route; disabled: boolean }) {
  const [state, setState] = useState<'' | 'reading' | 'failed'>('');
  const save = async () => {
    setState('reading');
    try {
      const sides = route.b ? (['a', 'b'] as const) : (['a'] as const);
      const answers = await Promise.all(sides.map((side) => ask('/api/v1/series', seriesOf(route, side))));
      const rows = answers.flatMap((answer) => answer.records.map((point) => [point.run, point.step, point.rank, point.micro_batch, point.call, point.mode, point.kind, point.output_path, ...STATS.map((stat) => statOf(point.stats, stat))]));
      saveCsv(fileName([route.a, route.b, route.tensor], 'csv'), [['run', 'step', 'rank', 'micro_batch', 'call', 'mode', 'kind', 'output_path', ...STATS], ...rows]);
      setState('');
    } catch {
      setState('failed');
    }
  };
  return (
    <button type="button" class="quiet" disabled={disabled || state === 'reading'} onClick={() => void save()}>
      {state === 'reading' ? 'Reading…' : state === 'failed' ? 'CSV failed, again' : 'CSV'}
    </button>
  );
}

/** The table behind the charts: the values of each step, as they were recorded. Read when it is opened. */
function Behind({ route, curves }: { route: Route; curves: Curves | null }) {
  const [open, setOpen] = useState(false);
  return (
    <details class="behind" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>The same as a table</summary>
      {open && curves?.first ? <Table route={route} first={curves.first.step} curves={curves} /> : null}
    </details>
  );
}

function Table({ route, first, curves }: { route: Route; first: number; curves: Curves }) {
  const last = Math.max(first, ...curves.curves.map((curve) => curve.steps.at(-1) ?? 0));
  const each = Math.ceil((last - first + 1) / Math.max(1, curves.steps)); // steps may lie apart
  const steps = `${first}-${Math.min(last, first + TABLE_MAX * each - 1)}`;
  const a = useQuery('/api/v1/series', { ...seriesOf(route, 'a'), steps });
  const b = useQuery('/api/v1/series', route.b ? { ...seriesOf(route, 'b'), steps } : null);
  const pointsA = useMemo(() => firstOfEachStep(a.data?.records ?? [], route).slice(0, TABLE_MAX), [a.data, route]);
  const byStepB = useMemo(() => new Map(firstOfEachStep(b.data?.records ?? [], { ...route, place: sideOf(route, 'b').place }).map((point) => [point.step, point])), [b.data, route]);
  const wait = waiting(a, 'Reading the steps') ?? (route.b && !b.error ? waiting(b, 'Reading the steps') : null);
  if (wait) return wait;
  return (
    <>
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
            {pointsA.map((point) => (
              <tr key={point.step}>
                <th scope="row" class="number">
                  {point.step}
                </th>
                {STATS.map((stat) => (
                  <td key={stat} class="number">
                    {short(statOf(point.stats, stat), 5)}
                    {route.b ? <div class="soft">{short(statOf(byStepB.get(point.step)?.stats, stat), 5)}</div> : null}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {pointsA.length < curves.steps ? <p class="note">Only the first {count(pointsA.length)} steps. The command below lists all.</p> : null}
    </>
  );
}

/** One chart a statistic; those that would only say that nothing was wrong are one line of text. */
function Charts({ route, a, b, log, box }: { route: Route; a: Curves | null; b: Curves | null; log: boolean; box: Ref<HTMLDivElement> }) {
  const lines = useMemo(() => {
    const of = (stat: Stat): Line[] => [{ label: shown(route.a, 40), run: 'a', points: pointsOf(a, stat) }, ...(route.b ? [{ label: shown(route.b, 40), run: 'b' as const, points: pointsOf(b, stat) }] : [])];
    return new Map(CHARTED.map((stat) => [stat, of(stat)]));
  }, [a, b, route.a, route.b]);
  const mark = useMemo(() => (route.origin === '' ? null : markOf(Number(route.origin))), [route.origin]);
  const linesOf = (stat: Stat) => lines.get(stat) ?? [];
  const quiet = (stat: Stat) => (stat === 'nan' || stat === 'zero') && linesOf(stat).every((line) => line.points.every(([, y]) => y === 0));
  const merged = [a, b].some((one) => one?.curves.some((curve) => curve.steps.length < one.steps && curve.stat === 'l2'));
  return (
    <>
      <div class="grid" ref={box}>
        {CHARTED.filter((stat) => !quiet(stat)).map((stat) => (
          <Chart key={stat} label={STAT_NAMES[stat]} lines={linesOf(stat)} height={170} gutter={64} stepText={(x) => (Number.isInteger(x) ? String(x) : '')} log={log && isPositive(linesOf(stat))} mark={mark} />
        ))}
      </div>
      {CHARTED.some(quiet) ? <p class="note">{CHARTED.filter(quiet).map((stat) => `No ${STAT_NAMES[stat]}`).join(' and ').replace('and No', 'and no')} in any step.</p> : null}
      {merged ? (
        <p class="note">
          {count(Math.max(a?.steps ?? 0, b?.steps ?? 0))} steps, more than fit side by side: each chart has the smallest and the largest value of every few steps.
        </p>
      ) : null}
    </>
  );
}

export function TensorView({ route }: { route: Route }) {
  const there = route.tensor !== '' && route.a !== '';
  const a = useQuery('/api/v1/curves', there ? curvesOf(route, 'a') : null);
  const b = useQuery('/api/v1/curves', there && route.b ? curvesOf(route, 'b') : null);
  const [log, setLog] = useState(false);
  const charts = useRef<HTMLDivElement>(null);
  const ranks = useMemo(() => [...new Set([...(a.data?.ranks ?? []), ...(b.data?.ranks ?? [])])].sort((x, y) => x - y), [a.data, b.data]);
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
  // A rank of which no place is listed, because there are too many, can be chosen, too.
  const listed = [...(a.data?.places ?? []), ...(b.data?.places ?? [])];
  const places = [...listed, ...ranks.filter((rank) => !listed.some((place) => place.rank === rank)).map((rank) => ({ rank, micro_batch: 0, call: 0 }))];
  const first = a.data?.first;
  return (
    <>
      <header class="view-head">
        <h1>
          <Name name={route.tensor} longest={120} />
        </h1>
        <p class="lead">
          {words(route.kind)} of{' '}
          <RunPair a={route.a} b={route.b} longest={40} />
          {first ? `, ${placeText(first)}, ${first.stats?.shape.join('×') || 'scalar'} ${first.stats?.dtype ?? ''}` : ''}
        </p>
      </header>
      <div class="bar">
        <PlaceChoice places={places} value={route.place || (first ? placeKey(first) : '')} onChange={(place) => go({ ...route, place, place_b: '', rank: '' })} />
        {route.rank !== '' && route.place === '' ? <Link to={{ ...route, rank: '' }}>All ranks</Link> : null}
        <label class="choice check">
          <input type="checkbox" checked={log} onChange={(event) => setLog(event.currentTarget.checked)} />
          <span>Log axis</span>
        </label>
        <span class="grow" />
        <Csv route={route} disabled={!first} />
        <button type="button" class="quiet" disabled={!first} onClick={() => void savePng(fileName([route.a, route.b, route.tensor], 'png'), charts.current)}>
          PNG
        </button>
        <Link to={{ ...route, view: route.b ? 'compare' : 'run', tensor_b: '', place_b: '', origin: '', ...(route.b ? {} : { stat: '' }) }}>{route.b ? 'Back to the comparison' : 'Back to the run'}</Link>
      </div>
      {b.error ? <p class="note">{shown(route.b, 40)}: {shown(b.error.message, 500)}</p> : null}
      {wait ?? (
        <>
          <Charts route={route} a={a.data} b={b.data} log={log} box={charts} />
          <Behind route={route} curves={a.data} />
        </>
      )}
      <Section route={route} name="exponents" title="Exponents against fp16, bf16 and fp8">
        <Exponents route={route} />
      </Section>
      <Section route={route} name="captures" title="Captured values">
        <Captures route={route} />
      </Section>
      <Commands asked={[{ statctl: command('statctl', 'tensor', route.a, route.tensor, ...(route.kind ? ['--kind', route.kind] : []), ...(route.rank === '' ? [] : ['--rank', route.rank])), url: urlOf('/api/v1/series', seriesOf(route, 'a')) }]} />
    </>
  );
}
