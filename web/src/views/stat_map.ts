// The map of one statistic of a run, which grows while the run trains: all of it once, then only its newest steps.
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import type { QueryError } from '../api/client';
import type { Parameters, StatMap } from '../api/types';
import { SHARE, useQuery } from '../api/use_query';
import { joinedMaps, sizesOf } from '../heat/stat_levels';

const FIRST_TAIL_MS = 50; // the whole map may have taken much longer
const TAIL_STEPS_MAX = 200; // then the whole is asked for again
const MERGED_MS = 15_000; // at least, between two looks at a map that is too large to be continued

export interface GrowingMap {
  data: { map: StatMap; sizes: Uint16Array } | null;
  error: QueryError | null;
  offline: boolean;
  milliseconds: number; // that the newest answer took; before there are newer steps, what they may take
}

/** `version` changes when the run has more; null: nothing is asked. */
export function useStatMap(request: Parameters<'/api/v1/stat_map'> | null, version: string): GrowingMap {
  const [base, setBase] = useState(0);
  const key = request && JSON.stringify([request, base]);
  const began = useRef({ key, version }); // when the whole was asked for
  if (began.current.key !== key) began.current = { key, version };
  const whole = useQuery('/api/v1/stat_map', request, 0, base);
  const last = whole.data?.last_steps.at(-1);
  const grown = version !== began.current.version;
  const tail = useQuery('/api/v1/stat_map', request && grown && last !== undefined ? { ...request, steps: `${last}-` } : null, 0, version);
  const joined = useMemo(() => {
    if (!whole.data) return null;
    return tail.data ? joinedMaps(whole.data, tail.data) : { map: whole.data, sizes: sizesOf(whole.data.cells) };
  }, [whole.data, tail.data]);
  const data = useMemo(() => joined ?? (whole.data ? { map: whole.data, sizes: sizesOf(whole.data.cells) } : null), [joined, whole.data]);
  const empty = whole.data !== null && last === undefined;
  const long = (tail.data?.steps ?? 0) > TAIL_STEPS_MAX;
  const merged = joined === null && tail.data !== null;
  const again = () => setBase((old) => old + 1);
  useEffect(() => {
    if (grown && (empty || long)) again();
  }, [grown, empty, long, version]);
  useEffect(() => {
    if (!merged) return;
    const timer = window.setTimeout(again, Math.max(MERGED_MS, SHARE * whole.milliseconds));
    return () => window.clearTimeout(timer);
  }, [merged, base]);
  return { data, error: whole.error ?? tail.error, offline: whole.offline, milliseconds: tail.milliseconds || Math.min(whole.milliseconds, FIRST_TAIL_MS) };
}
