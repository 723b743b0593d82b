// All runs: filter, sort, pick two to compare.
import { Fragment } from 'preact';
import { useEffect, useMemo, useState } from 'preact/hooks';
import { useLive } from '../api/live';
import { useLosses } from '../api/losses';
import { useQuery } from '../api/use_query';
import type { RunSummary } from '../api/types';
import { Commands, copying, Empty, Link, Menu, Name, waiting } from '../parts/parts';
import { useSlice } from '../parts/slice';
import { Spark } from '../parts/spark';
import { go, type Route } from '../route';
import { ago, command, count, duration, quoted } from '../text';
import { Administration } from './administration';

type Column = 'run' | 'state' | 'ranks' | 'steps' | 'records' | 'dropped' | 'start';
const COLUMNS: readonly (readonly [Column, string])[] = [
  ['run', 'Run'],
  ['state', 'State'],
  ['ranks', 'Ranks'],
  ['steps', 'Steps'],
  ['records', 'Records'],
  ['dropped', 'Lost'],
  ['start', 'Began'],
];

function keyOf(run: RunSummary, column: Column): string | number {
  return column === 'start' ? run.start_unix_nanos : run[column];
}

/** "1", or "1 of 2" while ranks are missing. A collector of an earlier release does not say how many record. */
function rankCount(run: RunSummary): string {
  const expected = run.ranks_expected || run.world_size;
  return run.ranks === expected ? `${run.ranks}` : `${run.ranks} of ${expected}`;
}

/** The runs without the twins of others among them, and how many twins each has. Twins measure rounding; nobody compares with them. */
export function withoutTwins(runs: readonly RunSummary[]): { runs: RunSummary[]; twins: ReadonlyMap<string, number> } {
  const names = new Set(runs.map((run) => run.run));
  const twins = new Map<string, number>();
  for (const run of runs) if (names.has(run.twin_of)) twins.set(run.twin_of, (twins.get(run.twin_of) ?? 0) + 1);
  return { runs: runs.filter((run) => !names.has(run.twin_of)), twins };
}

export function sorted(runs: readonly RunSummary[], filter: string, sort: string): RunSummary[] {
  const wanted = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const kept = runs.filter((run) => wanted.every((word) => `${run.run} ${run.state}`.toLowerCase().includes(word)));
  const down = sort.startsWith('-');
  const name = (down ? sort.slice(1) : sort) as Column;
  const column = COLUMNS.some(([one]) => one === name) ? name : 'start';
  const sign = (sort === '' ? true : down) ? -1 : 1;
  return kept.sort((x, y) => {
    const p = keyOf(x, column);
    const q = keyOf(y, column);
    return (p < q ? -1 : p > q ? 1 : 0) * sign || (x.run < y.run ? -1 : 1);
  });
}

/** The cells of a run's loss and alarms; empty until they are known. */
function Loss({ run, known }: { run: string; known: ReturnType<typeof useLosses> extends ReadonlyMap<string, infer K> ? K | undefined : never }) {
  const loss = known?.loss;
  return (
    <>
      <td class="c-loss">{loss ? <Spark loss={loss} /> : null}</td>
      <td class="number c-alarms">
        {loss && loss.alarms > 0 ? (
          <Link to={{ view: 'run', a: run }}>
            <b>{count(loss.alarms)}</b>
          </Link>
        ) : loss ? (
          <span class="soft">0</span>
        ) : null}
      </td>
    </>
  );
}

const DEFAULT_ADDRESSES = ['127.0.0.1:7433', '[::1]:7433', 'localhost:7433'];

/** How a program reaches the collector from where this page is looked at; empty: it finds the collector by itself, or nothing is known. */
export function addressFor(grpc: string, host: string): string {
  const found = /^(.*):(\d+)$/.exec(grpc);
  if (!found) return grpc;
  const here = ['localhost', '127.0.0.1', '[::1]'].includes(host);
  const bound = found[1]!;
  const address = `${['0.0.0.0', '[::]'].includes(bound) ? (here ? '127.0.0.1' : host) : bound}:${found[2]}`;
  return DEFAULT_ADDRESSES.includes(address) ? '' : address;
}

/** What one sees first of all: the command that records a run. */
function FirstRun({ address }: { address: string }) {
  const to = addressFor(address, location.hostname);
  const record = `statctl run base${to === '' ? '' : ` --collector ${quoted(to)}`} -- python train.py`;
  return (
    <Empty title="Record a run">
      <p>Put statctl run and a name before the command of a training. The script stays as it is.</p>
      <div class="commands">
        <div class="grow">
          <code tabIndex={0} aria-label="The command that records a run">
            {record.split(' ').flatMap((word, i) => [i > 0 ? ' ' : '', <span class="whole">{word}</span>])}
          </code>
        </div>
        <Menu label="Copy" items={[copying('statctl command', record)]} />
      </div>
      <p class="waiting" role="status">
        <span class="pulse" aria-hidden="true" />
        Waiting for the first run…
      </p>
    </Empty>
  );
}

/** A golden that `statctl diff` has loaded, by the name that it gives it: nobody trained it here. */
export const isGolden = (run: string) => /^golden-[0-9a-f]{8}-\d+$/.test(run);

const EVERY_RUN: readonly string[] = [];
const NO_EVENTS: ReadonlyMap<string, number> = new Map();

/** The table's titles. A click sorts by a column; by the same one again, the other way round. */
function Titles({ route }: { route: Route }) {
  const down = route.sort === '' || route.sort.startsWith('-');
  return (
    <thead>
      <tr>
        <th scope="col">
          <span class="hidden">Pick</span>
        </th>
        {COLUMNS.map(([column, title]) => {
          const current = (route.sort.replace('-', '') || 'start') === column;
          return (
            <Fragment key={column}>
              <th scope="col" class={`c-${column}`} {...(current ? { 'aria-sort': down ? ('descending' as const) : ('ascending' as const) } : {})}>
                <button type="button" class="sort" onClick={() => go({ ...route, sort: current && down ? column : `-${column}` }, true)}>
                  {title}
                  <span aria-hidden="true">{current ? (down ? ' ↓' : ' ↑') : ''}</span>
                </button>
              </th>
              {column === 'state' ? (
                <>
                  <th scope="col" class="c-loss">
                    Loss
                  </th>
                  <th scope="col" class="number c-alarms">
                    Alarms
                  </th>
                </>
              ) : null}
            </Fragment>
          );
        })}
      </tr>
    </thead>
  );
}

interface Shown {
  picked: readonly string[]; // A, then B
  kept: ReadonlySet<string>;
  twins: ReadonlyMap<string, number>;
  losses: ReturnType<typeof useLosses>;
  onPick: (run: string) => void;
}

/** The cells of one run. */
function RunCells({ run, shown: { picked, kept, twins, losses, onPick } }: { run: RunSummary; shown: Shown }) {
  const place = picked.indexOf(run.run);
  return (
    <>
      <td>
        <input type="checkbox" checked={place >= 0} aria-label={`Pick ${run.run.slice(0, 100)}`} onChange={() => onPick(run.run)} />
      </td>
      <td class="c-run">
        <Link to={{ view: 'run', a: run.run }}>
          <Name name={run.run} longest={60} />
        </Link>
        {twins.has(run.run) ? <span class="soft"> +{twins.get(run.run)} {twins.get(run.run) === 1 ? 'twin' : 'twins'}</span> : null}
        {kept.has(run.run) ? <span class="kept">kept</span> : null}
        {place >= 0 ? <span class={`key ${place === 0 ? 'a' : 'b'}`}>{place === 0 ? 'A' : 'B'}</span> : null}
      </td>
      <td class="c-state">
        <span class={`dot ${run.state}`} aria-hidden="true" />
        <span class="state-text">{run.state}</span>
      </td>
      <Loss run={run.run} known={losses.get(run.run)} />
      <td class="number c-ranks">{rankCount(run)}</td>
      <td class="number c-steps">
        {count(run.steps)}
        {run.first_step !== null && run.last_step !== null ? <span class="soft"> {run.first_step}–{run.last_step}</span> : null}
      </td>
      <td class="number c-records">{count(run.records)}</td>
      <td class="number c-dropped">{run.dropped > 0 ? <b>{count(run.dropped)}</b> : <span class="soft">0</span>}</td>
      <td class="c-start">
        {ago(run.start_unix_nanos)}
        <span class="soft"> for {duration((run.end_unix_nanos - run.start_unix_nanos) / 1e9)}</span>
      </td>
    </>
  );
}

/** As many rows as are in sight: of `count` runs, those of the slice. */
function RunsTable({ route, runs, count, slice, shown }: { route: Route; runs: readonly RunSummary[]; count: number; slice: ReturnType<typeof useSlice>; shown: Shown }) {
  return (
    <div class={slice.sliced ? 'scroll tall sliced' : 'scroll'} tabIndex={0} role="region" aria-label="Runs" ref={slice.box} onScroll={slice.onScroll}>
      <table class="rows runs" aria-rowcount={slice.sliced ? count + 1 : undefined}>
        <Titles route={route} />
        <tbody>
          {slice.before > 0 ? <tr aria-hidden="true" style={{ height: `${slice.before}px` }} /> : null}
          {runs.map((run, i) => (
            <tr key={run.run} ref={i === 0 ? slice.row : null} aria-rowindex={slice.sliced ? slice.first + i + 2 : undefined} class={shown.picked.includes(run.run) ? 'picked' : ''} onClick={(event) => !(event.target as Element).closest('a, input') && shown.onPick(run.run)}>
              <RunCells run={run} shown={shown} />
            </tr>
          ))}
          {slice.after > 0 ? <tr aria-hidden="true" style={{ height: `${slice.after}px` }} /> : null}
        </tbody>
      </table>
    </div>
  );
}

function Lead({ picked: [a, b] }: { picked: readonly string[] }) {
  if (a === undefined) return <p class="lead">Pick two runs to see where they diverge.</p>;
  if (b === undefined) return <p class="lead">Pick a second run to compare it with.</p>;
  return (
    <p class="lead">
      Compare <Name name={a} longest={40} /> with <Name name={b} longest={40} />, or pick others.
    </p>
  );
}

export function RunsView({ route }: { route: Route }) {
  const query = useLive(EVERY_RUN);
  const [changes, setChanges] = useState(0); // of the runs that are kept, made here
  const status = useQuery('/api/v1/status', {}, 30_000, changes);
  const kept = useMemo(() => new Set(status.data?.retention?.kept ?? []), [status.data]);
  const [picked, setPicked] = useState<string[]>([]);
  useEffect(() => setPicked([route.a, route.b].filter(Boolean)), [route.a, route.b]);
  const { runs: known, twins } = useMemo(() => withoutTwins(query.data?.runs ?? []), [query.data]);
  const all = useMemo(() => (route.only === 'goldens' ? known : known.filter((run) => !isGolden(run.run) || run.run === route.a || run.run === route.b)), [known, route.only, route.a, route.b]);
  const goldens = known.length - all.length;
  const runs = useMemo(() => sorted(all, route.filter, route.sort), [all, route.filter, route.sort]);
  const slice = useSlice(runs.length);
  const visible = runs.slice(slice.first, slice.end);
  const losses = useLosses(visible, query.data?.events ?? NO_EVENTS);
  const wait = waiting(query, 'Reading the runs');
  if (wait) return wait;
  if (all.length === 0) return <FirstRun address={status.data?.grpc_address ?? ''} />;
  const pick = (run: string) => setPicked((old) => (old.includes(run) ? old.filter((one) => one !== run) : [...old, run].slice(-2)));
  const there = picked.filter((run) => all.some((one) => one.run === run));
  const [a, b] = there;
  const ready = a !== undefined && b !== undefined;
  return (
    <>
      <header class="view-head">
        <h1>Runs</h1>
        <Lead picked={there} />
      </header>
      <div class="bar">
        <label class="choice grow">
          <span>Filter</span>
          <input type="search" value={route.filter} placeholder="name or state" onInput={(event) => go({ ...route, filter: event.currentTarget.value }, true)} />
        </label>
        <Administration picked={all.filter((run) => there.includes(run.run))} kept={kept} onKept={() => setChanges((old) => old + 1)} />
        <button type="button" class="quiet" title="Exchange A and B" disabled={!ready} onClick={() => ready && setPicked([b, a])}>
          Swap
        </button>
        <button type="button" class="main" disabled={!ready} onClick={() => ready && go({ view: 'compare', a, b })}>
          Compare
        </button>
      </div>
      <RunsTable route={route} runs={visible} count={runs.length} slice={slice} shown={{ picked: there, kept, twins, losses, onPick: pick }} />
      {runs.length === 0 ? <p class="note">No run matches the filter.</p> : null}
      {slice.sliced ? <p class="note">{count(runs.length)} runs{runs.length < all.length ? ` of ${count(all.length)}` : ''}.</p> : null}
      <p class="note">Click the name of a run to see its statistics, alarms, configuration, ranks and memory.</p>
      {goldens > 0 ? (
        <p class="note">
          {goldens === 1 ? 'A golden that a comparison has loaded is' : `${count(goldens)} goldens that comparisons have loaded are`} not listed. <Link to={{ ...route, only: 'goldens' }}>Show</Link>
        </p>
      ) : null}
      <Commands asked={[{ statctl: command('statctl', 'runs'), url: '/api/v1/runs' }]} />
    </>
  );
}
