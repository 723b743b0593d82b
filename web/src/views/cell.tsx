// One tensor at one step: both sides, its series, its neighbours in the order of execution.
import { useEffect, useMemo, useState } from 'preact/hooks';
import { urlOf } from '../api/client';
import type { CurvePlace, SeriesPoint } from '../api/types';
import { useQuery } from '../api/use_query';
import { describe } from '../heat/levels';
import { rowText } from '../heat/heat_map';
import { levelAt, stepsText, type Heat } from '../heat/model';
import { Chart } from '../parts/chart';
import type { Line } from '../parts/lines';
import { Choice, Commands, Link, waiting } from '../parts/parts';
import { command } from '../text';
import { pointsOf } from './curves';
import { placeText, STAT_NAMES, STATS, StatsTable, type Stat } from './stats';

interface Props {
  runA: string;
  runB: string;
  rank: string;
  heat: Heat;
  row: number;
  column: number;
  onMove: (row: number) => void;
}

const PLACES_MAX = 256;
const placeKey = (place: CurvePlace) => `${place.rank}/${place.micro_batch}/${place.call}`;

export function Cell({ runA, runB, rank, heat, row, column, onMove }: Props) {
  const at = heat.rows[row];
  const [stat, setStat] = useState<Stat>('l2');
  const [log, setLog] = useState(false);
  const [place, setPlace] = useState('');
  useEffect(() => setPlace(''), [row]);
  const step = heat.first[column] ?? 0;
  const of = (run: string, activation: string) => ({
    run,
    activation,
    ...(at?.kind ? { kind: at.kind } : {}),
    ...(at?.output_path ? { output_path: at.output_path } : {}),
    ...(rank === '' ? {} : { ranks: [Number(rank)] }),
  });
  const askA = at ? of(runA, at.activation) : null;
  const askB = at ? of(runB, at.activation_b || at.activation) : null;
  const drawn = { ...(at ? { mode: at.mode } : {}), ...(place === '' ? {} : { place }) };
  const curvesA = useQuery('/api/v1/curves', askA && { ...askA, ...drawn });
  const curvesB = useQuery('/api/v1/curves', askB && { ...askB, ...drawn });
  const a = useQuery('/api/v1/series', askA && { ...askA, steps: String(step) });
  const b = useQuery('/api/v1/series', askB && { ...askB, steps: String(step) });
  const kept = (points: readonly SeriesPoint[] | undefined) => (points ?? []).filter((point) => point.mode === at?.mode);
  const pointsA = useMemo(() => kept(a.data?.records), [a.data, at]);
  const pointsB = useMemo(() => kept(b.data?.records), [b.data, at]);
  const places = useMemo(() => {
    const found = new Map<string, string>();
    for (const one of [...(curvesA.data?.places ?? []), ...(curvesB.data?.places ?? [])]) if (found.size < PLACES_MAX) found.set(placeKey(one), placeText(one));
    return [...found];
  }, [curvesA.data, curvesB.data]);
  const lines = useMemo(
    (): Line[] => [
      { label: 'A', run: 'a', points: pointsOf(curvesA.data, stat) },
      { label: 'B', run: 'b', points: pointsOf(curvesB.data, stat) },
    ],
    [curvesA.data, curvesB.data, stat],
  );
  if (!at) return null;
  // Of both sides the same rank, micro-batch and call.
  const first = pointsA[0] ?? pointsB[0];
  const seen = place !== '' ? place : first ? placeKey(first) : '';
  const pointAt = (points: readonly SeriesPoint[]) => points.find((point) => placeKey(point) === seen) ?? null;
  const wait = [a, b, curvesA, curvesB].some((query) => query.error) ? null : (waiting(a, 'Reading the tensor') ?? waiting(b, 'Reading the tensor') ?? waiting(curvesA, 'Reading the tensor') ?? waiting(curvesB, 'Reading the tensor'));
  const [seenRank = '0', seenMicro = '0', seenCall = '0'] = seen === '' ? [] : seen.split('/');
  const values = ['statctl', 'diff-values', runA, runB, at.activation, '--step', String(step), ...(at.kind ? ['--kind', at.kind] : [])];
  if (at.output_path && at.output_path !== '0') values.push('--path', at.output_path);
  if (seenMicro !== '0') values.push('--micro-batch', seenMicro);
  if (seenCall !== '0') values.push('--call', seenCall);
  if (at.mode !== 'train') values.push('--mode', at.mode);
  if (seenRank !== '0') values.push('--rank', seenRank);
  if (at.activation_b) values.push('--activation-b', at.activation_b);
  const series = ['statctl', 'series', runA, at.activation, ...(at.kind ? ['--kind', at.kind] : []), '--stat', stat, ...(rank === '' ? [] : ['--rank', rank])];
  return (
    <section class="cell" aria-label="The chosen cell">
      <header>
        <h2>
          <bdi class="name">{rowText(heat, row)}</bdi>
        </h2>
        <p class="lead">
          {stepsText(heat, column)}: {describe(levelAt(heat, row, column))}
        </p>
      </header>
      <div class="bar">
        <Choice label="Statistic" value={stat} onChange={(value) => setStat(value as Stat)} options={STATS.map((one) => [one, STAT_NAMES[one]] as const)} />
        {places.length > 1 ? <Choice label="Where" value={place} onChange={setPlace} options={[['', 'first with data'], ...places]} /> : null}
        <label class="choice check">
          <input type="checkbox" checked={log} onChange={(event) => setLog(event.currentTarget.checked)} />
          <span>Log axis</span>
        </label>
        <span class="grow" />
        <button type="button" class="quiet" disabled={row === 0} onClick={() => onMove(row - 1)}>
          ↑ Executed before
        </button>
        <button type="button" class="quiet" disabled={row + 1 >= heat.rows.length} onClick={() => onMove(row + 1)}>
          ↓ Executed after
        </button>
      </div>
      {wait ?? (
        <>
          {a.error ? <p class="note">A: {a.error.message}</p> : null}
          {b.error ? <p class="note">B: {b.error.message}</p> : null}
          <div class="two">
            <StatsTable a={pointAt(pointsA)?.stats ?? null} b={pointAt(pointsB)?.stats ?? null} runA={runA} runB={runB} />
            <div>
              <Chart label={`${STAT_NAMES[stat]} over the steps`} lines={lines} height={250} gutter={64} stepText={(x) => (Number.isInteger(x) ? String(x) : '')} log={log && lines.every((line) => line.points.every(([, y]) => y === null || y > 0))} />
            </div>
          </div>
        </>
      )}
      <p class="note">
        <Link to={{ view: 'tensor', a: runA, b: runB, tensor: at.activation, kind: at.kind ?? '', path: at.output_path, mode: at.mode, rank }}>All statistics of this tensor</Link>
      </p>
      <Commands statctl={command(...series)} url={urlOf('/api/v1/series', askA ?? {})} />
      <p class="note">To compare element by element, if both runs captured it at this step:</p>
      <Commands statctl={command(...values)} url={urlOf('/api/v1/capture', { run: runA, activation: at.activation, step, kind: at.kind })} />
    </section>
  );
}
