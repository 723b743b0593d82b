// Keep and remove runs, for those with the scopes to do so.
import { useEffect, useRef, useState } from 'preact/hooks';
import { QueryError, tell } from '../api/client';
import type { RunSummary } from '../api/types';
import { Name } from '../parts/parts';
import { count, shown } from '../text';

interface Props {
  picked: readonly RunSummary[];
  kept: ReadonlySet<string>;
  onKept: () => void;
}

/** What the collector said to a change that it refused. */
function refusalText(error: unknown): string {
  if (!(error instanceof QueryError)) return 'The collector does not answer. Nothing was changed.';
  return shown(error.message, 1000);
}

export function Administration({ picked, kept, onKept }: Props) {
  const [refusal, setRefusal] = useState('');
  const [asking, setAsking] = useState<readonly RunSummary[]>([]);
  const names = picked.map((run) => run.run);
  useEffect(() => setRefusal(''), [names.join('/')]);
  const none = picked.length === 0;
  const allKept = !none && names.every((run) => kept.has(run));
  const keep = async () => {
    try {
      for (const run of names) await tell('/api/v1/keep', { run, keep: !allKept });
      setRefusal('');
    } catch (error) {
      setRefusal(refusalText(error));
    }
    onKept();
  };
  return (
    <>
      <button type="button" class="quiet" disabled={none} onClick={() => void keep()} title="Retention does not remove runs that are kept">
        {allKept ? 'Stop keeping' : 'Keep'}
      </button>
      <button type="button" class="quiet" disabled={none} onClick={() => setAsking(picked)}>
        Remove…
      </button>
      {refusal ? (
        <p class="refusal" role="alert">
          {refusal}
        </p>
      ) : null}
      {asking.length > 0 ? <Removal runs={asking} onEnd={() => setAsking([])} /> : null}
    </>
  );
}

/** Asks for a confirmation. Runs that cannot be removed stay in the dialog, with the reason. */
function Removal({ runs, onEnd }: { runs: readonly RunSummary[]; onEnd: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [busy, setBusy] = useState(false);
  const [refusals, setRefusals] = useState<ReadonlyMap<string, string>>(new Map());
  const [gone, setGone] = useState<ReadonlySet<string>>(new Set());
  useEffect(() => dialog.current?.showModal(), []);
  const left = runs.filter((run) => !gone.has(run.run));
  const remove = async () => {
    setBusy(true);
    const why = new Map<string, string>();
    const done = new Set(gone);
    for (const run of left) {
      try {
        await tell('/api/v1/rm', { run: run.run });
        done.add(run.run);
      } catch (error) {
        // Removed by somebody else meanwhile: what was wanted.
        if (error instanceof QueryError && error.status === 404) done.add(run.run);
        else why.set(run.run, refusalText(error));
      }
    }
    setBusy(false);
    setGone(done);
    setRefusals(why);
    if (why.size === 0) dialog.current?.close();
  };
  return (
    <dialog ref={dialog} class="removal" onClose={onEnd} aria-labelledby="removal-title">
      <h2 id="removal-title">{left.length === 1 ? 'Remove this run?' : `Remove these ${left.length} runs?`}</h2>
      <ul>
        {left.map((run) => (
          <li key={run.run}>
            <Name name={run.run} /> <span class="soft">{count(run.records)} records</span>
            {refusals.has(run.run) ? (
              <p class="refusal" role="alert">
                {refusals.get(run.run)}
              </p>
            ) : null}
          </li>
        ))}
      </ul>
      <p class="note">{left.length === 1 ? 'All its records are' : 'All their records are'} deleted from the collector. This cannot be undone.</p>
      <div class="bar">
        <button type="button" class="quiet" autofocus onClick={() => dialog.current?.close()}>
          Cancel
        </button>
        <button type="button" class="danger" disabled={busy} onClick={() => void remove()}>
          {busy ? 'Removing…' : left.length === 1 ? 'Remove run' : `Remove ${left.length} runs`}
        </button>
      </div>
    </dialog>
  );
}
