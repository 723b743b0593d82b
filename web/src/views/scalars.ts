// The scalars of a run, which grow while it trains: all of them once, then only those of its newest steps.
import { useEffect, useRef, useState } from 'preact/hooks';
import { ask } from '../api/client';
import type { ScalarPoint } from '../api/types';
import { lossName } from './losses';

/** What is known, with what was asked for again in place of what it had in these steps. */
export function grown(known: readonly ScalarPoint[], from: number, newest: readonly ScalarPoint[]): ScalarPoint[] {
  return [...known.filter((record) => record.step < from), ...newest];
}

/** The scalars that stand for the loss; undefined: not read yet. `launch` changes when the run starts over. */
export function useScalars(run: string | null, version: string, launch: string): readonly ScalarPoint[] | undefined {
  const key = run === null ? null : `${launch} ${run}`;
  const [state, setState] = useState<{ key: string | null; records: readonly ScalarPoint[] | undefined }>({ key, records: undefined });
  const known = useRef(state);
  known.current = state;
  useEffect(() => {
    if (run === null) return;
    const stop = new AbortController();
    const read = async () => {
      const old = known.current.key === key ? known.current.records : undefined;
      const name = old ? lossName(old) : null;
      if (!old || name === null) return (await ask('/api/v1/scalars', { run }, stop.signal)).records;
      const last = old.reduce((most, record) => Math.max(most, record.step), 0);
      return grown(old, last, (await ask('/api/v1/scalars', { run, name, steps: `${last}-` }, stop.signal)).records);
    };
    // What it cannot read now it reads with the next version; the view says itself that the collector is away.
    read().then(
      (records) => stop.signal.aborted || setState({ key, records }),
      () => undefined,
    );
    return () => stop.abort();
  }, [key, version]);
  return state.key === key ? state.records : undefined;
}
