// One run, also while it trains: a statistic by step and tensor, the loss above it, the alarms below.
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { urlOf } from '../api/client';
import type { EventRow, StatMap } from '../api/types';
import { useLive } from '../api/live';
import { usePaced, useQuery } from '../api/use_query';
import { entryOf, folded, rowBehind, windowBehind, windowDrawn } from '../heat/fold';
import { gutterOf, HeatMapView, heightOf } from '../heat/heat_map';
import { rowText } from '../heat/row_names';
import { css } from '../heat/levels';
import { columnOf, parseWindow, stepsText, windowText } from '../heat/model';
import { marksOf } from '../heat/marks';
import { NOT_FINITE, relativeColours, relativeTo, sizeOf, sizeText, statColours, statHeatOf, timesText, type StatHeat } from '../heat/stat_levels';
import { Chart } from '../parts/chart';
import { Choice, Commands, Empty, Link, NoRun, waiting } from '../parts/parts';
import { needsLog } from '../parts/lines';
import { RunHead } from '../parts/run_head';
import { useTheme, useWidth } from '../parts/theme';
import { go, type Route } from '../route';
import { command, count, sentenceOf, short, shown, words } from '../text';
import { alarmsText, isAlarm, isFromRule, ruleText } from './alarms';
import { rowOf } from './compare';
import { lossLine } from './losses';
import { FoldAll } from './picture';
import { useScalars } from './scalars';
import { useStatMap } from './stat_map';

const COLUMNS_MAX = 1024;
const ROWS_MAX = 1024;
const ALARMS_SHOWN = 200;

// Of which each tensor has its own size; the others are counts and shares.
const SIZES: readonly string[] = ['l2', 'rms', 'absmax', 'std', 'mean', 'update_ratio'];
const STATS = ['l2', 'rms', 'absmax', 'std', 'mean', 'nan', 'inf', 'zero_fraction', 'update_ratio', 'exponent_loss'] as const;
type Stat = (typeof STATS)[number];
const NAMES: Record<Stat, string> = {
  l2: 'L2 norm', rms: 'root mean square', absmax: 'largest magnitude', std: 'standard deviation', mean: 'magnitude of the mean', nan: 'number of NaN', inf: 'number of infinities', zero_fraction: 'share of zeros', update_ratio: 'update relative to weight', exponent_loss: 'share that fp16 would lose',
}; // prettier-ignore

export function RunView({ route }: { route: Route }) {
  const run = route.a;
  const stat: Stat = STATS.find((one) => one === route.stat) ?? 'l2';
  const runs = useLive(run ? [run] : null);
  const mine = runs.data?.runs.find((one) => one.run === run);
  const live = mine?.state === 'running';
  const newest = mine ? `${mine.attempts}/${mine.records}/${mine.state}` : '';
  const [took, setTook] = useState(0);
  const version = usePaced(newest, live, took);
  const alarmed = usePaced(mine ? `${mine.attempts}/${runs.data?.events.get(run) ?? 0}/${mine.state}` : '', live, 0);
  const request = { run, by: stat, columns: COLUMNS_MAX, rows: ROWS_MAX, ...(route.rank === '' ? {} : { ranks: [Number(route.rank)] }) };
  const there = run !== '' && mine !== undefined && version !== '';
  const query = useStatMap(there ? request : null, version);
  const scalars = useScalars(there ? run : null, version, String(mine?.attempts ?? 0));
  const events = useQuery('/api/v1/events', there ? { run } : null, 0, alarmed);
  useEffect(() => setTook(query.milliseconds), [query.milliseconds]);
  const seen = useRef('');
  if (mine) seen.current = run;
  if (run === '') {
    return (
      <Empty title="Pick a run">
        <p>
          Pick one in the <Link to={{ view: 'runs' }}>list of runs</Link>.
        </p>
      </Empty>
    );
  }
  if (runs.data && !mine) return <NoRun run={run} removed={seen.current === run} />;
  const bare = mine !== undefined && mine.records === 0;
  const wait = waiting(runs, 'Reading the run') ?? waiting(query, 'Reading the statistics');
  const told = (events.data?.records ?? []).filter(isFromRule);
  const alarms = told.filter(isAlarm);
  const ranks = (query.data?.map.ranks ?? []).map((rank) => [String(rank), `rank ${rank}`] as const);
  return (
    <>
      <RunHead route={{ ...route, b: '' }} state={mine?.state ?? ''} />
      <FirstAlarm alarms={alarms} route={route} />
      {bare ? <Bare live={live} /> : null}
      <div class="bar" hidden={bare}>
        <Choice label="Statistic" value={stat} options={STATS.map((one) => [one, NAMES[one]] as const)} onChange={(next) => go({ ...route, stat: next })} />
        <Choice
          label="Rank"
          value={route.rank}
          options={[['', 'all ranks'], ...(route.rank !== '' && !ranks.some(([rank]) => rank === route.rank) ? [[route.rank, `rank ${route.rank}`] as const] : []), ...ranks]}
          onChange={(rank) => go({ ...route, rank })}
        />
        {SIZES.includes(stat) ? <Choice label="Scale" value={route.scale} options={[['', 'relative to each tensor’s median'], ['absolute', 'one for all tensors']]} onChange={(scale) => go({ ...route, scale })} /> : null}
        <Filters route={route} rows={query.data?.map.rows ?? []} />
      </div>
      {bare ? null : wait ?? (query.data ? <Picture route={route} stat={stat} data={query.data} records={scalars} alarms={alarms} /> : null)}
      {query.data && query.error ? <p class="note">The newest steps are missing: {shown(query.error.message, 500)}</p> : null}
      {bare ? null : <Alarms told={told} route={route} loading={events.loading} />}
      <Commands asked={[{ statctl: command(...commandOf(stat, run), ...(route.rank === '' ? [] : ['--rank', route.rank])), url: urlOf('/api/v1/stat_map', { run, by: stat, ranks: route.rank }) }]} />
    </>
  );
}

/** What shows the same in a terminal, as far as one command does. */
function commandOf(stat: Stat, run: string): string[] {
  if (stat === 'exponent_loss') return ['statctl', 'tensor', run, '--exponents'];
  if (stat === 'update_ratio') return ['statctl', 'tensor', run, 'WEIGHT', '--stat', 'update_ratio'];
  return ['statctl', 'tensor', run, '--by', stat];
}

/** Why a statistic may have nothing to show. */
function missingText(stat: Stat): string {
  if (stat === 'update_ratio') return 'No updates of weights are known yet. They take two steps with weights and their sketches.';
  if (stat === 'exponent_loss') return 'No exponents were recorded. statagent.init(exponents="*@0-") records them.';
  return 'No tensor of this run has this statistic yet.';
}

function Filters({ route, rows }: { route: Route; rows: readonly { stage: string | null; kind: string | null }[] }) {
  const choices = (values: readonly (string | null)[], all: string) => [['', all] as const, ...[...new Set(values.map((value) => value ?? ''))].map((value) => [value, words(value)] as const)];
  return (
    <>
      <Choice label="Stage" value={route.stage} options={choices(rows.map((row) => row.stage), 'all stages')} onChange={(stage) => go({ ...route, stage, window: '' })} />
      <Choice label="Kind" value={route.only} options={choices(rows.map((row) => row.kind), 'all kinds')} onChange={(only) => go({ ...route, only, window: '' })} />
      <span class="grow" />
      {route.window ? (
        <button type="button" class="quiet" onClick={() => go({ ...route, window: '' })}>
          Show all
        </button>
      ) : null}
    </>
  );
}

interface PictureProps {
  route: Route;
  stat: Stat;
  data: NonNullable<ReturnType<typeof useStatMap>['data']>;
  records: Parameters<typeof lossLine>[0];
  alarms: readonly EventRow[];
}

function Chosen({ route, at, title, lead }: { route: Route; at: StatMap['rows'][number]; title: string; lead: string }) {
  return (
    <section class="cell" aria-label="The chosen cell">
      <h2>
        <bdi class="name">{title}</bdi>
      </h2>
      <p class="lead">{lead}</p>
      <p class="note">
        <Link to={{ view: 'tensor', a: route.a, tensor: at.activation, kind: at.kind ?? '', path: at.output_path, mode: at.mode, rank: route.rank }}>All statistics of this tensor</Link>
      </p>
    </section>
  );
}

function Picture({ route, stat, data, records, alarms }: PictureProps) {
  const box = useRef<HTMLDivElement>(null);
  const width = useWidth(box);
  const heat = useMemo(() => {
    const absolute = statHeatOf(data.map, data.sizes, route.stage, route.only);
    return route.scale === 'absolute' || !SIZES.includes(stat) ? absolute : relativeTo(absolute);
  }, [data, stat, route.stage, route.only, route.scale]);
  const window = useMemo(() => parseWindow(heat, route.window), [heat, route.window]);
  const lines = useMemo(() => [lossLine(records, 'a', '', heat, route.rank)], [records, heat, route.rank]);
  const marks = useMemo(() => marksOf(heat, alarms), [heat, alarms.length]);
  const fold = useMemo(() => folded(heat, route.open), [heat, route.open]);
  const behind = (cell: { row: number; column: number }) => ({ ...cell, row: rowBehind(heat, fold, cell.row, cell.column) });
  const drawn = (cell: { row: number; column: number }) => ({ ...cell, row: entryOf(fold.entries, cell.row) });
  if (heat.rows.length === 0 || heat.columns === 0) return <p class="note">{data.map.rows.length === 0 ? missingText(stat) : 'No tensor of this stage and kind has it.'}</p>;
  const row = rowOf(heat, route);
  const chosen = row >= 0 && route.step !== '' ? { row, column: columnOf(heat, Number(route.step)) } : null;
  const gutter = gutterOf(width);
  const levelAt = (cell: { row: number; column: number }) => heat.sizes[cell.row * heat.columns + cell.column] ?? 0;
  const stepText = (x: number) => (heat.first[Math.floor(x)] === undefined ? '' : `step ${heat.first[Math.floor(x)]}`);
  const text = (cell: { row: number; column: number }) => {
    const of = alarms.find((event) => marks.some((mark) => mark.row === cell.row && mark.column === cell.column) && event.fields['activation'] === heat.rows[cell.row]?.activation && event.step >= (heat.first[cell.column] ?? 0) && event.step <= (heat.last[cell.column] ?? 0));
    const times = heat.medians ? timesText(levelAt(cell), heat.medians[cell.row] ?? 0) : '';
    return `${NAMES[stat]} ${sizeText(levelAt(cell))}${times === '' ? '' : `, ${times}`}${of ? ` – alarm: ${shown(of.text, 200)}` : ''}`;
  };
  const choose = (cell: { row: number; column: number }) => {
    const at = heat.rows[cell.row];
    if (at) go({ ...route, tensor: at.activation, kind: at.kind ?? '', path: at.output_path, mode: at.mode, step: String(heat.first[cell.column] ?? 0) });
  };
  const at = chosen ? heat.rows[chosen.row] : undefined;
  return (
    <div class="picture" ref={box}>
      {lines[0] && lines[0].points.length > 0 ? (
        <Chart label="Loss" lines={lines} height={width < 600 ? 110 : 140} gutter={gutter} range={[window.column, window.column + window.columns]} stepText={stepText} axis={false} log={needsLog(lines)} />
      ) : (
        <p class="note">The run logged no loss.</p>
      )}
      <HeatMapView
        heat={fold.heat}
        window={windowDrawn(fold, window)}
        chosen={chosen && drawn(chosen)}
        onChoose={(cell) => choose(behind(cell))}
        onWindow={(next) => go({ ...route, window: windowText(heat, windowBehind(fold, next)) }, true)}
        gutter={gutter}
        height={heightOf(fold.heat, width < 600)}
        colours={heat.medians ? relativeColours : statColours}
        levelText={(cell) => text(behind(cell))}
        marks={marks.map(drawn)}
        fold={fold}
        onFold={(open) => go({ ...route, open }, true)}
      />
      <div class="bar under">
        <Scale heat={heat} alarms={marks.length > 0} />
        <span class="grow" />
        <FoldAll fold={fold} onOpen={(open) => go({ ...route, open }, true)} />
      </div>
      <p class="note">
        {count(heat.rows.length < data.map.rows.length ? heat.rows.length : data.map.tensors)} {data.map.tensors === 1 ? 'tensor' : 'tensors'} in the order of execution, {count(data.map.steps)} {data.map.steps === 1 ? 'step' : 'steps'}; each cell is the maximum over all ranks, micro-batches and calls.{mergedText(data.map)} Drag to zoom, click a cell for details.
      </p>
      {chosen && at ? <Chosen route={route} at={at} title={rowText(heat, chosen.row)} lead={`${stepsText(heat, chosen.column)}: ${text(chosen)}`} /> : null}
      <Behind heat={heat} stat={stat} onChoose={choose} />
    </div>
  );
}

/** Says which tensors and steps are shown together; the maximum counts, so nothing is hidden. */
function mergedText(map: StatMap): string {
  const each = (all: number, shown: number) => Math.ceil(all / Math.max(1, shown));
  const texts = [
    ...(map.tensors > map.rows.length ? [`up to ${count(each(map.tensors, map.rows.length))} tensors share a row`] : []),
    ...(map.steps > map.first_steps.length ? [`up to ${count(each(map.steps, map.first_steps.length))} steps share a column`] : []),
  ];
  return texts.length === 0 ? '' : ` ${texts.join(', and ').replace(/^up/, 'Up')}.`;
}

function Scale({ heat, alarms }: { heat: StatHeat; alarms: boolean }) {
  const theme = useTheme();
  const colours = (heat.medians ? relativeColours : statColours)(theme);
  const gradient = `linear-gradient(to right, ${Array.from({ length: 13 }, (_, i) => css(colours[2 + 21 * i]!)).join(', ')})`;
  const key = (level: number, text: string) => (
    <span class="legend-key">
      <i style={{ background: css(colours[level]!) }} />
      {text}
    </span>
  );
  const factor = heat.span ? short(10 ** (heat.span / 512), 2) : '';
  const ends = heat.high === 0 ? null : heat.span ? [`median ÷ ${factor}`, `median × ${factor}`] : [short(sizeOf(heat.low)), short(sizeOf(heat.high))];
  return (
    <div class="legend" role="img" aria-label={`Scale: ${ends ? `from ${ends[0]} to ${ends[1]}, logarithmic${heat.span ? ', the median of each tensor in the middle' : ', farther from the background is greater'}; ` : ''}zero next to the background, orange for NaN or infinities.`}>
      {key(1, 'zero')}
      {ends ? (
        <span class="legend-scale stat">
          <i style={{ background: gradient }} />
          <b>{ends[0]}</b>
          <b>{ends[1]}</b>
        </span>
      ) : null}
      {key(255, 'NaN or infinite')}
      {key(0, 'no data')}
      {alarms ? (
        <span class="legend-key">
          <i class="alarm-key" />
          alarm
        </span>
      ) : null}
    </div>
  );
}

function Behind({ heat, stat, onChoose }: { heat: StatHeat; stat: Stat; onChoose: (cell: { row: number; column: number }) => void }) {
  const [open, setOpen] = useState(false); // a table of many rows takes longer than the picture
  return (
    <details class="behind" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>The same as a table</summary>
      {open ? <Table heat={heat} stat={stat} onChoose={onChoose} /> : null}
    </details>
  );
}

function Table({ heat, stat, onChoose }: { heat: StatHeat; stat: Stat; onChoose: (cell: { row: number; column: number }) => void }) {
  const rows = useMemo(
    () =>
      heat.rows.map((_, row) => {
        const levels = heat.sizes.subarray(row * heat.columns, (row + 1) * heat.columns);
        const finite = levels.filter((level) => level > 0 && level !== NOT_FINITE);
        const broken = levels.indexOf(NOT_FINITE);
        return { row, least: finite.length > 0 ? Math.min(...finite) : 0, most: finite.length > 0 ? Math.max(...finite) : 0, broken };
      }),
    [heat],
  );
  return (
    <div class="scroll tall" tabIndex={0} role="region" aria-label="Statistic as a table">
      <table class="rows">
        <thead>
          <tr>
            <th scope="col">Tensor</th>
            <th scope="col">Stage</th>
            <th scope="col" class="number">
              Smallest {NAMES[stat]}
            </th>
            <th scope="col" class="number">
              Largest
            </th>
            <th scope="col">First NaN or infinite</th>
          </tr>
        </thead>
        <tbody>
          {rows.map(({ row, least, most, broken }) => (
            <tr key={row}>
              <th scope="row">
                <button type="button" class="sort" onClick={() => onChoose({ row, column: Math.max(0, broken) })}>
                  <bdi class="name">{rowText(heat, row)}</bdi>
                </button>
              </th>
              <td>{words(heat.rows[row]?.stage ?? '')}</td>
              <td class="number">{sizeText(least)}</td>
              <td class="number">{sizeText(most)}</td>
              <td>{broken < 0 ? '' : stepsText(heat, broken)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Bare({ live }: { live: boolean }) {
  return (
    <Empty title={live ? 'No records yet' : 'This run has no records'}>
      <p>
        Records {live ? 'appear here' : 'come'} with the first step after <code>statagent.watch(model)</code>, or from <code>statagent.observe(name, tensor)</code>.
      </p>
    </Empty>
  );
}

const tensorOf = (route: Route, event: EventRow): Partial<Route> => ({
  ...route, tensor: event.fields['activation'] ?? '', kind: event.fields['kind'] ?? '', path: event.fields['output_path'] ?? '', mode: '', step: String(event.step),
}); // prettier-ignore

/** Where the run began to break down: what one looks for first. */
function FirstAlarm({ alarms, route }: { alarms: readonly EventRow[]; route: Route }) {
  const first = alarms.reduce<EventRow | null>((found, event) => (found === null || event.step < found.step ? event : found), null);
  if (!first) return null;
  return (
    <section class="verdict bad" aria-label="First alarm">
      <p class="badge">
        <span aria-hidden="true">! </span>
        {alarmsText(alarms.length) + (alarms.length > 1 ? `, the first at step ${first.step}` : '')}
      </p>
      <p class="sentence">{sentenceOf(shown(first.text, 500))}</p>
      {first.fields['activation'] ? (
        <p class="next">
          <Link to={tensorOf(route, first)}>Show it on the map</Link>
        </p>
      ) : null}
    </section>
  );
}

/** All that the rules have said: also that an alarm is over, which is not counted. */
function Alarms({ told, route, loading }: { told: readonly EventRow[]; route: Route; loading: boolean }) {
  if (told.length === 0) return loading ? null : <p class="note">No alarms.</p>;
  const newest = told.slice(-ALARMS_SHOWN).reverse();
  return (
    <section aria-label="Alarms">
      <h2>{alarmsText(told.filter(isAlarm).length)}</h2>
      <div class="scroll tall" tabIndex={0} role="region" aria-label="Alarms, newest first">
        <table class="rows wrap alarms stack">
          <thead>
            <tr>
              <th scope="col" class="number">
                Step
              </th>
              <th scope="col" class="number">
                Rank
              </th>
              <th scope="col">Rule</th>
              <th scope="col">What</th>
            </tr>
          </thead>
          <tbody>
            {newest.map((event, i) => (
              <tr key={`${event.step}/${event.rank}/${event.unix_nanos}/${i}`}>
                <td class="number" data-label="Step">
                  {event.step}
                </td>
                <td class="number" data-label="Rank">
                  {event.rank}
                </td>
                <td class="word">{ruleText(event)}</td>
                <td class="long">
                  {event.fields['activation'] ? (
                    <Link to={tensorOf(route, event)}>{shown(event.text, 500)}</Link>
                  ) : (
                    shown(event.text, 500)
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {told.length > newest.length ? <p class="note">Only the newest {ALARMS_SHOWN}; <code>{command('statctl', 'show', route.a, '--events')}</code> lists all.</p> : null}
    </section>
  );
}
