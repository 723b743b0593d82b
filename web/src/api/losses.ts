// The loss and the alarms of the runs that a list shows: asked for together, and again when one of them has more.
import { useEffect, useRef, useState } from 'preact/hooks';
import { ask } from './client';
import type { RunLoss, RunSummary } from './types';
import { SHARE } from './use_query';

const RUNS_MAX = 100; // in a question
const POINTS = 40;
const SETTLE_MS = 120; // a list that is being scrolled
const RETRY_MS = 5000;
const PACE_MIN_MS = 2000;
const PACE_MAX_MS = 60_000;

interface Known {
  version: string;
  loss: RunLoss | null; // null: the collector no longer has the run
}

const versionOf = (run: RunSummary, events: ReadonlyMap<string, number>) => `${run.attempts}/${run.records}/${run.state}/${events.get(run.run) ?? 0}`;

/** What is unknown or outdated of these runs: what nothing is known of comes first. */
export function toAsk(runs: readonly RunSummary[], events: ReadonlyMap<string, number>, known: ReadonlyMap<string, Known>): { names: string[]; urgent: boolean } {
  const missing = runs.filter((run) => !known.has(run.run));
  const outdated = runs.filter((run) => known.has(run.run) && known.get(run.run)!.version !== versionOf(run, events));
  return { names: [...missing, ...outdated].slice(0, RUNS_MAX).map((run) => run.run), urgent: missing.length > 0 };
}

/** By name; what is not known yet is not in it. `runs`: only those that can be seen. */
export function useLosses(runs: readonly RunSummary[], events: ReadonlyMap<string, number>): ReadonlyMap<string, Known> {
  const [known, setKnown] = useState<ReadonlyMap<string, Known>>(new Map());
  const [failures, setFailures] = useState(0);
  const next = useRef(0); // when live runs may be asked for again
  const busy = useRef(false);
  const key = runs.map((run) => `${run.run}=${versionOf(run, events)}`).join(' ');
  useEffect(() => {
    const { names, urgent } = toAsk(runs, events, known);
    if (names.length === 0 || busy.current) return;
    const versions = new Map(runs.map((run) => [run.run, versionOf(run, events)]));
    const read = async () => {
      busy.current = true;
      const began = performance.now();
      try {
        const answer = await ask('/api/v1/losses', { runs: names, points: POINTS });
        const found = new Map(answer.runs.map((loss) => [loss.run, loss]));
        const took = performance.now() - began;
        next.current = Date.now() + Math.min(PACE_MAX_MS, Math.max(PACE_MIN_MS, SHARE * took));
        busy.current = false;
        setKnown((old) => new Map([...old, ...names.map((name) => [name, { version: versions.get(name) ?? '', loss: found.get(name) ?? null }] as const)]));
      } catch {
        // The list itself says that the collector is away.
        next.current = Date.now() + RETRY_MS;
        busy.current = false;
        setFailures((old) => old + 1);
      }
    };
    const wait = urgent && failures === 0 ? SETTLE_MS : Math.max(SETTLE_MS, next.current - Date.now());
    const timer = window.setTimeout(() => void read(), known.size === 0 && failures === 0 ? 0 : wait);
    return () => window.clearTimeout(timer);
  }, [key, known, failures]);
  return known;
}
