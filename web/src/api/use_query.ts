// Queries as state of a view: loading, answered, refused, or no collector there; asks again by itself.
import { useEffect, useRef, useState } from 'preact/hooks';
import { ask, QueryError, Unreachable } from './client';
import type { Answer, GetPath, Parameters } from './types';

export interface Query<T> {
  data: T | null; // stays while it is asked again
  error: QueryError | null;
  offline: boolean;
  loading: boolean;
}

const RETRY_MS = 2000;

/** Every query reports here whether the collector answers; the frame of the page shows it. */
const listeners = new Set<(offline: boolean) => void>();
let offlineNow = false;
function report(offline: boolean) {
  if (offline === offlineNow) return;
  offlineNow = offline;
  for (const listener of listeners) listener(offline);
}
export function useOffline(): boolean {
  const [offline, setOffline] = useState(offlineNow);
  useEffect(() => {
    // A view without queries would never learn that the collector is back.
    if (!offline) return;
    const timer = window.setInterval(() => void fetch('/healthz').then((answer) => answer.ok && report(false), () => undefined), RETRY_MS);
    return () => window.clearInterval(timer);
  }, [offline]);
  useEffect(() => {
    listeners.add(setOffline);
    setOffline(offlineNow);
    return () => void listeners.delete(setOffline);
  }, []);
  return offline;
}

/**
 * Asks when `parameters` change (null: not at all), every `every` milliseconds, and again after a failure to
 * reach the collector. `version` asks again without dropping what is shown.
 */
export function useQuery<P extends GetPath>(path: P, parameters: Parameters<P> | null, every = 0, version: unknown = 0): Query<Answer<P>> {
  const key = parameters === null ? null : JSON.stringify([path, parameters]);
  const [query, setQuery] = useState<Query<Answer<P>> & { key: string | null }>({ key, data: null, error: null, offline: false, loading: key !== null });
  const latest = useRef(key);
  latest.current = key;
  useEffect(() => {
    if (parameters === null || key === null) {
      setQuery({ key, data: null, error: null, offline: false, loading: false });
      return;
    }
    const stop = new AbortController();
    let timer: number | undefined;
    const again = (ms: number) => {
      timer = window.setTimeout(run, ms);
    };
    const run = async () => {
      try {
        const data = await ask(path, parameters, stop.signal);
        if (stop.signal.aborted) return;
        report(false);
        setQuery({ key, data, error: null, offline: false, loading: false });
        if (every > 0) again(every);
      } catch (error) {
        if (stop.signal.aborted) return;
        if (error instanceof Unreachable) {
          report(true);
          setQuery((old) => ({ key, data: old.key === key ? old.data : null, error: null, offline: true, loading: false }));
          again(RETRY_MS);
        } else {
          const refused = error instanceof QueryError ? error : new QueryError(0, 'unknown', String(error));
          report(false);
          setQuery((old) => ({ key, data: old.key === key && refused.status === 429 ? old.data : null, error: refused, offline: false, loading: false }));
          if (every > 0 || refused.status === 503 || refused.status === 429) again(Math.max(every, RETRY_MS));
        }
      }
    };
    setQuery((old) => ({ key, data: old.key === key ? old.data : null, error: null, offline: false, loading: true }));
    void run();
    return () => {
      stop.abort();
      window.clearTimeout(timer);
    };
  }, [key, every, version]);
  // A change of the parameters is seen before the effect has run: never show the answer to another question.
  return query.key === key ? query : { data: null, error: null, offline: false, loading: key !== null };
}
