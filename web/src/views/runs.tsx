// All runs: filter, sort, pick two.
import { useEffect, useState } from 'preact/hooks';
import { useQuery } from '../api/use_query';
import type { RunSummary } from '../api/types';
import { Commands, Empty, Link, Name, waiting } from '../parts/parts';
import { go, type Route } from '../route';
import { ago, command, count, duration } from '../text';

const SHOWN_MAX = 500; // rows in the document at once; the filter finds the others

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

export function RunsView({ route }: { route: Route }) {
  const query = useQuery('/api/v1/runs', {}, 3000);
  const [picked, setPicked] = useState<string[]>([]);
  useEffect(() => setPicked([route.a, route.b].filter(Boolean)), [route.a, route.b]);
  const wait = waiting(query, 'Reading the runs');
  if (wait) return wait;
  const all = query.data?.runs ?? [];
  if (all.length === 0) {
    return (
      <Empty title="No run yet">
        <p>
          Start a training with <code>statagent</code> under a name, for example <code>STATAGENT_RUN=base</code>. It appears here as soon as its first rank
          connects.
        </p>
      </Empty>
    );
  }
  const runs = sorted(all, route.filter, route.sort);
  const pick = (run: string) => setPicked((old) => (old.includes(run) ? old.filter((one) => one !== run) : [...old, run].slice(-2)));
  const [a, b] = picked;
  const ready = a !== undefined && b !== undefined;
  return (
    <>
      <header class="view-head">
        <h1>Runs</h1>
        <p class="lead">{ready ? 'Two runs are picked.' : picked.length === 1 ? 'Pick the run to compare with it.' : 'Pick two runs to see where they part.'}</p>
      </header>
      <div class="bar">
        <label class="choice grow">
          <span>Filter</span>
          <input type="search" value={route.filter} placeholder="name or state" onInput={(event) => go({ ...route, filter: event.currentTarget.value }, true)} />
        </label>
        <button type="button" class="main" disabled={!ready} onClick={() => ready && go({ view: 'compare', a, b })}>
          {ready ? (
            <>
              Compare <Name name={a} longest={24} /> with <Name name={b} longest={24} />
            </>
          ) : (
            'Compare'
          )}
        </button>
        {ready ? (
          <button type="button" class="quiet" onClick={() => setPicked([b, a])}>
            Swap
          </button>
        ) : null}
      </div>
      <div class="scroll" tabIndex={0} role="region" aria-label="Runs">
        <table class="rows">
          <thead>
            <tr>
              <th scope="col">
                <span class="hidden">Pick</span>
              </th>
              {COLUMNS.map(([column, title]) => {
                const current = (route.sort.replace('-', '') || 'start') === column;
                const down = route.sort === '' || route.sort.startsWith('-');
                return (
                  <th key={column} scope="col" class={`c-${column}`} {...(current ? { 'aria-sort': down ? ('descending' as const) : ('ascending' as const) } : {})}>
                    <button type="button" class="sort" onClick={() => go({ ...route, sort: current && down ? column : `-${column}` }, true)}>
                      {title}
                      <span aria-hidden="true">{current ? (down ? ' ↓' : ' ↑') : ''}</span>
                    </button>
                  </th>
                );
              })}
            </tr>
          </thead>
          <tbody>
            {runs.slice(0, SHOWN_MAX).map((run) => {
              const place = picked.indexOf(run.run);
              return (
                <tr key={run.run} class={place >= 0 ? 'picked' : ''} onClick={(event) => !(event.target as Element).closest('a, input') && pick(run.run)}>
                  <td>
                    <input type="checkbox" checked={place >= 0} aria-label={`Pick ${run.run.slice(0, 100)}`} onChange={() => pick(run.run)} />
                  </td>
                  <td class="c-run">
                    <Link to={{ view: 'run', a: run.run }}>
                      <Name name={run.run} />
                    </Link>
                    {place >= 0 ? <span class={`key ${place === 0 ? 'a' : 'b'}`}>{place === 0 ? 'A' : 'B'}</span> : null}
                  </td>
                  <td class="c-state">
                    <span class={`dot ${run.state}`} aria-hidden="true" />
                    {run.state}
                  </td>
                  <td class="number c-ranks">{run.ranks === run.world_size ? run.ranks : `${run.ranks} of ${run.world_size}`}</td>
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
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      {runs.length === 0 ? <p class="note">No run has this in its name or state.</p> : null}
      {runs.length > SHOWN_MAX ? (
        <p class="note">
          The first {SHOWN_MAX} of {count(runs.length)}; the filter finds the others.
        </p>
      ) : null}
      <p class="note">
        One run alone: {picked[0] ? <Link to={{ view: 'ranks', a: picked[0] }}>its ranks</Link> : 'pick it to see its ranks'}
        {picked[0] ? (
          <>
            {' '}
            and <Link to={{ view: 'config', a: picked[0] }}>its configuration</Link>
          </>
        ) : null}
        .
      </p>
      <Commands statctl={command('statctl', 'runs')} url="/api/v1/runs" />
    </>
  );
}
