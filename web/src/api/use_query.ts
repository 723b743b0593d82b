// Queries as state of a view: loading, answered, refused, or no collector there; asks again by itself.
import { useEffect, useRef, useState } from 'preact/hooks';
import { ask, QueryError, Unreachable } from './client';
import { takeEarly } from './early';
import type { Answer, GetPath, Parameters } from './types';

export interface Query<T> {
  data: T | null; // stays while it is asked again
  error: QueryError | null; // stays, too
  offline: boolean;
  loading: boolean;
  milliseconds: number; // that the answer took
}

const RETRY_MS = 2000;

/** Every query reports here whether the collector answers; the frame of the page shows it. */
const listeners = new Set<(offline: boolean) => void>();
let offlineNow = false;
export function report(offline: boolean) {
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
  const nothing = { data: null, error: null, offline: false, loading: false, milliseconds: 0 };
  const [query, setQuery] = useState<Query<Answer<P>> & { key: string | null }>({ key, ...nothing, loading: key !== null });
  const latest = useRef(key);
  latest.current = key;
  useEffect(() => {
    if (parameters === null || key === null) {
      setQuery({ key, ...nothing });
      return;
    }
    const stop = new AbortController();
    let timer: number | undefined;
    const again = (ms: number) => {
      timer = window.setTimeout(run, ms);
    };
    const run = async () => {
      const began = performance.now();
      try {
        const data = await (takeEarly(path, parameters, stop.signal) ?? ask(path, parameters, stop.signal));
        if (stop.signal.aborted) return;
        report(false);
        setQuery({ key, ...nothing, data, milliseconds: performance.now() - began });
        if (every > 0) again(every);
      } catch (error) {
        if (stop.signal.aborted) return;
        if (error instanceof Unreachable) {
          report(true);
          setQuery((old) => ({ key, ...nothing, data: old.key === key ? old.data : null, offline: true }));
          again(RETRY_MS);
        } else {
          const refused = error instanceof QueryError ? error : new QueryError(0, 'unknown', String(error));
          report(false);
          setQuery((old) => ({ key, ...nothing, data: old.key === key && refused.status === 429 ? old.data : null, error: refused }));
          if (every > 0 || refused.status === 503 || refused.status === 429) again(Math.max(every, RETRY_MS));
        }
      }
    };
    setQuery((old) => ({ key, ...nothing, ...(old.key === key && { data: old.data, error: old.error }), milliseconds: old.milliseconds, loading: true }));
    void run();
    return () => {
      stop.abort();
      window.clearTimeout(timer);
    };
  }, [key, every, version]);
  // A change of the parameters is seen before the effect has run: never show the answer to another question.
  return query.key === key ? query : { ...nothing, loading: key !== null };
}

export const SHARE = 200; // of the time, what a live view's answers take: 0.5 %, on two threads at the same time as a rule
const PACE_MIN_MS = 1000;
const PACE_MAX_MS = 60_000;

/**
 * The version to ask again with, if the answer that is there was made of another one: at once, or of a live run as rarely as usePaced.
 * `version`: the newest; null: not known. `read`: what the answer was made of; null: there is none yet.
 */
export function useRepeat(version: string | null, read: string | null, live: boolean, milliseconds: number): string | null {
  const [asked, setAsked] = useState<string | null>(null);
  const last = useRef(Date.now());
  const pause = Math.min(PACE_MAX_MS, Math.max(PACE_MIN_MS, SHARE * milliseconds));
  useEffect(() => {
    if (version === null || read === null || version === read || version === asked) return;
    const wait = live ? Math.max(0, last.current + pause - Date.now()) : 0;
    const timer = setTimeout(() => {
      last.current = Date.now();
      setAsked(version);
    }, wait);
    return () => clearTimeout(timer);
  }, [version, read, live, pause, asked]);
  return asked;
}

/**
 * The version to ask with: it follows `version`, but while the run is live at most so often that answers which take `milliseconds`
 * keep the collector busy for 0.5 % of the time. A run that has ended is asked for at once.
 */
export function usePaced(version: string, live: boolean, milliseconds: number): string {
  const [followed, setFollowed] = useState(version);
  const last = useRef(0);
  // The first version that is known is the one to ask with: waiting for a timer would ask twice.
  const paced = followed === '' ? version : followed;
  const pause = Math.min(PACE_MAX_MS, Math.max(PACE_MIN_MS, SHARE * milliseconds));
  useEffect(() => {
    if (followed === '') {
      last.current = Date.now();
      setFollowed(version);
      return;
    }
    if (paced === version) return;
    const wait = live ? Math.max(0, last.current + pause - Date.now()) : 0;
    const timer = setTimeout(() => {
      last.current = Date.now();
      setFollowed(version);
    }, wait);
    return () => clearTimeout(timer);
  }, [version, live, pause, followed, paced]);
  return paced;
}
