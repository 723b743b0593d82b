// Where two runs diverge: the verdict, the heat map, and the losses above it.
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { urlOf } from '../api/client';
import type { DiffReport, RunSummary } from '../api/types';
import { useLive } from '../api/live';
import { useQuery, useRepeat } from '../api/use_query';
import { useBigHeat } from '../heat/big';
import { columnOf, heatOf, parseWindow, windowText, type Heat } from '../heat/model';
import { Choice, Commands, Empty, Link, NoRun, waiting } from '../parts/parts';
import { RunHead } from '../parts/run_head';
import { go, type Route } from '../route';
import { command, shown, words } from '../text';
import { Cell } from './cell';
import { lossLine } from './losses';
import { HeatPicture } from './picture';
import { foundIn, placesOf } from './places';
import { Share } from './share';
import { argumentsOf, comparisonOf, optionTexts, questionOf } from './question';
import { originOf, Remarks, Verdict } from './verdict';
import { ZoomPart, zoomedRuns, zoomNames } from './zoom';

/** What tells whether an answer is about these runs as they are. */
export const versionOf = (runs: readonly RunSummary[]) =>
  [...new Set(runs.map((run) => `${run.run}/${run.attempts}/${run.start_unix_nanos}/${run.records}/${run.state}`))].sort().join(' ');

export function rowOf(heat: Heat, route: Route): number {
  if (route.tensor === '') return -1;
  return heat.rows.findIndex((row) => row.activation === route.tensor && (row.kind ?? '') === route.kind && row.output_path === route.path && row.mode === (route.mode || row.mode));
}

function PickFirst() {
  return (
    <Empty title="Pick two runs">
      <p>
        Pick them in the <Link to={{ view: 'runs' }}>list of runs</Link>.
      </p>
    </Empty>
  );
}

export function CompareView({ route }: { route: Route }) {
  const there = route.a !== '' && route.b !== '';
  const runs = useLive(there ? [route.a, route.b, ...zoomNames(route.a, route.b)] : null);
  const mine = (runs.data?.runs ?? []).filter((run) => run.run === route.a || run.run === route.b);
  const live = mine.some((run) => run.state === 'running');
  // Asked at once, and again only when a run has more than the answer is about: a finished comparison costs nothing.
  const [read, setRead] = useState<string | null>(null);
  const [took, setTook] = useState(0);
  const again = useRepeat(runs.data ? versionOf(mine) : null, read, live, took);
  const diff = useQuery('/api/v1/diff', there ? comparisonOf(route) : null, 0, again);
  useEffect(() => {
    setRead(diff.loading ? null : versionOf(diff.data?.heat_map?.runs ?? []));
    setTook(diff.milliseconds);
  }, [diff.loading, diff.data, diff.error, diff.milliseconds]);
  const rankOptions = useRef<readonly (readonly [string, string])[]>([['', 'all ranks']]);
  const seen = useRef(new Set<string>());
  if (!there) return <PickFirst />;
  for (const run of mine) seen.current.add(run.run);
  const missing = runs.data && diff.error?.status === 404 ? [route.a, route.b].find((name) => !mine.some((run) => run.run === name)) : undefined;
  const wait = missing === undefined ? waiting(diff, 'Comparing the runs') : <NoRun run={missing} removed={seen.current.has(missing)} />;
  const report = diff.data;
  if (report && route.rank === '') rankOptions.current = [['', 'all ranks'], ...report.ranks.map((rank) => [String(rank), `rank ${rank}`] as const)];
  const listed = rankOptions.current.some(([rank]) => rank === route.rank);
  const ranks = listed ? rankOptions.current : [...rankOptions.current, [route.rank, `rank ${route.rank}`] as const];
  const asked = urlOf('/api/v1/diff', questionOf(route));
  const options = optionTexts(route);
  return (
    <>
      <RunHead route={route} state={live ? 'running' : ''}>
        <Link to={{ ...route, a: route.b, b: route.a, tensor: '', step: '', place: '', window: '' }}>Swap</Link>
      </RunHead>
      {options.length > 0 ? (
        <p class="options">
          <span class="soft">Compared with</span>
          {options.map((text) => (
            <span key={text} class="option">
              {shown(text, 120)}
            </span>
          ))}
          <Link to={{ view: 'compare', a: route.a, b: route.b, rank: route.rank }}>Without options</Link>
        </p>
      ) : null}
      {wait ?? (report ? <Report route={route} report={report} ranks={ranks} zoomed={runs.data ? zoomedRuns(route.a, route.b, runs.data.runs) : null} /> : null)}
      <Commands asked={[{ statctl: command('statctl', 'diff', ...argumentsOf(route)), url: asked }]} copies={diff.data === null} />
    </>
  );
}

function Report({ route, report, ranks, zoomed }: { route: Route; report: DiffReport; ranks: readonly (readonly [string, string])[]; zoomed: readonly [string, string] | null }) {
  const origin = originOf(report);
  const map = report.heat_map;
  const filters = useMemo(() => {
    const stages = [...new Set((map?.rows ?? []).map((row) => row.stage ?? ''))];
    const kinds = [...new Set((map?.rows ?? []).map((row) => row.kind ?? ''))];
    return { stages, kinds };
  }, [map]);
  const heat = useMemo(() => (map ? heatOf(map, route.stage, route.only) : null), [map, route.stage, route.only]);
  return (
    <>
      <Verdict report={report} zoom={origin && zoomed ? <ZoomPart runs={zoomed} at={origin} /> : null}>
        <Share route={route} report={report} />
      </Verdict>
      {heat && map ? (
        <>
          <div class="bar">
            <Choice label="Rank" value={route.rank} options={ranks} onChange={(rank) => go({ ...route, rank })} />
            <Choice
              label="Stage"
              value={route.stage}
              options={[['', 'all stages'], ...filters.stages.map((stage) => [stage, words(stage)] as const)]}
              onChange={(stage) => go({ ...route, stage, window: '' })}
            />
            <Choice
              label="Kind"
              value={route.only}
              options={[['', 'all kinds'], ...filters.kinds.map((kind) => [kind, words(kind)] as const)]}
              onChange={(only) => go({ ...route, only, window: '' })}
            />
            <span class="grow" />
            {route.window ? (
              <button type="button" class="quiet" onClick={() => go({ ...route, window: '' })}>
                Show all
              </button>
            ) : null}
          </div>
          {heat.rows.length > 0 && heat.columns > 0 ? <Picture route={route} report={report} merged={heat} /> : <p class="note">No tensor of this stage and kind was compared.</p>}
        </>
      ) : null}
      <Remarks report={report} />
    </>
  );
}

/** Whether the answer's map has steps or tensors merged, so that a closer look shows more. */
function isMerged(report: DiffReport): boolean {
  const map = report.heat_map;
  return map !== null && (map.tensors > map.rows.length || map.steps > map.first_steps.length);
}

function Picture({ route, report, merged }: { route: Route; report: DiffReport; merged: Heat }) {
  const filtered = route.stage !== '' || route.only !== '';
  const { first_only: _, ...question } = questionOf(route);
  const big = useBigHeat(isMerged(report) && !filtered ? question : null, report);
  const heat = big ?? merged;
  const losses = [useQuery('/api/v1/scalars', { run: route.a }, 0, report), useQuery('/api/v1/scalars', { run: route.b }, 0, report)] as const;
  const window = useMemo(() => parseWindow(heat, route.window), [heat, route.window]);
  const lines = useMemo(
    () => [lossLine(losses[0].data?.records, 'a', shown(route.a, 40), heat, route.rank), lossLine(losses[1].data?.records, 'b', shown(route.b, 40), heat, route.rank)],
    [losses[0].data, losses[1].data, heat, route.rank, route.a, route.b],
  );
  const row = rowOf(heat, route);
  const chosen = row >= 0 && route.step !== '' ? { row, column: columnOf(heat, Number(route.step)) } : null;
  const choose = (cell: { row: number; column: number }, replace = false) => {
    const at = heat.rows[cell.row];
    const first = heat.first[cell.column] ?? 0;
    const found = foundIn(report, at, first, heat.last[cell.column] ?? first); // what the verdict and the cell's colour are about
    if (at) go({ ...route, tensor: at.activation, kind: at.kind ?? '', path: at.output_path, mode: at.mode, step: String(found?.step ?? first), place: found ? placesOf(found).a : '' }, replace);
  };
  return (
    <HeatPicture
      report={report}
      heat={heat}
      table={merged}
      lines={lines}
      reading={losses[0].loading || losses[1].loading}
      window={window}
      chosen={chosen}
      onChoose={choose}
      onWindow={(next) => go({ ...route, window: windowText(heat, next) }, true)}
      open={route.open}
      onOpen={(open) => go({ ...route, open }, true)}
    >
      {chosen ? (
        <Cell
          runA={route.a}
          runB={route.b}
          report={report}
          rank={route.rank}
          heat={heat}
          row={chosen.row}
          column={chosen.column}
          step={Number(route.step)}
          place={route.place}
          onMove={(next) => choose({ row: next, column: chosen.column }, true)}
          onPlace={(place) => go({ ...route, place }, true)}
        />
      ) : null}
    </HeatPicture>
  );
}
