// The operators that make the difference within the root's module, of two runs that have zoomed into it (docs/zoom.md).
import { useState } from 'preact/hooks';
import type { Divergence, RunSummary, ZoomCall, ZoomOperator } from '../api/types';
import { useQuery } from '../api/use_query';
import { waiting } from '../parts/parts';
import { shown, words } from '../text';
import { StatsTable } from './stats';

const CALLS_MAX = 8; // that are shown: one for each rank, micro-batch and call

const NAME_MAX = 128; // of a run
const OUTCOMES: Record<string, string> = { operator: 'one differs', block: 'the runs have different ones', inputs: 'only what goes in differs' };

/** The runs that `statctl zoom --train` makes of two; none if their names would be too long. */
export const zoomNames = (a: string, b: string) => [`${a}.zoom`, `${b}.zoom`].filter((name) => name.length <= NAME_MAX);

/** The runs whose zoom belongs to a comparison: those that `statctl zoom --train` made of both, or the two themselves. */
export function zoomedRuns(a: string, b: string, runs: readonly RunSummary[]): readonly [string, string] {
  const made = zoomNames(a, b);
  const [madeA, madeB] = made.filter((name) => runs.some((run) => run.run === name && run.state !== 'running'));
  return madeA && madeB ? [madeA, madeB] : [a, b];
}

/** An operator that both runs have, or one of a block, which only one of them has. */
interface Row {
  a: ZoomOperator | undefined;
  b: ZoomOperator | undefined;
}

export function rowsOf(call: ZoomCall): Row[] {
  if (call.a.length === 1 && call.b.length === 1 && call.outcome !== 'block') return [{ a: call.a[0], b: call.b[0] }];
  return [...call.a.map((a) => ({ a, b: undefined })), ...call.b.map((b) => ({ a: undefined, b }))];
}

/** Whether the zoom is of the root's module, or of one that it is a part of. */
export const isAround = (module: string, root: string) => root === module || root.startsWith(`${module}.`);

type Runs = readonly [string, string];

function useOutput(run: string, call: ZoomCall, of: ZoomOperator | undefined) {
  const asked = of && { run, activation: `${call.module}/#${of.number} ${of.name}`, kind: 'operator' as const, output_path: '0', steps: String(call.step), ranks: [call.rank] };
  const query = useQuery('/api/v1/series', asked ?? null);
  const found = query.data?.records.find((point) => point.micro_batch === call.micro_batch && point.call === call.call);
  return { wait: asked && !query.error ? waiting(query, 'Reading the operator') : null, stats: found?.stats ?? null };
}

function Results({ runs: [runA, runB], call, row }: { runs: Runs; call: ZoomCall; row: Row }) {
  const a = useOutput(runA, call, row.a);
  const b = useOutput(runB, call, row.b);
  if (a.wait || b.wait) return <>{a.wait ?? b.wait}</>;
  return a.stats || b.stats ? <StatsTable a={a.stats} b={b.stats} runA={runA} runB={runB} /> : <p class="note">Of its result nothing is recorded.</p>;
}

function Place({ of, run }: { of: ZoomOperator; run: string }) {
  return (
    <span class="soft">
      {run ? `${shown(run, 40)}: ` : ''}
      {of.place ? shown(of.place, 200) : 'no line of your code'}
      {of.function ? ` in ${shown(of.function, 120)}` : ''}
    </span>
  );
}

function Operator({ runs, call, row }: { runs: Runs; call: ZoomCall; row: Row }) {
  const [open, setOpen] = useState(false);
  const { a, b } = row;
  const first = a ?? b;
  if (!first) return null;
  const apart = a && b && (a.place !== b.place || a.function !== b.function);
  const only = a && b ? '' : runs[a ? 0 : 1];
  return (
    <li>
      <button type="button" class="operator" aria-expanded={open} onClick={() => setOpen(!open)}>
        <bdi class="name">{shown(first.name, 120)}</bdi> <Place of={first} run={apart ? runs[0] : only} />
        {apart ? <Place of={b} run={runs[1]} /> : null}
      </button>
      {open ? (
        <>
          <p class="note">{shown(first.arguments.join(', '), 1000)}</p>
          <Results runs={runs} call={call} row={row} />
        </>
      ) : null}
    </li>
  );
}

function Call({ runs, call }: { runs: Runs; call: ZoomCall }) {
  return (
    <>
      <p>{shown(call.text[0] ?? '', 1000)}</p>
      {call.differences.map((one) => (
        <p key={one.name} class="setting">
          <bdi class="name">{shown(one.name, 200)}</bdi>: <bdi>{shown(one.a, 200)}</bdi> <span aria-label="in the second run">→</span> <bdi>{shown(one.b, 200)}</bdi>
        </p>
      ))}
      <ul class="operators">
        {rowsOf(call).map((row) => (
          <Operator key={`${row.a?.number}/${row.b?.number}`} runs={runs} call={call} row={row} />
        ))}
      </ul>
    </>
  );
}

/** The pass of the root. Nothing, unless both runs have zoomed into the module, or one around it, at that step. */
export function ZoomPart({ runs, at }: { runs: Runs; at: Divergence }) {
  const of_module = at.stage === 'forward' && at.kind === 'output';
  const zoom = useQuery('/api/v1/zoom', of_module ? { run_a: runs[0], run_b: runs[1], steps: String(at.step) } : null);
  const calls = (zoom.data?.calls ?? []).filter((call) => call.pass === at.stage && isAround(call.module, at.activation));
  if (calls.length === 0) return null;
  const outcomes = [...new Set(calls.map((call) => OUTCOMES[call.outcome ?? ''] ?? words(call.outcome)))];
  return (
    <details class="zoom">
      <summary>Operators in it: {outcomes.join(', ')}</summary>
      {calls.slice(0, CALLS_MAX).map((call) => (
        <Call key={`${call.rank}/${call.micro_batch}/${call.call}/${call.pass}`} runs={runs} call={call} />
      ))}
      {calls.length > CALLS_MAX ? <p class="note">And {calls.length - CALLS_MAX} more calls: statctl zoom has them all.</p> : null}
    </details>
  );
}
