// One tensor at one step: both sides, its series, its neighbours in the order of execution.
import { useMemo, useState } from 'preact/hooks';
import { urlOf } from '../api/client';
import type { CurvePlace, DiffReport, SeriesPoint } from '../api/types';
import { useQuery } from '../api/use_query';
import { describe } from '../heat/levels';
import { rowText } from '../heat/row_names';
import { levelAt, stepsText, type Heat } from '../heat/model';
import { Chart } from '../parts/chart';
import type { Line } from '../parts/lines';
import { Choice, Commands, Link, waiting } from '../parts/parts';
import { command, shown } from '../text';
import { pointsOf } from './curves';
import { comparesParts, firstPlace, foundIn, placeKey, placesOf, pointAt } from './places';
import { PlaceChoice } from './place_choice';
import { originMark } from './verdict';
import { placeText, STAT_NAMES, STATS, StatsTable, type Stat } from './stats';

interface Props {
  runA: string;
  runB: string;
  report: DiffReport;
  rank: string;
  heat: Heat;
  row: number;
  column: number;
  step: number; // one of the column's
  place: string; // "" if the URL says none
  onMove: (row: number) => void;
  onPlace: (place: string) => void;
}

type Row = Heat['rows'][number];

/** What the queries ask of one run. */
function questionOf(run: string, activation: string, at: Row, rank: string, parts: boolean) {
  return {
    run,
    activation,
    ...(at.kind ? { kind: at.kind } : {}),
    ...(at.output_path ? { output_path: at.output_path } : {}),
    ...(rank === '' ? {} : { ranks: [Number(rank)] }),
    ...(parts ? { by_rank: true } : {}),
  };
}

/** The records of both runs at the step, and at the chosen place; then the curves of that place. */
function useSides({ runA, runB, report, rank, heat, row, step, place }: Props) {
  const at = heat.rows[row];
  const parts = comparesParts(report);
  const askA = at ? questionOf(runA, at.activation, at, rank, parts) : null;
  const askB = at ? questionOf(runB, at.activation_b || at.activation, at, rank, parts) : null;
  const a = useQuery('/api/v1/series', askA && { ...askA, steps: String(step) });
  const b = useQuery('/api/v1/series', askB && { ...askB, steps: String(step) });
  const kept = (points: readonly SeriesPoint[] | undefined) => (points ?? []).filter((point) => point.mode === at?.mode);
  const pointsA = useMemo(() => kept(a.data?.records), [a.data, at]);
  const pointsB = useMemo(() => kept(b.data?.records), [b.data, at]);
  const found = foundIn(report, at, step, step);
  const foundPlaces = found ? placesOf(found) : null;
  const seen = place || foundPlaces?.a || firstPlace(pointsA, pointsB);
  const others = !parts || report.ranks_b.length > 0;
  const shownA = pointAt(pointsA, seen, others);
  const shownB = pointAt(pointsB, seen === foundPlaces?.a ? foundPlaces.b : seen, others);
  const drawn = (point: SeriesPoint | null) => ({ ...(at ? { mode: at.mode } : {}), ...(point ? { place: placeKey(point) } : seen === '' ? {} : { place: seen }) });
  const read = (query: typeof a) => query.data !== null || query.error !== null;
  const curvesA = useQuery('/api/v1/curves', read(a) ? askA && { ...askA, ...drawn(shownA) } : null);
  const curvesB = useQuery('/api/v1/curves', read(b) ? askB && { ...askB, ...drawn(shownB) } : null);
  const cut = parts && (shownA ?? shownB)?.stats?.place;
  return { at, askA, a, b, curvesA, curvesB, seen, shownA, shownB, cut };
}

/** The same questions as commands: the series of A, and the values element by element. */
function commandsOf({ runA, runB, rank, step }: Props, at: Row, { seen, shownA, shownB, cut }: Pick<ReturnType<typeof useSides>, 'seen' | 'shownA' | 'shownB' | 'cut'>, stat: Stat) {
  const [seenRank = '0', seenMicro = '0', seenCall = '0'] = seen === '' ? [] : seen.split('/');
  const values = ['statctl', 'values', 'diff', runA, runB, at.activation, '--step', String(step), ...(at.kind ? ['--kind', at.kind] : [])];
  if (at.output_path && at.output_path !== '0') values.push('--path', at.output_path);
  if (seenMicro !== '0') values.push('--micro-batch', seenMicro);
  if (seenCall !== '0') values.push('--call', seenCall);
  if (at.mode !== 'train') values.push('--mode', at.mode);
  if (seenRank !== '0') values.push('--rank', seenRank);
  if (shownA && shownB && shownA.rank !== shownB.rank) values.push('--rank-b', String(shownB.rank));
  if (at.activation_b) values.push('--activation-b', at.activation_b);
  const series = ['statctl', 'tensor', runA, at.activation, ...(at.kind ? ['--kind', at.kind] : []), '--stat', stat, ...(rank === '' ? (cut ? ['--by-rank'] : []) : ['--rank', rank])];
  return { series: command(...series), values: command(...values) };
}

/** Which cell it is, and of which places the two sides are. */
function CellHead({ heat, row, column, step, runB, a, b }: Pick<Props, 'heat' | 'row' | 'column' | 'step' | 'runB'> & { a: SeriesPoint | null; b: SeriesPoint | null }) {
  const either = a ?? b;
  return (
    <header>
      <h2>
        <bdi class="name">{rowText(heat, row)}</bdi>
      </h2>
      <p class="lead">
        {stepsText(heat, column)}: {describe(levelAt(heat, row, column))}
      </p>
      {either ? (
        <p class="note">
          Step {step}, {placeText(either)}
          {a && b && a.rank !== b.rank ? `; of ${shown(runB, 40)}, ${placeText(b)}` : ''}
        </p>
      ) : null}
    </header>
  );
}

/** The link to everything that is known of the tensor, at the place that is shown. */
function ToTensor({ runA, runB, report, step, at, sides: { seen, shownA, shownB, cut } }: Pick<Props, 'runA' | 'runB' | 'report' | 'step'> & { at: Row; sides: ReturnType<typeof useSides> }) {
  const placeA = shownA ? placeKey(shownA) : seen;
  const placeB = shownA && shownB && placeKey(shownB) !== placeKey(shownA) ? placeKey(shownB) : '';
  const rank = cut ? (seen.split('/')[0] || '0') : '';
  return (
    <p class="note">
      <Link to={{ view: 'tensor', a: runA, b: runB, tensor: at.activation, tensor_b: at.activation_b, kind: at.kind ?? '', path: at.output_path, mode: at.mode, rank, step: String(step), place: placeA, place_b: placeB, origin: originMark(report)?.x.toString() ?? '' }}>All statistics of this tensor</Link>
    </p>
  );
}

export function Cell(props: Props) {
  const { runA, runB, report, heat, row, column, step, onMove, onPlace } = props;
  const [stat, setStat] = useState<Stat>('l2');
  const [log, setLog] = useState(false);
  const sides = useSides(props);
  const { at, askA, a, b, curvesA, curvesB, seen, shownA, shownB } = sides;
  const places = useMemo(() => {
    const found = new Map<string, CurvePlace>();
    for (const one of [...(curvesA.data?.places ?? []), ...(curvesB.data?.places ?? [])]) found.set(placeKey(one), one);
    return [...found.values()];
  }, [curvesA.data, curvesB.data]);
  const lines = useMemo(
    (): Line[] => [
      { label: shown(runA, 40), run: 'a', points: pointsOf(curvesA.data, stat) },
      { label: shown(runB, 40), run: 'b', points: pointsOf(curvesB.data, stat) },
    ],
    [curvesA.data, curvesB.data, stat, runA, runB],
  );
  if (!at) return null;
  const queries = [a, b, curvesA, curvesB];
  const wait = queries.some((query) => query.error) ? null : (queries.map((query) => waiting(query, 'Reading the tensor')).find((one) => one !== null) ?? null);
  const commands = commandsOf(props, at, sides, stat);
  return (
    <section class="cell" aria-label="The chosen cell">
      <CellHead heat={heat} row={row} column={column} step={step} runB={runB} a={shownA} b={shownB} />
      <div class="bar">
        <Choice label="Statistic" value={stat} onChange={(value) => setStat(value as Stat)} options={STATS.map((one) => [one, STAT_NAMES[one]] as const)} />
        {places.length > 1 ? <PlaceChoice places={places} value={seen} onChange={onPlace} /> : null}
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
          {a.error ? <p class="note">{shown(runA, 40)}: {a.error.message}</p> : null}
          {b.error ? <p class="note">{shown(runB, 40)}: {b.error.message}</p> : null}
          <div class="two">
            <StatsTable a={shownA?.stats ?? null} b={shownB?.stats ?? null} runA={runA} runB={runB} />
            <div>
              <Chart label={`${STAT_NAMES[stat]} over the steps`} lines={lines} height={250} gutter={64} stepText={(x) => (Number.isInteger(x) ? String(x) : '')} log={log && lines.every((line) => line.points.every(([, y]) => y === null || y > 0))} mark={originMark(report)} />
            </div>
          </div>
        </>
      )}
      <ToTensor runA={runA} runB={runB} report={report} step={step} at={at} sides={sides} />
      <Commands
        asked={[
          { statctl: commands.series, url: urlOf('/api/v1/series', askA ?? {}), what: 'Statistics: ' },
          { statctl: commands.values, url: urlOf('/api/v1/capture', { run: runA, activation: at.activation, step, kind: at.kind }), what: 'Captured values: ' },
        ]}
      />
      <p class="note">The second compares element by element, if both runs captured the tensor at this step.</p>
    </section>
  );
}
